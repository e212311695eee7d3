package cudarunner

import (
	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// What some architectures compute beside the rest: a scaled embedding, results of attention and MLP
// that are normalized before they are added, another activation.

// needsVariants reports whether the model needs kernels of the image of variants.
func (m *model) needsVariants() bool {
	return m.EmbeddingScale != 1 || m.Activation != checkpoint.SiLU
}

// oneRow reports whether a step is computed by the kernels of one row. They add results to the
// residual stream themselves, and know one activation.
func (r *decoder) oneRow(tokens int) bool {
	return tokens == 1 && !r.PostNorms && r.Activation == checkpoint.SiLU
}

// scaleEmbedding multiplies the residual stream when it holds the embeddings.
func (r *decoder) scaleEmbedding(tokens int) error {
	if r.EmbeddingScale == 1 {
		return nil
	}
	n := tokens * r.work.h.kb * 8 // fours of floats
	return r.run("scale", cuda.Dim{X: (n + 255) / 256}, 256, 0, r.work.ptr(r.work.x), float32(r.EmbeddingScale), n)
}

// normalizeResult sums up the product that is pending, over the ranks too, and normalizes it: one
// part is left pending, in the place of the first.
func (r *decoder) normalizeResult(s *step, weight int64) error {
	w := &r.work
	if err := w.memory.Fill(w.sum, int64(4*s.tokens*w.h.kb*32), 0, r.stream); err != nil {
		return err
	}
	r.kernels.alone = true // what follows a fill waits for its end
	if r.group.link != nil {
		if err := r.group.reduce(w.sum, s.tokens, s.pending, s.bias); err != nil {
			return err
		}
		s.pending, s.bias = 0, 0
	}
	err := r.normRows(s, w.sum, weight, s.tokens, 0, activity{at: w.y}, plain)
	s.pending = 1
	return err
}

// gate computes the MLP's activation of gate and up projections.
func (r *decoder) gate(s *step, m matrix, mode int) error {
	w := &r.work
	out := output{w.mlp.at, w.mlp.plane, mode, w.mlp.kb}
	if r.Activation == checkpoint.SiLU {
		_, err := r.product(m, w.h, mode, s.tokens, 0, 0, silu, out)
		return err
	}
	parts, err := r.product(m, w.h, mode, s.tokens, w.ptr(w.qkv), m.rows, store, output{})
	if err != nil {
		return err
	}
	shares := max(1, min(m.rows/8/256, r.kernels.sms/s.tokens))
	return r.run("gelu_"+r.weight.String(), cuda.Dim{X: s.tokens, Y: shares}, 256, 0, w.ptr(w.qkv), parts,
		int64(s.tokens*m.rows), r.at(m.bias), w.ptr(out.at), out.plane, out.mode, m.rows, out.kb)
}
