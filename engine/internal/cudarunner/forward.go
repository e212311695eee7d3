package cudarunner

import (
	"fmt"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// Modes of activations and of products, numbered as in the kernels.
const (
	plain, split, round = 0, 1, 2
	store, silu, add    = 0, 1, 2
)

// headsTogether is how many query heads of a KV head a block of the attention kernel takes when
// there is more than one row.
const headsTogether = 4

// step is what the kernels of one step need to know of it. Everything else they read from the
// device: a graph is a step's kernels for any batch of the same shape.
type step struct {
	in       addresses
	tokens   int
	decode   bool // every row is a sequence of its own
	splits   int  // of attention
	tiles    int  // of prefill: parts of sequences
	maxTable int  // blocks in a row of the block tables
	pending  int  // parts in work.y that the next norm adds to the residual stream
	bias     int64
	sifted   bool // a row is drawn otherwise than greedily or from all, or wants log-probabilities
}

// apartRows is how many rows a step may have for its kernels to overlap. In long kernels there is
// nothing to gain, and blocks that wait on an SM are in the way: 16,384 rows took 57.8 ms with,
// 55.1 without.
const apartRows = 4096

// forward runs the decoder; the last products stay pending.
func (r *Runner) forward(s *step) error {
	w := &r.work
	r.kernels.apart = s.tokens > apartRows
	defer func() { r.kernels.apart = false }()
	if err := r.run("embed_"+r.weight.String(), cuda.Dim{X: s.tokens}, 256, 0, r.at(r.embed.at), s.in.tokens,
		w.ptr(w.x), r.embed.kb()); err != nil {
		return err
	}
	if err := r.scaleEmbedding(s.tokens); err != nil {
		return err
	}
	for i := range r.layers {
		var err error
		if r.oneRow(s.tokens) {
			err = r.layerOfOne(s, i)
		} else {
			err = r.layerOfMany(s, i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Runner) run(name string, grid cuda.Dim, threads, shared int, args ...any) error {
	return r.kernels.run(r.stream, name, grid, threads, shared, args...)
}

// layerOfOne is a layer of a step of one row: norms and residuals are part of the products.
func (r *Runner) layerOfOne(s *step, i int) error {
	l, w := &r.layers[i], &r.work
	if err := r.gemv(l.qkv, w.x, l.norm[checkpoint.AttentionNorm], w.ptr(w.qkv), store, false); err != nil {
		return err
	}
	if err := r.attention(s, i, 1, output{w.attn1, 0, plain, w.attn.kb}); err != nil {
		return err
	}
	if err := r.addRow(l.o, w.attn1); err != nil {
		return err
	}
	if err := r.gemv(l.gateUp, w.x, l.norm[checkpoint.MLPNorm], w.ptr(w.mlp1), silu, true); err != nil {
		return err
	}
	return r.addRow(l.down, w.mlp1)
}

// addRow adds a product of one row to the residual stream.
func (r *Runner) addRow(m matrix, x int64) error {
	w := &r.work
	if r.link == nil {
		return r.gemv(m, x, 0, w.ptr(w.x), add, true)
	}
	if err := r.gemv(m, x, 0, w.ptr(w.y), store, false); err != nil {
		return err
	}
	return r.reduce(w.x, 1, 1, m.bias)
}

func (r *Runner) layerOfMany(s *step, i int) error {
	l, w := &r.layers[i], &r.work
	mode := r.mode(s.tokens)
	if err := r.normalize(s, l.norm[checkpoint.AttentionNorm], s.tokens, 0, w.h, mode); err != nil {
		return err
	}
	out := output{w.attn.at, w.attn.plane, mode, w.attn.kb}
	if r.placesHeads(s, l.qkv) {
		if err := r.qkv(s, i); err != nil {
			return err
		}
		if err := r.prefill(s, i, out); err != nil {
			return err
		}
	} else {
		parts, err := r.product(l.qkv, w.h, mode, s.tokens, w.ptr(w.qkv), l.qkv.rows, store, output{})
		if err != nil {
			return err
		}
		if err := r.attention(s, i, parts, out); err != nil {
			return err
		}
	}
	if err := r.addProduct(s, l.o, w.attn, mode, l.norm[checkpoint.AttentionPostNorm]); err != nil {
		return err
	}
	if err := r.normalize(s, l.norm[checkpoint.MLPNorm], s.tokens, 0, w.h, mode); err != nil {
		return err
	}
	if err := r.gate(s, l.gateUp, mode); err != nil {
		return err
	}
	return r.addProduct(s, l.down, w.mlp, mode, l.norm[checkpoint.MLPPostNorm])
}

// mode is how the inputs of products are kept in a step of this many rows.
func (r *Runner) mode(tokens int) int {
	switch {
	case r.weight == f32:
		return plain
	case r.precise || tokens <= exactRows:
		return split
	}
	return round
}

// output is where a kernel puts an activation.
type output struct {
	at, plane int64
	mode, kb  int
}

// gemv is a product of one row; with a norm weight the row is normalized first.
func (r *Runner) gemv(m matrix, x, norm int64, out cuda.DevicePtr, mode int, withBias bool) error {
	bias := int64(0)
	if withBias {
		bias = m.bias
	}
	groups, threads, name := (m.rows+15)/16, 256, "gemv_"+r.weight.String()
	switch {
	case r.weight == f32:
		threads = 512
	case groups <= r.kernels.sms && m.kb() >= r.kernels.gemvWide: // one block on an SM, which has to keep enough of its long rows under way
		threads, name = 512, "gemv16_"+r.weight.String()
	}
	shared := m.kb() * 128
	if norm != 0 {
		shared *= 2
	}
	return r.run(name, cuda.Dim{X: min(groups, r.kernels.gemvBlocks*r.kernels.sms)}, threads, shared, r.at(m.at),
		r.work.ptr(x), r.at(norm), r.HiddenSize,
		float32(r.RMSNormEps), r.at(bias), out, mode, m.rows, m.kb())
}

// normalize adds what is pending to the residual stream and normalizes n rows of it: those of the
// addresses in rows, or the first.
func (r *Runner) normalize(s *step, weight int64, n int, rows cuda.DevicePtr, out activity, mode int) error {
	w := &r.work
	if r.link != nil && s.pending > 0 && !r.PostNorms {
		if err := r.reduce(w.x, s.tokens, s.pending, s.bias); err != nil {
			return err
		}
		s.pending, s.bias = 0, 0
	}
	return r.normRows(s, w.x, weight, n, rows, out, mode)
}

// normRows adds what is pending to rows of x, and normalizes n of them into out.
func (r *Runner) normRows(s *step, x, weight int64, n int, rows cuda.DevicePtr, out activity, mode int) error {
	w := &r.work
	name, blocks := "norm_", n
	if n >= 8*r.kernels.sms { // a warp a row
		name, blocks = "norms_", (n+7)/8
	}
	err := r.run(name+r.weight.String(), cuda.Dim{X: blocks}, 256, 0, w.ptr(x), rows, w.ptr(w.y), s.pending,
		int64(s.tokens*w.h.kb*32), r.at(s.bias), r.at(weight),
		w.ptr(out.at), out.plane, mode, r.HiddenSize, w.h.kb, float32(r.RMSNormEps), n)
	s.pending, s.bias = 0, 0
	return err
}

// addProduct adds a product to the residual stream: at once, or in the next norm. A model that
// normalizes results has a norm for it.
func (r *Runner) addProduct(s *step, m matrix, x activity, mode int, norm int64) error {
	w := &r.work
	if r.link == nil && norm == 0 && s.tokens > skinnyRows && r.splits(m, s.tokens) == 1 {
		_, err := r.product(m, x, mode, s.tokens, w.ptr(w.x), w.h.kb*32, add, output{})
		return err
	}
	parts, err := r.product(m, x, mode, s.tokens, w.ptr(w.y), w.h.kb*32, store, output{})
	s.pending, s.bias = parts, m.bias
	if err != nil || norm == 0 {
		return err
	}
	return r.normalizeResult(s, norm)
}

// splits is how many blocks share the columns of a product, so that the device is full.
func (r *Runner) splits(m matrix, tokens int) int {
	const least = 8 // column blocks that a share has at least
	var blocks int
	switch {
	case r.weight == f32:
		blocks = (tokens + 63) / 64 * ((m.rows + 63) / 64)
	case tokens <= skinnyRows:
		warps := r.rowWarps(m)
		blocks = (m.rows + 16*warps - 1) / (16 * warps)
	case r.wgmma(m, tokens):
		blocks = (tokens + 127) / 128 * ((m.rows + r.wgmmaRows(m, tokens) - 1) / r.wgmmaRows(m, tokens))
		return max(1, min(r.kernels.sms/blocks, maxSplits, m.kb()/least, r.work.rows/tokens))
	default:
		blocks = (tokens + 127) / 128 * ((m.rows + 127) / 128)
	}
	n := (2*r.kernels.sms + blocks/2) / blocks
	return max(1, min(n, maxSplits, m.kb()/least, r.work.rows/tokens))
}

// rowWarps is how many warps of a skinny kernel's block lie side by side: with 4 they share what
// they read of the activations, with one there are blocks enough for small matrices.
func (r *Runner) rowWarps(m matrix) int {
	if r.kernels.rowWarps > 0 {
		return r.kernels.rowWarps
	}
	if m.rows >= 64*r.kernels.sms {
		return 4
	}
	return 1
}

// wgmma reports whether a product goes to Hopper's kernels: 16-bit rows, columns in pairs of
// blocks, results that can be written 16 bytes at a time.
func (r *Runner) wgmma(m matrix, tokens int) bool {
	return r.kernels.hopper && tokens > skinnyRows && r.mode(tokens) == round && m.kb()%2 == 0 && m.rows%4 == 0
}

// wgmmaRows is how many rows of a matrix a block of those kernels takes at a time: as many as it
// can, unless that leaves SMs idle.
func (r *Runner) wgmmaRows(m matrix, tokens int) int {
	if (tokens+127)/128*((m.rows+255)/256) >= r.kernels.sms {
		return 256
	}
	return 128
}

// wgmmaLaunch is how such a product is launched: blocks that stay, each with 4 stages, what its 8
// warps write, and the stages' barriers in shared memory.
func (r *Runner) wgmmaLaunch(m matrix, tokens, parts int, kind string) (name string, l cuda.Launch) {
	rows, cluster := r.wgmmaRows(m, tokens), 1
	if rows == 256 {
		cluster = 2
	}
	tiles := ((tokens+127)/128 + cluster - 1) / cluster * ((m.rows + rows - 1) / rows) * parts
	return fmt.Sprintf("wgmma%d_%s%s", rows, kind, r.weight), cuda.Launch{
		Grid: cuda.Dim{X: cluster * min(tiles,
			r.kernels.sms/cluster)}, Block: cuda.Dim{X: 384}, Shared: 4*(16<<10+rows*128) + 8*rows*16 + 4*2*8,
		Cluster: cuda.Dim{X: cluster},
	}
}

// product multiplies rows with a matrix; it returns the number of parts that it left in out.
func (r *Runner) product(m matrix, x activity, mode, tokens int, out cuda.DevicePtr, ld, what int,
	act output,
) (int, error) {
	w, parts := &r.work, 1
	if what == store && out != r.logitsAt() {
		parts = r.splits(m, tokens)
	}
	bias := m.bias
	if what == store {
		bias = 0 // whoever adds up the parts adds it
	}
	planes := 1
	if mode == split {
		planes = 2
	}
	stride := int64(tokens * ld)
	if r.weight != f32 && tokens <= skinnyRows {
		name, warps := "skinny8", r.rowWarps(m)
		switch {
		case tokens > 32:
			name = "skinny64"
		case tokens > 16:
			name = "skinny32"
		case tokens > 8:
			name = "skinny16"
		}
		if mode == split {
			name += "_split"
		}
		return parts, r.run(name+"_"+r.weight.String(), cuda.Dim{X: (m.rows + 16*warps - 1) / (16 * warps), Y: parts},
			256, 0, r.at(m.at), w.ptr(x.at), x.plane,
			out, stride, what, w.ptr(act.at), act.plane, act.mode, act.kb, r.at(bias), tokens, m.rows, ld, m.kb(), warps)
	}
	if r.wgmma(m, tokens) {
		name, l := r.wgmmaLaunch(m, tokens, parts, "")
		return parts, r.kernels.launch(r.stream, name, l, w.ptr(x.at), r.at(m.at), out, stride, what, w.ptr(act.at),
			act.kb, r.at(bias), tokens, m.rows, ld, m.kb(), parts)
	}
	tile, threads, shared := 128, 128, 3*32<<10
	if r.weight == f32 {
		tile, threads, shared = 64, 256, 2*16*65*4
	}
	blocks := (tokens + tile - 1) / tile * ((m.rows + tile - 1) / tile)
	return parts, r.run("gemm_"+r.weight.String(), cuda.Dim{X: blocks, Y: parts}, threads, shared, w.ptr(x.at),
		r.at(m.at), x.plane, planes, out, stride, what,
		w.ptr(act.at), act.plane, act.mode, act.kb, r.at(bias), tokens, m.rows, ld, m.kb())
}

// project computes the logits of n rows: all of the step's, or those that rows lists.
func (r *Runner) project(s *step, n int, rows cuda.DevicePtr) error {
	w := &r.work
	if r.oneRow(s.tokens) && n == 1 {
		if err := r.gemv(r.lmHead, w.x, r.norm, r.logitsAt(), store, false); err != nil {
			return err
		}
		return r.meet()
	}
	mode := r.mode(n)
	if err := r.normalize(s, r.norm, n, rows, w.last, mode); err != nil {
		return err
	}
	if _, err := r.product(r.lmHead, w.last, mode, n, r.logitsAt(), r.VocabSize, store, output{}); err != nil {
		return err
	}
	return r.meet()
}

// draw draws a token from each of n rows of logits.
func (r *Runner) draw(s *step, n int) error {
	w := &r.work
	if !r.share.First() {
		return nil
	}
	if s.sifted {
		return r.sift(s, n)
	}
	// The tokens go to host memory: a copy would take 6 µs.
	return r.run("race", cuda.Dim{X: raceShares, Y: n}, 256, 0, w.ptr(w.logits), s.in.draws, w.ptr(w.best),
		w.ptr(w.done), r.in.tokens.Ptr(), r.VocabSize)
}
