package cudarunner

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
)

// driver is the least engine: it holds sequences, gives them blocks in a random order, and batches
// them.
type driver struct {
	t      testing.TB
	size   int // of a block
	most   int // tokens in a step
	free   []int32
	seqs   []*sequence
	blocks int
}

type sequence struct {
	*sample.State
	blocks         []int32
	computed       int
	promptLogprobs int
	want           int // tokens
}

func newDriver(tb testing.TB, size, blocks, most int) *driver {
	tb.Helper()
	d := &driver{t: tb, size: size, most: most, blocks: blocks}
	for _, b := range rand.New(rand.NewPCG(1, 2)).Perm(blocks) {
		d.free = append(d.free, int32(b))
	}
	return d
}

func (d *driver) add(prompt []int32, want int, p sample.Params) *sequence {
	s := &sequence{State: &sample.State{Params: p, Prompt: prompt}, promptLogprobs: -1, want: want}
	d.seqs = append(d.seqs, s)
	return s
}

// batch schedules up to chunk rows of every sequence that is not finished.
func (d *driver) batch(chunk int) (*modelrunner.Batch, []*sequence) {
	b := &modelrunner.Batch{}
	var in []*sequence
	for _, s := range d.seqs {
		total := len(s.Prompt) + len(s.Output)
		n := min(chunk, total-s.computed, d.most-len(b.Tokens))
		if len(s.Output) >= s.want || n == 0 {
			continue
		}
		seq := modelrunner.Seq{Start: len(b.Tokens), Len: n, Context: s.computed + n, PromptLogprobs: s.promptLogprobs}
		for len(s.blocks)*d.size < seq.Context {
			require.NotEmpty(d.t, d.free, "the test's KV cache is too small")
			s.blocks, d.free = append(s.blocks, d.free[0]), d.free[1:]
		}
		seq.Blocks = s.blocks
		at := func(i int) int32 {
			if i < len(s.Prompt) {
				return s.Prompt[i]
			}
			return s.Output[i-len(s.Prompt)]
		}
		for i := s.computed; i < seq.Context; i++ {
			b.Tokens = append(b.Tokens, at(i))
			b.Positions = append(b.Positions, int32(i))
			b.Slots = append(b.Slots, s.blocks[i/d.size]*int32(d.size)+int32(i%d.size))
			if s.promptLogprobs >= 0 && i+1 < len(s.Prompt) {
				seq.Targets = append(seq.Targets, s.Prompt[i+1])
			}
		}
		if s.computed = seq.Context; s.computed == total {
			seq.Sampler = s.State
		}
		b.Seqs = append(b.Seqs, seq)
		in = append(in, s)
	}
	return b, in
}

// generate runs all sequences to their end.
func (d *driver) generate(r modelrunner.Runner, chunk int) {
	d.t.Helper()
	for {
		b, seqs := d.batch(chunk)
		if len(seqs) == 0 {
			return
		}
		results, err := r.Execute(b)
		require.NoError(d.t, err)
		for i, res := range results {
			require.NoError(d.t, res.Err)
			if b.Seqs[i].Sampler != nil {
				seqs[i].Output = append(seqs[i].Output, res.Token)
			}
		}
	}
}

// compare runs all sequences on two runners, both on the tokens that the first one draws, and
// returns the largest difference of two log-probabilities.
func (d *driver) compare(a, b modelrunner.Runner, chunk int) float64 {
	d.t.Helper()
	worst := 0.0
	for {
		batch, seqs := d.batch(chunk)
		if len(seqs) == 0 {
			return worst
		}
		want, err := a.Execute(batch)
		require.NoError(d.t, err)
		got, err := b.Execute(batch)
		require.NoError(d.t, err)
		for i := range seqs {
			require.NoError(d.t, want[i].Err)
			require.NoError(d.t, got[i].Err)
			worst = max(worst, differ(d.t, want[i].Logprobs, got[i].Logprobs))
			for j := range want[i].PromptLogprobs {
				worst = max(worst, differ(d.t, want[i].PromptLogprobs[j], got[i].PromptLogprobs[j]))
			}
			if batch.Seqs[i].Sampler != nil {
				seqs[i].Output = append(seqs[i].Output, want[i].Token)
			}
		}
	}
}

func differ(tb testing.TB, want, got []sample.Logprob) float64 {
	tb.Helper()
	all := map[int32]float32{}
	for _, l := range want {
		all[l.Token] = l.Logprob
	}
	require.Len(tb, got, len(want))
	worst := 0.0
	for _, l := range got {
		w, ok := all[l.Token]
		require.True(tb, ok, "token %d", l.Token)
		d := math.Abs(float64(l.Logprob) - float64(w))
		if d != d {
			return math.Inf(1)
		}
		worst = max(worst, d)
	}
	return worst
}

// prompts are random ones of these lengths.
func prompts(vocab int, lengths ...int) [][]int32 {
	rng := rand.New(rand.NewPCG(3, 4))
	var all [][]int32
	for _, n := range lengths {
		p := make([]int32, n)
		for i := range p {
			p[i] = int32(rng.IntN(vocab))
		}
		all = append(all, p)
	}
	return all
}
