package scheduler

import (
	"slices"
	"testing"

	"github.com/enginetest/enginetest/engine/internal/kvcache"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/engine/internal/scheduler/fakerunner"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const vocab = 64

// rig is a scheduler with a runner that checks every step.
type rig struct {
	*Scheduler
	cache    *kvcache.Cache
	run      *fakerunner.Runner
	steps    []int // tokens of each step
	promptLP map[*Seq]map[int]sample.Logprob
}

func newRig(t require.TestingT, cfg Config, blocks, blockSize int, prefix bool) *rig {
	cache := kvcache.New(blocks, blockSize, prefix)
	r := &rig{
		Scheduler: New(cfg, cache), cache: cache, run: &fakerunner.Runner{BlockSize: blockSize, Vocab: vocab},
		promptLP: map[*Seq]map[int]sample.Logprob{},
	}
	require.NoError(t, r.run.AllocateKV(blocks))
	return r
}

func seq(prompt []int32, output int) *Seq {
	q := &Seq{Tokens: slices.Clone(prompt), PromptLen: len(prompt), MaxLen: len(prompt) + output, PromptLogprobs: -1}
	q.Sampler = &sample.State{Params: sample.Params{Logprobs: -1}, Prompt: prompt}
	return q
}

func ids(n, first int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((first + i) % vocab)
	}
	return out
}

// step runs one step; false when there was nothing to do.
func (r *rig) step(t require.TestingT) bool {
	b, seqs := r.Schedule()
	if b == nil {
		return false
	}
	r.steps = append(r.steps, len(b.Tokens))
	require.LessOrEqual(t, len(b.Tokens), r.cfg.MaxTokens)
	require.LessOrEqual(t, len(seqs), r.cfg.MaxSeqs)
	res, err := r.run.Execute(b)
	require.NoError(t, err)
	for i, q := range seqs {
		first := r.Computed(q)
		for j, lp := range res[i].PromptLogprobs {
			if r.promptLP[q] == nil {
				r.promptLP[q] = map[int]sample.Logprob{}
			}
			r.promptLP[q][first+j+1] = lp[0]
		}
		if b.Seqs[i].Sampler == nil {
			continue
		}
		q.Tokens = append(q.Tokens, res[i].Token)
		q.Sampler.Output = q.Tokens[q.PromptLen:]
		if len(q.Tokens) == q.MaxLen {
			r.Finish(q)
		}
	}
	return true
}

func (r *rig) drain(t require.TestingT) {
	for n := 0; r.step(t); n++ {
		require.Less(t, n, 100_000, "the scheduler makes no progress")
	}
	assert.Zero(t, r.cache.Stats().Used)
	assert.Zero(t, r.Running()+r.Waiting())
}

// want is what a sequence gives when it runs alone.
func want(r *rig, prompt []int32, output int) []int32 {
	q := seq(prompt, output)
	for len(q.Tokens) < q.MaxLen {
		q.Tokens = append(q.Tokens, r.run.Next(q.Tokens, nil))
	}
	return q.Tokens
}

func TestSteps(t *testing.T) {
	for _, tc := range []struct {
		name  string
		cfg   Config
		seqs  []*Seq
		steps []int
	}{
		{
			"prompt, then one token a step",
			Config{MaxSeqs: 4, MaxTokens: 64, Chunked: true},
			[]*Seq{seq(ids(5, 0), 3)},
			[]int{5, 1, 1},
		},
		{
			"two prompts share a step",
			Config{MaxSeqs: 4, MaxTokens: 64, Chunked: true},
			[]*Seq{seq(ids(5, 0), 2), seq(ids(7, 9), 2)},
			[]int{12, 2},
		},
		{
			"a long prompt in chunks",
			Config{MaxSeqs: 4, MaxTokens: 8, Chunked: true},
			[]*Seq{seq(ids(20, 0), 2)},
			[]int{8, 8, 4, 1},
		},
		{
			"a running sequence comes before a chunk",
			Config{MaxSeqs: 4, MaxTokens: 8, Chunked: true},
			[]*Seq{seq(ids(6, 0), 3), seq(ids(10, 9), 2)},
			[]int{8, 8, 2, 1},
		},
		{
			"whole prompts only: the second waits for a step with room",
			Config{MaxSeqs: 4, MaxTokens: 8, Chunked: false},
			[]*Seq{seq(ids(6, 0), 2), seq(ids(7, 9), 2)},
			[]int{6, 8, 1},
		},
		{
			"max seqs",
			Config{MaxSeqs: 1, MaxTokens: 64, Chunked: true},
			[]*Seq{seq(ids(5, 0), 2), seq(ids(7, 9), 1)},
			[]int{5, 1, 7},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.cfg, 64, 4, true)
			var expect [][]int32
			for _, q := range tc.seqs {
				expect = append(expect, want(r, q.Tokens, q.MaxLen-q.PromptLen))
				require.NoError(t, r.Add(q))
			}
			r.drain(t)
			assert.Equal(t, tc.steps, r.steps)
			for i, q := range tc.seqs {
				assert.Equal(t, expect[i], q.Tokens)
			}
		})
	}
}

func TestPreemptionChangesNoOutput(t *testing.T) {
	r := newRig(t, Config{MaxSeqs: 8, MaxTokens: 64, Chunked: true}, 8, 4, true) // 32 tokens; three sequences of 20
	seqs := []*Seq{seq(ids(6, 0), 14), seq(ids(6, 20), 14), seq(ids(6, 40), 14)}
	for _, q := range seqs {
		require.NoError(t, r.Add(q))
	}
	r.drain(t)
	assert.Positive(t, r.Preemptions())
	for _, q := range seqs {
		assert.Equal(t, want(r, q.Tokens[:6], 14), q.Tokens)
	}
}

