package cpurunner

import (
	"math"
	"slices"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/pooling"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// poolingOwner is what the ledger has the pooler's memory under.
const poolingOwner = "pooling"

// pooler turns the hidden states of sequences that are complete into their vectors.
type pooler struct {
	vectors []float32 // [logitRows, HiddenSize]
	dense   []float32 // the same, through an encoder's pooler
	scores  []float32 // [logitRows, len(Labels)]
}

// makePooler allocates the pooler of a model that has another head than the output layer; on the
// first rank, which alone pools.
func (r *Runner) makePooler() error {
	r.pooler = nil
	if r.Head == checkpoint.OutputHead || !r.share.First() {
		return nil
	}
	n, labels := logitRows*r.HiddenSize, logitRows*len(r.Labels)
	memory, err := r.floats(poolingOwner, 2*n+labels)
	if err != nil {
		return err
	}
	r.pooler = &pooler{vectors: memory[:n:n], dense: memory[n : 2*n : 2*n], scores: memory[2*n:]}
	return nil
}

// poolAll computes what the sequences that this step completes are asked for.
func (r *Runner) poolAll(b *modelrunner.Batch) ([]modelrunner.SeqResult, error) {
	out := make([]modelrunner.SeqResult, len(b.Seqs))
	var complete []int
	for i := range b.Seqs {
		if b.Seqs[i].Pool {
			complete = append(complete, i)
		}
	}
	if len(complete) == 0 || !r.share.First() {
		return out, nil
	}
	if err := modelrunner.Call(r.options.Hooks.Sample); err != nil {
		return nil, err
	}
	for some := range slices.Chunk(complete, logitRows) {
		for i, seq := range some {
			r.reduce(i, &b.Seqs[seq])
		}
		rows, dim := r.finish(len(some))
		for i, seq := range some {
			out[seq].Pooled = slices.Clone(rows[i*dim : (i+1)*dim])
		}
	}
	return out, nil
}

// reduce puts the vector of a sequence at index i.
func (r *Runner) reduce(i int, s *modelrunner.Seq) {
	d := r.HiddenSize
	lo, hi := pooling.Type(r.Pooling).Rows(s.Len)
	rows := r.work.x[(s.Start+lo)*d : (s.Start+hi)*d]
	if !r.Encoder { // whose layers end with a norm
		h := r.work.h[:len(rows)]
		cpu.RMSNorm(r.pool, h, rows, r.outer.norm[checkpoint.FinalNorm], hi-lo, d, float32(r.RMSNormEps))
		rows = h
	}
	pooling.Reduce(r.pooler.vectors[i*d:(i+1)*d], rows)
}

// finish takes n vectors through the pooler of an encoder and the head, if the model has them, and
// returns rows of dim numbers.
func (r *Runner) finish(n int) (rows []float32, dim int) {
	rows, dim = r.pooler.vectors, r.HiddenSize
	if r.UsePooler {
		l := r.outer.linear[checkpoint.Pooler]
		cpu.MatMul(r.pool, r.pooler.dense[:n*dim], rows, n, l.w, l.bias)
		rows = r.pooler.dense
		for i, v := range rows[:n*dim] {
			rows[i] = float32(math.Tanh(float64(v)))
		}
	}
	if r.Head == checkpoint.ScoreHead {
		l := r.outer.linear[checkpoint.Score]
		cpu.MatMul(r.pool, r.pooler.scores[:n*len(r.Labels)], rows, n, l.w, l.bias)
		rows, dim = r.pooler.scores, len(r.Labels)
	}
	return rows, dim
}

// Pooler returns the pooler, for a check that it can be collected; nil when there is none.
func (r *Runner) Pooler() any {
	if r.pooler == nil {
		return nil
	}
	return r.pooler
}
