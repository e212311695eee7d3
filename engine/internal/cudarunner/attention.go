package cudarunner

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// attention attends over the KV cache.
type attention struct {
	*products
	ropes []ropeTable  // one per checkpoint.Config.Ropes
	kv    *cuda.Memory // set by setKV
}

// heads are the arguments that all kernels of attention begin with; the heads are in parts in
// work.qkv.
func (r *attention) heads(s *step, i, parts int) []any {
	l, w := &r.layers[i], &r.work
	k, v := r.keysValues(i)
	size, rope := int64(r.options.BlockSize), &r.ropes[r.LayerRope(i)]
	return []any{
		w.ptr(w.qkv), parts, int64(s.tokens * l.qkv.rows), l.qkv.rows, r.at(l.qkv.bias), r.at(l.norm[checkpoint.QueryNorm]), r.at(l.norm[checkpoint.KeyNorm]),
		float32(r.RMSNormEps), rope.cos(), rope.sin(), r.NumHeads, r.NumKVHeads, r.HeadDim, k, v, r.options.BlockSize, r.headPad, (int64(1)<<40 +
			size - 1) / size, s.in.positions, s.in.slots,
	}
}

// keysValues is where a layer's keys and values are.
func (r *attention) keysValues(i int) (k, v cuda.DevicePtr) {
	half := r.kv.Size() / int64(2*r.NumLayers)
	k = r.kv.Ptr() + cuda.DevicePtr(int64(2*i)*half)
	return k, k + cuda.DevicePtr(half)
}

// placesHeads reports whether the product of queries, keys and values is one that rotates them and
// puts them in their places.
func (r *attention) placesHeads(s *step, m matrix) bool {
	return !s.decode && r.tiled() && r.HeadDim&(r.HeadDim-1) == 0 && r.wgmma(m, s.tokens) && r.splits(m, s.tokens) == 1
}

// qkv is that product.
func (r *attention) qkv(s *step, i int) error {
	m, w := r.layers[i].qkv, &r.work
	name, l := r.wgmmaLaunch(m, s.tokens, 1, fmt.Sprintf("qkv%d_", r.HeadDim))
	args := append([]any{w.ptr(w.h.at), r.at(m.at), s.tokens, m.rows, m.kb()}, r.heads(s, i, 1)...)
	return r.kernels.launch(r.stream, name, l, append(args, w.ptr(w.q), r.queryScale())...)
}

// queryScale is what queries are multiplied with for the prefill kernels, which use powers of 2.
func (r *attention) queryScale() float32 {
	return float32(r.AttentionScale) * math.Log2E
}

// attention rotates queries and keys, writes keys and values to the cache and attends. The heads
// are in parts in work.qkv.
func (r *attention) attend(s *step, i, parts int, out output) error {
	w, kv, fused := &r.work, "f16", 1
	if r.kvF32 {
		kv = "f32"
	}
	heads := r.heads(s, i, parts)
	if !s.decode {
		fused = 0
		queries := cuda.DevicePtr(0) // they stay where they are
		if r.tiled() {
			queries = w.ptr(w.q)
		}
		args := append(heads, queries, r.queryScale(), s.tokens)
		if err := r.run("rope_"+kv, cuda.Dim{X: (s.tokens + 3) / 4, Y: (r.NumHeads + 2*r.NumKVHeads + 3) / 4}, 128, 0,
			args...); err != nil {
			return err
		}
		if r.tiled() {
			return r.prefill(s, i, out)
		}
	}
	lanes := "2"
	for _, n := range []int{4, 8, 16, 32} {
		if r.headPad > 8*n/2 {
			lanes = strconv.Itoa(n)
		}
	}
	together, name := r.together(s.tokens)
	groups := (r.NumHeads/r.NumKVHeads + together - 1) / together
	warps := 4
	if s.decode {
		warps = 8
	}
	shared := 4 * ((together+2+warps*together)*r.headPad + warps*together*2)
	args := append(heads, s.in.seqs, s.in.tables, s.maxTable, r.LayerWindow(i),
		float32(r.AttentionScale), fused,
		w.ptr(out.at), out.plane, out.mode, int(r.weight), out.kb, w.ptr(w.partial), w.ptr(w.done))
	return r.run("attend_"+kv+"_"+lanes+"_"+name, cuda.Dim{X: s.tokens, Y: r.NumKVHeads * groups, Z: s.splits},
		32*warps, shared, args...)
}

// prefill attends with queries in work.q; keys and values are in the cache.
func (r *attention) prefill(s *step, i int, out output) error {
	w := &r.work
	k, v := r.keysValues(i)
	size := int64(r.options.BlockSize)
	name, together := fmt.Sprintf("prefill_%d", r.HeadDim), 1
	if r.HeadDim == 64 && r.NumHeads/r.NumKVHeads%2 == 0 { // two heads share what they read of keys and values
		name, together = "prefill_64_2", 2
	}
	return r.run(name, cuda.Dim{X: s.tiles, Y: r.NumHeads / together}, 128, 4*tileRows*(2*r.HeadDim+16), w.ptr(w.q),
		r.NumHeads, r.NumKVHeads, k, v,
		r.options.BlockSize, (int64(1)<<40+size-1)/size, s.in.positions, s.in.seqs, s.in.tables, s.maxTable,
		r.LayerWindow(i), s.in.tiles, w.ptr(out.at), out.plane,
		out.mode, int(r.weight), out.kb)
}

// tileRows is how many rows of a sequence a block of the prefill kernels takes.
const tileRows = 64

// tiled reports whether there is a prefill kernel for this model.
func (r *attention) tiled() bool {
	return !r.kvF32 && r.HeadDim == r.headPad && slices.Contains([]int{64, 80, 96, 128}, r.HeadDim)
}

// together is how many query heads share a block of the attention kernel. For one row each has its
// own: that they all read the same keys and values costs less than that most of the device has
// nothing to do.
func (r *attention) together(rows int) (int, string) {
	if r.NumHeads == r.NumKVHeads || rows == 1 {
		return 1, "1"
	}
	return headsTogether, "4"
}

// attentionSplits is how many blocks share a context: as many as fill the device and have 128
// tokens each; putting their shares together costs as much as 100 tokens. A power of two, so that
// few graphs are needed.
func (r *attention) attentionSplits(rows, context int) int {
	together, _ := r.together(rows)
	units := rows * r.NumKVHeads * ((r.NumHeads/r.NumKVHeads + together - 1) / together)
	n := 1
	for units*n*2 <= maxUnits && units*n < r.kernels.sms && context > 256*n {
		n *= 2
	}
	return n
}
