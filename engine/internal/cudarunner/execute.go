package cudarunner

import (
	"errors"
	"fmt"
	"math/bits"
	"runtime"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/pooling"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// samplerCount is how many rows the host samples at once.
var samplerCount = max(2, runtime.GOMAXPROCS(0))

// Execute implements [modelrunner.Runner].
func (r *Runner) Execute(b *modelrunner.Batch) ([]modelrunner.SeqResult, error) {
	if err := r.check(b); err != nil {
		return nil, fmt.Errorf("cudarunner: bad batch: %w", err)
	}
	if err := call(r.options.Hooks.Forward); err != nil {
		return nil, err
	}
	if r.Head != checkpoint.OutputHead {
		return r.poolAll(b)
	}
	out := resultsOf(b)
	if wants(b) {
		if err := call(r.options.Hooks.Sample); err != nil {
			return nil, err
		}
	}
	if len(b.Tokens) <= r.work.tokens {
		if err := r.execute(b, out); err != nil {
			return nil, err
		}
		return out, nil
	}
	for _, c := range passesOf(b, r.work.tokens) {
		results := resultsOf(&c.Batch)
		if err := r.execute(&c.Batch, results); err != nil {
			return nil, err
		}
		c.into(out, results)
	}
	return out, nil
}

// resultsOf makes room for a batch's results.
func resultsOf(b *modelrunner.Batch) []modelrunner.SeqResult {
	out := make([]modelrunner.SeqResult, len(b.Seqs))
	for i, s := range b.Seqs {
		out[i].PromptLogprobs = make([][]sample.Logprob, len(s.Targets))
	}
	return out
}

// execute runs a step of rows that there is room for.
func (r *Runner) execute(b *modelrunner.Batch, out []modelrunner.SeqResult) error {
	rows := r.feed.wantedOf(b)
	var s *step
	n := min(len(rows), logitRows)
	err := r.worker.Do(func() error {
		var err error
		if s, err = r.compute(b, rows); err != nil || n == 0 {
			return errors.Join(err, r.stream.Synchronize())
		}
		return r.drawer.fetch(s, rows[:n])
	})
	for at := 0; err == nil && n > 0; {
		r.drawer.results(b, rows[at:at+n], out)
		if at += n; at == len(rows) {
			break
		}
		n = min(len(rows)-at, logitRows)
		err = r.worker.Do(func() error { // the next rows' logits
			if err := r.sampleRows(s, at, n); err != nil {
				return err
			}
			return r.drawer.fetch(s, rows[at:at+n])
		})
	}
	return err
}

// compute queues a step up to the tokens of its first rows.
func (r *Runner) compute(b *modelrunner.Batch, rows []wanted) (*step, error) {
	n, context, blocks := len(b.Tokens), 0, 1
	s := &step{tokens: n, decode: len(b.Seqs) == n, splits: 1, tiles: tilesOf(b)}
	for _, q := range b.Seqs {
		context, blocks = max(context, q.Context), max(blocks, len(q.Blocks))
	}
	for i := range r.ropes {
		if err := r.ropes[i].fill(context); err != nil {
			return nil, err
		}
	}
	s.maxTable = max(16, 1<<bits.Len(uint(blocks-1)))
	graphed := s.decode && n <= logitRows && len(rows) == n
	seqs := len(b.Seqs)
	if graphed {
		s.tokens = bucket(n, r.work.tokens)
		seqs = s.tokens
	}
	s.splits = r.attentionSplits(s.tokens, context)
	var err error
	if s.in, err = r.feed.upload(b, rows, s.tokens, seqs, s.maxTable); err != nil {
		return nil, err
	}
	if s.decode {
		s.in.seqs = 0
	}
	s.sifted = s.in.rules != 0
	if graphed {
		return s, r.graphs.decode(s)
	}
	if err := r.forward(s); err != nil || len(rows) == 0 {
		return s, err
	}
	if s.pending > 0 { // the rows that are wanted may be wanted twice: the residual stream is completed once
		if err := r.normalize(s, r.norm, s.tokens, 0, r.work.h, r.mode(s.tokens)); err != nil {
			return nil, err
		}
	}
	return s, r.sampleRows(s, 0, min(len(rows), logitRows))
}

// sampleRows computes logits and draws of the rows [at, at+n) that are wanted.
func (r *Runner) sampleRows(s *step, at, n int) error {
	if at > 0 { // the first rank has read the logits before these
		if err := r.group.meet(); err != nil {
			return err
		}
	}
	if err := r.project(s, n, s.in.rows+cuda.DevicePtr(4*at)); err != nil {
		return err
	}
	t := *s
	t.in.draws += cuda.DevicePtr(4 * drawWords * at)
	t.in.rules += cuda.DevicePtr(4 * ruleWords * at)
	return r.drawer.draw(&t, n)
}

// check refuses a batch that would read or write where it must not: a fault of the scheduler's, not
// of a request.
func (r *Runner) check(b *modelrunner.Batch) error {
	switch {
	case r.kv == nil:
		return errors.New("there is no KV cache: AllocateKV comes before, Close after Execute")
	case r.weights == nil || r.work.memory == nil:
		return errors.New("the weights are asleep")
	case len(b.Tokens) == 0:
		return errors.New("no tokens")
	}
	return b.Check(modelrunner.Limits{
		Tokens: r.options.MaxNumBatchedTokens, Vocab: r.VocabSize, Positions: r.options.MaxModelLen, Blocks: r.blocks,
		BlockSize: r.options.BlockSize, Whole: pooling.Type(r.Pooling).Whole(),
	})
}
