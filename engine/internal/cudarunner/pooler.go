package cudarunner

import (
	"errors"
	"math"
	"slices"
	"unsafe"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/pooling"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// poolingOwner is what the ledger has the pooler's memory under.
const poolingOwner = "pooling"

// pooler turns the hidden states of sequences that are complete into their vectors, on the host: a
// row for each sequence is not worth a kernel. Its memory is pinned, so that rows come by themselves.
type pooler struct {
	memory *cuda.Pinned
	rows   []float32 // [logitRows, HiddenSize], padded
	norm   []float32 // [HiddenSize]
	score  []float32 // [len(Labels), HiddenSize]
}

// flat is a matrix that the kernels do not read, as float32 row by row.
func (b *binder) flat(w checkpoint.Weight) int64 {
	shape := b.from.Config.Shape(w)
	src := b.tensor(w.Name, shape...)
	n := shape[0] * shape[1]
	src.Shape = []int{n}
	at := b.take(4 * int64(roundUp(n, 32)))
	b.vectors = append(b.vectors, vector{src: src, at: at, step: 8})
	return at
}

// makePooler makes the pooler of a model that has another head than the output layer, on the first
// rank, which alone pools. What it needs of the weights comes from the device, where they are after
// each kind of sleep.
func (r *Runner) makePooler() error {
	r.pooler = nil
	if r.Head == checkpoint.OutputHead || !r.share.First() {
		return nil
	}
	stride, hidden, labels := r.work.h.kb*32, r.HiddenSize, 0
	if r.Head == checkpoint.ScoreHead {
		labels = len(r.Labels)
	}
	bytes := 4 * int64(logitRows*stride+hidden+labels*hidden)
	if hook := r.options.Hooks.Allocate; hook != nil {
		if err := hook(poolingOwner, bytes); err != nil {
			return err
		}
	}
	m, err := r.worker.AllocPinned(poolingOwner, bytes)
	if err != nil {
		return err
	}
	r.own(poolingOwner, bytes, m.Free)
	p := &pooler{memory: m}
	at := int64(0)
	view := func(n int) []float32 {
		if n == 0 {
			return nil
		}
		s := unsafe.Slice((*float32)(unsafe.Pointer(&m.Bytes()[at])), n)
		at += 4 * int64(n)
		return s
	}
	p.rows, p.norm, p.score = view(logitRows*stride), view(hidden), view(labels*hidden)
	n := int64(4 * logitRows * stride)
	if err := r.weights.CopyToAsync(m, n, r.norm, 4*int64(hidden), r.stream); err != nil {
		return err
	}
	if labels > 0 {
		err = r.weights.CopyToAsync(m, n+4*int64(hidden), r.score, 4*int64(labels*hidden), r.stream)
	}
	r.pooler = p
	return err
}

// Pooler returns the pooler, for a check that it can be collected; nil when there is none.
func (r *Runner) Pooler() any {
	if r.pooler == nil {
		return nil
	}
	return r.pooler
}

// poolRow is a row of a pass that a sequence's vector is made of.
type poolRow struct{ row, seq int }

// poolAll runs a step of a model that pools.
func (r *Runner) poolAll(b *modelrunner.Batch) ([]modelrunner.SeqResult, error) {
	out := make([]modelrunner.SeqResult, len(b.Seqs))
	complete := slices.ContainsFunc(b.Seqs, func(s modelrunner.Seq) bool { return s.Pool })
	if complete && r.share.First() {
		if err := call(r.options.Hooks.Sample); err != nil {
			return nil, err
		}
	}
	sums, counts := make([][]float64, len(b.Seqs)), make([]int, len(b.Seqs))
	for _, p := range passesOf(b, r.work.tokens) {
		if err := r.poolPass(b, &p, func(row []float32, seq int) {
			if sums[seq] == nil {
				sums[seq] = make([]float64, r.HiddenSize)
			}
			counts[seq]++
			r.addNormalized(sums[seq], row)
		}); err != nil {
			return nil, err
		}
	}
	if r.share.First() {
		for i, s := range b.Seqs {
			if s.Pool {
				out[i].Pooled = r.vector(sums[i], counts[i])
			}
		}
	}
	return out, nil
}

// poolPass computes some rows of a batch and hands over those that are pooled.
func (r *Runner) poolPass(b *modelrunner.Batch, p *pass, take func(row []float32, seq int)) error {
	var rows []poolRow
	for j, s := range p.Seqs {
		whole, first := &b.Seqs[p.seqs[j]], p.first[j]
		lo, hi := pooling.Type(r.Pooling).Rows(whole.Len)
		for k := max(lo, first); whole.Pool && k < min(hi, first+s.Len); k++ {
			rows = append(rows, poolRow{s.Start + k - first, p.seqs[j]})
		}
	}
	err := r.worker.Do(func() error {
		s, err := r.compute(&p.Batch, nil)
		if err == nil && s.pending > 0 { // the residual stream is completed
			err = r.normalize(s, r.norm, s.tokens, 0, r.work.h, r.mode(s.tokens))
		}
		return errors.Join(err, r.stream.Synchronize())
	})
	if err != nil || !r.share.First() {
		return err
	}
	stride := r.work.h.kb * 32
	for some := range slices.Chunk(rows, logitRows) {
		if err := r.worker.Do(func() error { return r.fetchRows(some, stride) }); err != nil {
			return err
		}
		for i, row := range some {
			take(r.pooler.rows[i*stride:i*stride+r.HiddenSize], row.seq)
		}
	}
	return nil
}

// fetchRows brings rows of the residual stream to the host, and waits.
func (r *Runner) fetchRows(rows []poolRow, stride int) error {
	bytes := int64(4 * stride)
	for i, row := range rows {
		err := r.work.memory.CopyToAsync(r.pooler.memory, int64(i)*bytes, r.work.x+int64(row.row)*bytes, bytes, r.stream)
		if err != nil {
			return err
		}
	}
	return r.stream.Synchronize()
}

// addNormalized adds a row of the residual stream, normalized, to sum.
func (r *Runner) addNormalized(sum []float64, row []float32) {
	squares := 0.0
	for _, v := range row {
		squares += float64(v) * float64(v)
	}
	scale := 1 / math.Sqrt(squares/float64(len(row))+r.RMSNormEps)
	for i, v := range row {
		sum[i] += float64(v) * scale * float64(r.pooler.norm[i])
	}
}

// vector is what n rows give: their mean, or the scores of the classes.
func (r *Runner) vector(sum []float64, n int) []float32 {
	mean := make([]float32, len(sum))
	for i, v := range sum {
		mean[i] = float32(v / float64(n))
	}
	if r.Head != checkpoint.ScoreHead {
		return mean
	}
	scores := make([]float32, len(r.Labels))
	for i := range scores {
		dot := 0.0
		for j, w := range r.pooler.score[i*len(mean) : (i+1)*len(mean)] {
			dot += float64(w) * float64(mean[j])
		}
		scores[i] = float32(dot)
	}
	return scores
}
