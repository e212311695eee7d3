package cpurunner

import (
	"fmt"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/pooling"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// Execute implements [modelrunner.Runner].
func (r *Runner) Execute(b *modelrunner.Batch) ([]modelrunner.SeqResult, error) {
	if err := r.check(b); err != nil {
		return nil, fmt.Errorf("cpurunner: bad batch: %w", err)
	}
	if err := modelrunner.Call(r.options.Hooks.Forward); err != nil {
		return nil, err
	}
	forward := r.forward
	if r.Encoder {
		forward = r.encode
	}
	if err := forward(b); err != nil {
		return nil, err
	}
	if r.Head != checkpoint.OutputHead {
		return r.poolAll(b)
	}
	return r.results(b)
}

// forward runs the decoder over a batch and leaves its residual stream in work.x, the same on every
// rank. The error is [modelrunner.ErrAborted].
func (r *Runner) forward(b *modelrunner.Batch) error {
	p, w, n, eps := r.pool, &r.work, len(b.Tokens), float32(r.RMSNormEps)
	x, h := w.x[:n*r.HiddenSize], w.h[:n*r.HiddenSize]
	q, k := w.q[:n*r.NumHeads*r.HeadDim], w.k[:n*r.NumKVHeads*r.HeadDim]
	seqs := r.attention(b)

	cpu.Gather(p, x, r.outer.linear[checkpoint.Embedding].w, b.Tokens)
	if r.EmbeddingScale != 1 {
		cpu.Scale(p, x, float32(r.EmbeddingScale))
	}
	for i := range b.Seqs {
		for j, row := range b.Seqs[i].Embeds {
			copy(x[(b.Seqs[i].Start+j)*r.HiddenSize:], row)
		}
	}
	for i := range r.layers {
		l := &r.layers[i]
		if r.trace != nil {
			r.trace(i, x)
		}
		cpu.RMSNorm(p, h, x, l.norm[checkpoint.AttentionNorm], n, r.HiddenSize, eps)
		cpu.MatMuls(p, h, n, l.linear[checkpoint.Query].into(q), l.linear[checkpoint.Key].into(k),
			l.linear[checkpoint.Value].into(w.v))
		if r.QKNorm {
			cpu.RMSNorm(p, q, q, l.norm[checkpoint.QueryNorm], n*r.NumHeads, r.HeadDim, eps)
			cpu.RMSNorm(p, k, k, l.norm[checkpoint.KeyNorm], n*r.NumKVHeads, r.HeadDim, eps)
		}
		rope := &r.ropes[r.LayerRope(i)]
		cpu.Rope(p, q, n, r.NumHeads, r.HeadDim, r.HeadDim, b.Positions, rope.cos, rope.sin)
		cpu.Rope(p, k, n, r.NumKVHeads, r.HeadDim, r.HeadDim, b.Positions, rope.cos, rope.sin)
		cpu.WriteKV(p, r.kv[i], k, w.v, b.Slots)
		cpu.Attention(p, w.attn, q, cpu.AttnParams{
			Heads: r.NumHeads, Scale: float32(r.AttentionScale), Window: r.LayerWindow(i),
		}, r.kv[i], seqs)
		if err := r.sum(0, h, w.attn, n, l.linear[checkpoint.AttentionOut]); err != nil {
			return err
		}
		if r.PostNorms {
			cpu.RMSNorm(p, h, h, l.norm[checkpoint.AttentionPostNorm], n, r.HiddenSize, eps)
		}
		cpu.AddRMSNorm(p, h, x, h, l.norm[checkpoint.MLPNorm], n, r.HiddenSize, eps)
		if err := r.mlp(h, l, n); err != nil {
			return err
		}
		if r.PostNorms {
			cpu.RMSNorm(p, h, h, l.norm[checkpoint.MLPPostNorm], n, r.HiddenSize, eps)
		}
		cpu.Add(p, x, h)
	}
	return nil
}

// mlp replaces n rows of h by what the layer's MLP, or its experts, make of them.
func (r *Runner) mlp(h []float32, l *layer, n int) error {
	if l.experts != nil {
		return r.sumOf(1, h, func(sum []float32) { r.mixture(sum, h, l, n) })
	}
	gate, up := r.work.gate[:n*r.IntermediateSize], r.work.up
	cpu.MatMuls(r.pool, h, n, l.linear[checkpoint.Gate].into(gate), l.linear[checkpoint.Up].into(up))
	r.activate(gate, up)
	return r.sum(1, h, gate, n, l.linear[checkpoint.Down])
}

// activate replaces gate by its activation times up.
func (r *Runner) activate(gate, up []float32) {
	if r.Activation == checkpoint.GELUTanh {
		cpu.GELUMul(r.pool, gate, gate, up)
	} else {
		cpu.SiLUMul(r.pool, gate, gate, up)
	}
}

// sum multiplies by a matrix of which every rank has some columns, and adds up what that gives on
// all of them.
func (r *Runner) sum(turn int, dst, x []float32, n int, l linear) error {
	return r.sumOf(turn, dst, func(own []float32) { cpu.MatMul(r.pool, own, x, n, l.w, l.bias) })
}

// sumOf adds up what compute returns on all ranks.
func (r *Runner) sumOf(turn int, dst []float32, compute func(own []float32)) error {
	if r.options.link == nil {
		compute(dst)
		return nil
	}
	own := r.work.partial[turn][:len(dst)]
	compute(own)
	return r.options.link.allReduce(r.share.Rank, turn, r.pool, dst, own)
}

// attention lists the batch's sequences as the kernel wants them, and readies the rope tables for
// their positions.
func (r *Runner) attention(b *modelrunner.Batch) []cpu.AttnSeq {
	seqs := make([]cpu.AttnSeq, len(b.Seqs))
	for i, s := range b.Seqs {
		seqs[i] = cpu.AttnSeq{Start: s.Start, Len: s.Len, Context: s.Context, Blocks: s.Blocks}
		for j := range r.ropes {
			r.ropes[j].fill(s.Context)
		}
	}
	return seqs
}

// project returns the logits [len(rows), VocabSize] of some rows of the residual stream, at most
// logitRows; on the first rank only.
func (r *Runner) project(rows []int) ([]float32, error) {
	d, n, width := r.HiddenSize, len(rows), r.VocabSize
	if !r.share.First() {
		width = r.share.Vocab.Len()
	}
	h, logits := r.work.h[:n*d], r.work.logits[:n*width]
	for i, row := range rows {
		copy(h[i*d:(i+1)*d], r.work.x[row*d:])
	}
	cpu.RMSNorm(r.pool, h, h, r.outer.norm[checkpoint.FinalNorm], n, d, float32(r.RMSNormEps))
	cpu.MatMuls(r.pool, h, n, cpu.Linear{Dst: logits, W: r.outer.linear[checkpoint.Output].w, Stride: width})
	if r.options.link == nil {
		return logits, nil
	}
	return logits, r.options.link.gather(r.share.Rank, logits, func(parts [][]float32) {
		at := r.share.Vocab.Hi
		for _, part := range parts[1:] {
			own := len(part) / n
			for i := range n {
				copy(logits[i*width+at:], part[i*own:(i+1)*own])
			}
			at += own
		}
	})
}

// results computes the logits of the rows that someone asks for, and what is asked of them.
func (r *Runner) results(b *modelrunner.Batch) ([]modelrunner.SeqResult, error) {
	out := make([]modelrunner.SeqResult, len(b.Seqs))
	var rows []int
	var read []reading
	for i := range b.Seqs {
		s, res := &b.Seqs[i], &out[i]
		res.PromptLogprobs = make([][]sample.Logprob, len(s.Targets))
		for j, target := range s.Targets {
			rows = append(rows, s.Start+j)
			read = append(read, reading{1, func(sampler *sample.Sampler, logits []float32) {
				res.PromptLogprobs[j] = sampler.Logprobs(logits, target, s.PromptLogprobs, s.LogprobsMode)
			}})
		}
		switch {
		case s.Sampler == nil:
		case len(s.Drafts) > 0:
			for row := s.Start + s.Len - 1 - len(s.Drafts); row < s.Start+s.Len; row++ {
				rows = append(rows, row)
			}
			read = append(read, reading{len(s.Drafts) + 1, func(sampler *sample.Sampler, logits []float32) {
				var first sample.Drawn
				first, res.More, res.Err = sampler.Verify(s.Sampler, s.Drafts, logits)
				res.Token, res.Logprobs = first.Token, first.Logprobs
			}})
		default:
			rows = append(rows, s.Start+s.Len-1)
			read = append(read, reading{1, func(sampler *sample.Sampler, logits []float32) {
				res.Token, res.Logprobs, res.Err = sampler.Draw(s.Sampler, logits)
			}})
		}
	}
	if len(rows) == 0 {
		return out, nil
	}
	if r.share.First() {
		if err := modelrunner.Call(r.options.Hooks.Sample); err != nil {
			return nil, err
		}
	}
	for len(rows) > 0 {
		now, n := r.fitting(read)
		logits, err := r.project(rows[:n])
		if err != nil {
			return nil, err
		}
		if !r.share.First() {
			rows, read = rows[n:], read[len(now):]
			continue
		}
		r.pool.Run(len(now), 1, func(lo, hi int) {
			s := <-r.samplers
			defer func() { r.samplers <- s }()
			at := 0
			for _, earlier := range now[:lo] {
				at += earlier.rows
			}
			for _, u := range now[lo:hi] {
				end := at + u.rows
				u.do(s, logits[at*r.VocabSize:end*r.VocabSize:end*r.VocabSize])
				at = end
			}
		})
		rows, read = rows[n:], read[len(now):]
	}
	return out, nil
}

// reading is what is done with the logits of some rows, which belong together.
type reading struct {
	rows int
	do   func(s *sample.Sampler, logits []float32)
}

// fitting returns the first readings whose rows get their logits together, and how many rows they
// have: at least one reading.
func (r *Runner) fitting(read []reading) (now []reading, rows int) {
	most := min(logitRows, r.work.tokens)
	for i, u := range read {
		if rows+u.rows > most && i > 0 {
			return read[:i], rows
		}
		rows += u.rows
	}
	return read, rows
}

// embedWidth is the size of an embedding that may come in place of a token; 0 for an encoder, which
// takes none.
func (r *Runner) embedWidth() int {
	if r.Encoder {
		return 0
	}
	return r.HiddenSize
}

// check refuses a batch that would read or write where it must not: a fault of the scheduler's, not
// of a request.
func (r *Runner) check(b *modelrunner.Batch) error {
	switch {
	case r.work.x == nil && r.parts.Len() > 0:
		return fmt.Errorf("the weights are asleep: WakeWeights comes before Execute")
	case r.kv == nil:
		return fmt.Errorf("there is no KV cache: AllocateKV comes before, Close after Execute")
	}
	return b.Check(modelrunner.Limits{
		Tokens: r.work.tokens, Vocab: r.VocabSize, Positions: r.options.MaxModelLen,
		Blocks: r.blocks, BlockSize: r.options.BlockSize, Types: r.TypeVocab, Embeds: r.embedWidth(),
		Whole: r.Encoder || pooling.Type(r.Pooling).Whole(),
	})
}
