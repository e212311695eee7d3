package cpurunner

import (
	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// encode runs an encoder of BERT's kind over a batch of whole sequences, and leaves their hidden
// states in work.x, the same on every rank. The KV cache is where a layer puts the keys and values
// of the step; nothing of it is read later. The error is [modelrunner.ErrAborted].
func (r *Runner) encode(b *modelrunner.Batch) error {
	p, w, n := r.pool, &r.work, len(b.Tokens)
	x, h := w.x[:n*r.HiddenSize], w.h[:n*r.HiddenSize]
	q, k := w.q[:n*r.NumHeads*r.HeadDim], w.k[:n*r.NumKVHeads*r.HeadDim]
	up := w.up[:n*r.IntermediateSize]
	seqs := r.attention(b)

	r.embedEncoder(b)
	for i := range r.layers {
		l := &r.layers[i]
		if r.trace != nil {
			r.trace(i, x)
		}
		cpu.MatMuls(p, x, n, l.linear[checkpoint.Query].into(q), l.linear[checkpoint.Key].into(k),
			l.linear[checkpoint.Value].into(w.v))
		cpu.WriteKV(p, r.kv[i], k, w.v, b.Slots)
		cpu.Attention(p, w.attn, q, cpu.AttnParams{
			Heads: r.NumHeads, Scale: float32(r.AttentionScale), Bidirectional: true,
		}, r.kv[i], seqs)
		if err := r.sum(0, h, w.attn, n, l.linear[checkpoint.AttentionOut]); err != nil {
			return err
		}
		r.addNorm(l, checkpoint.AttentionPostNorm, x, h, n)
		cpu.MatMuls(p, x, n, l.linear[checkpoint.Up].into(up))
		cpu.GELU(p, up)
		if err := r.sum(1, h, up, n, l.linear[checkpoint.Down]); err != nil {
			return err
		}
		r.addNorm(l, checkpoint.MLPPostNorm, x, h, n)
	}
	return nil
}

// embedEncoder fills the residual stream: the sum of a row's embeddings of token, type and
// position, normalized.
func (r *Runner) embedEncoder(b *modelrunner.Batch) {
	p, w, n := r.pool, &r.work, len(b.Tokens)
	x, h := w.x[:n*r.HiddenSize], w.h[:n*r.HiddenSize]
	types := b.TokenTypes
	if len(types) == 0 {
		types = make([]int32, n)
	}
	cpu.Gather(p, x, r.outer.linear[checkpoint.Embedding].w, b.Tokens)
	cpu.Gather(p, h, r.outer.linear[checkpoint.TypeEmbedding].w, types)
	cpu.Add(p, x, h)
	cpu.Gather(p, h, r.outer.linear[checkpoint.PositionEmbedding].w, b.Positions)
	r.addNorm(&r.outer, checkpoint.EmbeddingNorm, x, h, n)
}

// addNorm adds n rows of h to x and normalizes the sums in place.
func (r *Runner) addNorm(l *layer, role checkpoint.Role, x, h []float32, n int) {
	cpu.AddLayerNorm(r.pool, x, h, l.norm[role], l.linear[role].bias, n, r.HiddenSize, float32(r.RMSNormEps))
}
