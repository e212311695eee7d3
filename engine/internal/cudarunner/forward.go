package cudarunner

import (
	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// Modes of activations and of products, numbered as in the kernels.
const (
	plain, split, round = 0, 1, 2
	store, silu, add    = 0, 1, 2
	whole               = 3 // store, but in one part; not of the kernels
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

// decoder computes the layers of a model for the rows of a step.
type decoder struct {
	*attention
	group *reducer
}

// forward runs the decoder; the last products stay pending.
func (r *decoder) forward(s *step) error {
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

func (r *device) run(name string, grid cuda.Dim, threads, shared int, args ...any) error {
	return r.kernels.run(r.stream, name, grid, threads, shared, args...)
}

// layerOfOne is a layer of a step of one row: norms and residuals are part of the products.
func (r *decoder) layerOfOne(s *step, i int) error {
	l, w := &r.layers[i], &r.work
	if err := r.gemv(l.qkv, w.x, l.norm[checkpoint.AttentionNorm], w.ptr(w.qkv), store, false); err != nil {
		return err
	}
	if err := r.attend(s, i, 1, output{w.attn1, 0, plain, w.attn.kb}); err != nil {
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
func (r *decoder) addRow(m matrix, x int64) error {
	w := &r.work
	if r.group.link == nil {
		return r.gemv(m, x, 0, w.ptr(w.x), add, true)
	}
	if err := r.gemv(m, x, 0, w.ptr(w.y), store, false); err != nil {
		return err
	}
	return r.group.reduce(w.x, 1, 1, m.bias)
}

func (r *decoder) layerOfMany(s *step, i int) error {
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
		if err := r.attend(s, i, parts, out); err != nil {
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

// normalize adds what is pending to the residual stream and normalizes n rows of it: those of the
// addresses in rows, or the first.
func (r *decoder) normalize(s *step, weight int64, n int, rows cuda.DevicePtr, out activity, mode int) error {
	w := &r.work
	if r.group.link != nil && s.pending > 0 && !r.PostNorms {
		if err := r.group.reduce(w.x, s.tokens, s.pending, s.bias); err != nil {
			return err
		}
		s.pending, s.bias = 0, 0
	}
	return r.normRows(s, w.x, weight, n, rows, out, mode)
}

// normRows adds what is pending to rows of x, and normalizes n of them into out.
func (r *decoder) normRows(s *step, x, weight int64, n int, rows cuda.DevicePtr, out activity, mode int) error {
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
func (r *decoder) addProduct(s *step, m matrix, x activity, mode int, norm int64) error {
	w := &r.work
	if r.group.link == nil && norm == 0 && s.tokens > skinnyRows && r.splits(m, s.tokens) == 1 {
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

// project computes the logits of n rows: all of the step's, or those that rows lists.
func (r *decoder) project(s *step, n int, rows cuda.DevicePtr) error {
	w := &r.work
	if r.oneRow(s.tokens) && n == 1 {
		if err := r.gemv(r.lmHead, w.x, r.norm, r.group.logitsAt(), store, false); err != nil {
			return err
		}
		return r.group.meet()
	}
	mode := r.mode(n)
	if err := r.normalize(s, r.norm, n, rows, w.last, mode); err != nil {
		return err
	}
	if _, err := r.product(r.lmHead, w.last, mode, n, r.group.logitsAt(), r.VocabSize, whole, output{}); err != nil {
		return err
	}
	return r.group.meet()
}