func TestTooBig(t *testing.T) {
	r := newRig(t, Config{MaxSeqs: 8, MaxTokens: 64, Chunked: true}, 4, 4, true)
	var big *TooBigError
	require.ErrorAs(t, r.Add(seq(ids(10, 0), 7)), &big)
	assert.Equal(t, TooBigError{Tokens: 17, Capacity: 16}, *big)
	require.NoError(t, r.Add(seq(ids(10, 0), 6)))
	r.drain(t)
}

// Siblings wait for the one that computes their prompt, and then need only its last block.
func TestFollowersShareThePrompt(t *testing.T) {
	r := newRig(t, Config{MaxSeqs: 8, MaxTokens: 64, Chunked: true}, 64, 4, true)
	leader := seq(ids(9, 0), 4)
	require.NoError(t, r.Add(leader))
	for range 3 {
		q := seq(ids(9, 0), 4)
		q.Leader = leader
		require.NoError(t, r.Add(q))
	}
	r.drain(t)
	assert.Equal(t, []int{9, 1 + 3*1, 4, 4, 3}, r.steps)
	assert.Equal(t, 3*8, r.cache.Stats().Hits)
}

// A leader that goes before its prompt is done must not hold its followers back.
func TestFollowersOutliveTheLeader(t *testing.T) {
	r := newRig(t, Config{MaxSeqs: 8, MaxTokens: 4, Chunked: true}, 64, 4, true)
	leader, q := seq(ids(9, 0), 4), seq(ids(9, 0), 4)
	q.Leader = leader
	require.NoError(t, r.Add(leader))
	require.NoError(t, r.Add(q))
	require.True(t, r.step(t))
	r.Finish(leader)
	r.Finish(leader)
	r.drain(t)
	assert.Equal(t, want(r, ids(9, 0), 4), q.Tokens)
}

// Prompt log-probabilities come for every position, in chunks, after a preemption in the middle of
// the prompt, and with the prefix cached.
func TestPromptLogprobs(t *testing.T) {
	r := newRig(t, Config{MaxSeqs: 8, MaxTokens: 4, Chunked: true}, 16, 4, true)
	warm := seq(ids(12, 0), 2)
	require.NoError(t, r.Add(warm))
	r.drain(t)
	q := seq(ids(12, 0), 2)
	q.PromptLogprobs = 0
	require.NoError(t, r.Add(q))
	require.True(t, r.step(t))
	r.preempt(q)
	r.drain(t)
	assert.Zero(t, q.CachedTokens)
	require.Len(t, r.promptLP[q], 11)
	for p := 1; p < 12; p++ {
		assert.Equal(t, ids(12, 0)[p], r.promptLP[q][p].Token)
		assert.InDelta(t, -float32(r.run.Next(ids(12, 0)[:p], nil)), r.promptLP[q][p].Logprob, 0)
	}
	assert.Equal(t, warm.Tokens, q.Tokens)
}

// Whatever the sizes, the budget and the order of arrivals and departures: each sequence gives what
// it returns alone.
func TestAnyScheduleGivesTheSameOutput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 5).Draw(t, "block size")
		blocks := rapid.IntRange(4, 24).Draw(t, "blocks")
		cfg := Config{MaxSeqs: rapid.IntRange(1, 6).Draw(t, "max seqs"), Chunked: rapid.Bool().Draw(t, "chunked")}
		cfg.MaxTokens = rapid.IntRange(1, 40).Draw(t, "max tokens")
		if !cfg.Chunked {
			cfg.MaxTokens = max(cfg.MaxTokens, blocks*size)
		}
		r := newRig(t, cfg, blocks, size, rapid.Bool().Draw(t, "prefix"))
		var all []*Seq
		cut := map[*Seq]bool{}
		for range rapid.IntRange(1, 12).Draw(t, "sequences") {
			prompt := rapid.SliceOfN(rapid.Int32Range(0, 2), 1, blocks*size-1).Draw(t, "prompt")
			q := seq(prompt, rapid.IntRange(1, blocks*size-len(prompt)).Draw(t, "output"))
			q.PromptLogprobs = rapid.IntRange(-1, 0).Draw(t, "prompt logprobs")
			q.Client = rapid.IntRange(0, 3).Draw(t, "client")
			if len(all) > 0 && rapid.IntRange(0, 3).Draw(t, "fork") == 0 {
				q.Leader = all[len(all)-1]
			}
			require.NoError(t, r.Add(q))
			all = append(all, q)
			for range rapid.IntRange(0, 3).Draw(t, "steps") {
				r.step(t)
			}
			if rapid.IntRange(0, 5).Draw(t, "abort") == 0 {
				victim := rapid.SampledFrom(all).Draw(t, "victim")
				cut[victim] = len(victim.Tokens) < victim.MaxLen
				r.Finish(victim)
			}
		}
		r.drain(t)
		for _, q := range all {
			expect := want(r, q.Tokens[:q.PromptLen], q.MaxLen-q.PromptLen)
			if cut[q] {
				expect = expect[:len(q.Tokens)]
			} else if q.PromptLogprobs >= 0 {
				require.Len(t, r.promptLP[q], q.PromptLen-1)
			}
			require.Equal(t, expect, q.Tokens)
		}
	})
}
