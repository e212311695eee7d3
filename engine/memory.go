package engine

import (
	"fmt"
	"math"

	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// kvPlan is how large a KV cache an engine makes.
type kvPlan struct {
	blocks      int
	maxModelLen int
}

// kvInput is what the plan depends on.
type kvInput struct {
	cfg           Config // resolved but for MaxModelLen
	maxPositions  int    // that the checkpoint allows
	bytesPerBlock int64
	free, total   int64 // of the device, with the weights loaded
	gpu           bool
}

// Defaults of the CPU device, whose memory is shared with everything else.
const (
	cpuSequences = 8
	cpuCacheMax  = 1 << 30
)

// plan sizes the KV cache. One sequence of MaxModelLen must fit: an explicit MaxModelLen that does
// not is refused, the default shrinks.
func (in kvInput) plan() (kvPlan, error) {
	cfg, size := in.cfg, in.cfg.BlockSize
	want := cfg.MaxModelLen
	if want == 0 {
		want = in.maxPositions
	}
	perSeq := int64((want + size - 1) / size)
	bytes, from, err := in.budget(perSeq)
	if err != nil {
		return kvPlan{}, err
	}
	blocks := bytes / in.bytesPerBlock
	blocks = min(blocks, math.MaxInt32/int64(size)) // slots are int32
	if blocks*in.bytesPerBlock > in.free {
		return kvPlan{}, fmt.Errorf("%w: a KV cache of %s (%s), and %s of %s are free", llm.ErrOutOfMemory,
			ledger.FormatBytes(blocks*in.bytesPerBlock), from, ledger.FormatBytes(in.free), ledger.FormatBytes(in.total))
	}
	if blocks == 0 {
		return kvPlan{}, fmt.Errorf("%w: a KV block of %d tokens is %s, and %s gives %s", llm.ErrOutOfMemory,
			size, ledger.FormatBytes(in.bytesPerBlock), from, ledger.FormatBytes(bytes))
	}
	if blocks < perSeq && cfg.MaxModelLen > 0 {
		return kvPlan{}, fmt.Errorf("%w: one sequence of MaxModelLen %d needs %d KV blocks (%s), %s gives %d (%s): "+
			"lower MaxModelLen to %d at most, or raise KVCacheBytes or MemoryUtilization", llm.ErrOutOfMemory,
			want, perSeq, ledger.FormatBytes(perSeq*in.bytesPerBlock), from, blocks, ledger.FormatBytes(bytes), blocks*int64(size))
	}
	return kvPlan{blocks: int(blocks), maxModelLen: int(min(int64(want), blocks*int64(size)))}, nil
}

// budget is how many bytes the KV cache may have, and the option that says so.
func (in kvInput) budget(perSeq int64) (bytes int64, from string, err error) {
	cfg := in.cfg
	const gpuShare = 0.92 // vLLM's default
	switch {
	case cfg.KVCacheBytes > 0:
		return cfg.KVCacheBytes, "KVCacheBytes", nil
	case cfg.MemoryUtilization == 0 && in.gpu: // more than MaxNumSeqs of the longest sequences is of no use
		cfg.MemoryUtilization = gpuShare
		in.cfg = cfg
		bytes, from, err = in.budget(perSeq)
		return min(bytes, int64(cfg.MaxNumSeqs)*perSeq*in.bytesPerBlock), from, err
	case cfg.MemoryUtilization > 0:
		// vLLM's rule: the share is of the whole device, and what anybody else holds already counts
		// against it.
		share := int64(cfg.MemoryUtilization * float64(in.total))
		used := in.total - in.free
		if share <= used {
			return 0, "",
				fmt.Errorf("%w: MemoryUtilization %g is %s of %s, and %s are in use already (weights included)",
					llm.ErrOutOfMemory,
					cfg.MemoryUtilization, ledger.FormatBytes(share), ledger.FormatBytes(in.total), ledger.FormatBytes(used))
		}
		return share - used, "MemoryUtilization", nil
	}
	return min(cpuSequences*perSeq*in.bytesPerBlock, cpuCacheMax, in.free/2), "the CPU's default", nil
}
