package cpurunner

import (
	"fmt"
	"unsafe"
)

// ReadKV implements [modelrunner.KVCopier]. A block's bytes are, layer after layer, its part of K
// and its part of V.
func (r *Runner) ReadKV(block int32, dst []byte) error {
	return r.copyKV(block, dst, func(device, host []byte) { copy(host, device) })
}

// WriteKV implements [modelrunner.KVCopier].
func (r *Runner) WriteKV(block int32, src []byte) error {
	return r.copyKV(block, src, func(device, host []byte) { copy(device, host) })
}

func (r *Runner) copyKV(block int32, host []byte, move func(device, host []byte)) error {
	if uint(block) >= uint(r.blocks) || int64(len(host)) != r.KVBytesPerBlock() {
		return fmt.Errorf("cpurunner: copy of KV block %d to or from %d bytes: the KV cache has %d blocks of %d bytes",
			block, len(host), r.blocks, r.KVBytesPerBlock())
	}
	n := r.options.BlockSize * r.NumKVHeads * r.HeadDim
	first := int(block) * n
	for _, c := range r.kv {
		for _, all := range [][]float32{c.K, c.V} {
			device := unsafe.Slice((*byte)(unsafe.Pointer(&all[first])), 4*n)
			move(device, host[:4*n])
			host = host[4*n:]
		}
	}
	return nil
}
