package cpurunner

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
)

// open makes a runner of a testdata checkpoint with this many KV blocks; the test's end closes it
// and checks that its ledger is empty.
func open(tb testing.TB, dir string, o Options, blocks int) *Runner {
	tb.Helper()
	ckpt, err := checkpoint.Open(dir)
	require.NoError(tb, err)
	o.Ledger = ledger.New(true)
	r, err := New(ckpt, o)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		require.NoError(tb, r.Close())
		require.Empty(tb, o.Ledger.Holdings())
	})
	require.NoError(tb, r.AllocateKV(blocks))
	return r
}

// driver is the least engine: it holds sequences, gives them blocks in a random order, and batches
// them.
type driver struct {
	t    testing.TB
	r    modelrunner.Runner
	cpus []*Runner // its ranks
	free []int32
	seqs []*sequence
}

type sequence struct {
	*sample.State
	blocks         []int32
	computed       int
	promptLogprobs int
	logprobs       [][]sample.Logprob
	prompt         [][]sample.Logprob
}

func newDriver(tb testing.TB, r modelrunner.Runner) *driver {
	tb.Helper()
	d := &driver{t: tb, r: r, cpus: cpusOf(r)}
	for _, b := range rand.New(rand.NewPCG(1, 2)).Perm(d.cpus[0].blocks) {
		d.free = append(d.free, int32(b))
	}
	return d
}

func cpusOf(r modelrunner.Runner) (list []*Runner) {
	if g, ok := r.(interface{ Ranks() []modelrunner.Rank }); ok {
		for _, rank := range g.Ranks() {
			list = append(list, rank.(*Runner))
		}
		return list
	}
	return []*Runner{r.(*Runner)}
}

func (d *driver) add(prompt []int32, p sample.Params) *sequence {
	s := &sequence{State: &sample.State{Params: p, Prompt: prompt}, promptLogprobs: -1}
	d.seqs = append(d.seqs, s)
	return s
}

// batch schedules up to chunk rows of every sequence.
func (d *driver) batch(chunk int) (*modelrunner.Batch, []*sequence) {
	b := &modelrunner.Batch{}
	size := d.cpus[0].options.BlockSize
	for _, s := range d.seqs {
		total := len(s.Prompt) + len(s.Output)
		n := min(chunk, total-s.computed, d.cpus[0].work.tokens-len(b.Tokens))
		seq := modelrunner.Seq{Start: len(b.Tokens), Len: n, Context: s.computed + n, PromptLogprobs: s.promptLogprobs}
		for len(s.blocks)*size < seq.Context {
			require.NotEmpty(d.t, d.free, "the test's KV cache is too small")
			s.blocks, d.free = append(s.blocks, d.free[0]), d.free[1:]
		}
		seq.Blocks = s.blocks
		all := append(append([]int32{}, s.Prompt...), s.Output...)
		for i := s.computed; i < seq.Context; i++ {
			b.Tokens = append(b.Tokens, all[i])
			b.Positions = append(b.Positions, int32(i))
			b.Slots = append(b.Slots, s.blocks[i/size]*int32(size)+int32(i%size))
			if s.promptLogprobs >= 0 && i+1 < len(s.Prompt) {
				seq.Targets = append(seq.Targets, all[i+1])
			}
		}
		if s.computed = seq.Context; s.computed == total {
			seq.Sampler = s.State
		}
		b.Seqs = append(b.Seqs, seq)
	}
	return b, d.seqs
}

// step runs one batch.
func (d *driver) step(chunk int) {
	b, seqs := d.batch(chunk)
	results, err := d.r.Execute(b)
	require.NoError(d.t, err)
	for i, res := range results {
		require.NoError(d.t, res.Err)
		s := seqs[i]
		s.prompt = append(s.prompt, res.PromptLogprobs...)
		if b.Seqs[i].Sampler != nil {
			s.Output = append(s.Output, res.Token)
			s.logprobs = append(s.logprobs, res.Logprobs)
		}
	}
}

// run steps until every sequence has n tokens out; those that have them sit and wait.
func (d *driver) run(chunk, n int) {
	done := d.seqs
	for len(d.seqs) > 0 {
		d.step(chunk)
		var left []*sequence
		for _, s := range d.seqs {
			if len(s.Output) < n {
				left = append(left, s)
			}
		}
		d.seqs = left
	}
	d.seqs = done
}

// logits runs a whole prompt, chunk by chunk, and returns the logits at each of its positions.
func (d *driver) logits(prompt []int32, chunk int) []float32 {
	var out []float32
	d.seqs = nil
	s := d.add(prompt, sample.Params{})
	for s.computed < len(prompt) {
		b, _ := d.batch(chunk)
		require.NoError(d.t, d.each(func(r *Runner) error {
			if err := errors.Join(r.check(b), r.forward(b)); err != nil {
				return err
			}
			for row := range b.Tokens {
				logits, err := r.project([]int{row})
				if err != nil {
					return err
				}
				if r.share.First() {
					out = append(out, logits...)
				}
			}
			return nil
		}))
	}
	d.free = append(d.free, s.blocks...)
	d.seqs = nil
	return out
}

// each does something on all ranks at once.
func (d *driver) each(do func(r *Runner) error) error {
	if len(d.cpus) > 1 {
		d.cpus[0].options.link.Reset()
		return eachRank(len(d.cpus), func(i int) error { return do(d.cpus[i]) })
	}
	return do(d.cpus[0])
}

// answer is what the runner makes of a prompt, greedily.
func answer(tb testing.TB, r modelrunner.Runner) []int32 {
	tb.Helper()
	d := newDriver(tb, r)
	s := d.add([]int32{206, 5, 7, 9}, sample.Params{TopP: 1, TypicalP: 1, RepetitionPenalty: 1, Logprobs: -1})
	d.run(64, 8)
	return s.Output
}
