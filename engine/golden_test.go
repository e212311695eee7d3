package engine

import (
	"sync"
	"testing"

	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every way to schedule the same requests gives the tokens that transformers gives for each alone.
func TestGreedyEqualsTransformers(t *testing.T) {
	g := loadGolden(t)
	for _, tc := range []struct {
		name  string
		cfg   Config
		check func(t *testing.T, s Stats)
	}{
		{"defaults", Config{}, nil},
		{"no prefix cache", Config{DisablePrefixCache: true}, func(t *testing.T, s Stats) {
			assert.Zero(t, s.PrefixHits)
		}},
		{"chunks of 7 tokens", Config{MaxNumBatchedTokens: 7}, func(t *testing.T, s Stats) {
			assert.Greater(t, s.Steps, int64(80))
		}},
		{"whole prompts only", Config{DisableChunkedPrefill: true, MaxModelLen: 160, MaxNumBatchedTokens: 160}, nil},
		{"one sequence at a time", Config{MaxNumSeqs: 1}, func(t *testing.T, s Stats) {
			assert.GreaterOrEqual(t, s.Steps, int64(8*40))
		}},
		{"blocks of one token", Config{BlockSize: 1}, nil},
		{"blocks of 32 tokens", Config{BlockSize: 32}, nil},
		// 320 of the 558 tokens fit: sequences lose their blocks and are computed again.
		{"preemption", Config{MaxModelLen: 160, KVCacheBytes: 20 * 16 * 1024}, func(t *testing.T, s Stats) {
			assert.Positive(t, s.Preemptions)
		}},
		{"one thread", Config{Threads: 1}, nil},
		{"two devices", Config{TensorParallel: 2, Device: "cpu"}, nil},
		{"four devices, chunks, preemption", Config{
			// 2 KV heads: each is on two of them
			TensorParallel: 4, Device: "cpu", MaxNumBatchedTokens: 9, MaxModelLen: 160,
			KVCacheBytes: 20 * 16 * 1024 / 2,
		}, func(t *testing.T, s Stats) { assert.Positive(t, s.Preemptions) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := openTiny(t, tc.cfg)
			outs, err := e.Generate(t.Context(), g.requests()...)
			require.NoError(t, err)
			for i, p := range g.Prompts {
				assert.Equal(t, p.Greedy, outs[i].Completions[0].TokenIDs, "prompt %d", i)
				assert.Equal(t, llm.FinishLength, outs[i].Completions[0].FinishReason)
				assert.Equal(t, p.IDs, outs[i].PromptTokenIDs)
			}
			s := e.Stats()
			assert.Equal(t, Stats{
				State: Running, Devices: max(tc.cfg.TensorParallel, 1), Finished: 8, Preemptions: s.Preemptions,
				Steps: s.Steps, PromptTokens: 238, OutputTokens: 320,
				KVBlocks: s.KVBlocks, KVBlocksCached: s.KVBlocksCached, PrefixQueries: s.PrefixQueries,
				PrefixHits: s.PrefixHits,
			}, s, "everything is free again")
			if tc.check != nil {
				tc.check(t, s)
			}
			// A second round finds the prompts in the prefix cache.
			outs, err = e.Generate(t.Context(), g.requests()...)
			require.NoError(t, err)
			for i, p := range g.Prompts {
				assert.Equal(t, p.Greedy, outs[i].Completions[0].TokenIDs, "prompt %d, again", i)
			}
			if !tc.cfg.DisablePrefixCache && tc.cfg.KVCacheBytes == 0 {
				size := e.Config().BlockSize
				last := len(g.Prompts) - 1
				assert.Equal(t, (len(g.Prompts[last].IDs)-1)/size*size, outs[last].CachedTokens)
			}
		})
	}
}

func TestLogprobsEqualTransformers(t *testing.T) {
	g := loadGolden(t)
	e := openTiny(t, Config{})
	for _, p := range g.Prompts {
		c := one(t, e, p.IDs, SamplingParams{MaxTokens: len(p.Greedy), IgnoreEOS: true, Logprobs: ptr(5)})
		sum := 0.0
		for i, want := range p.Logprobs {
			assert.Equal(t, p.Greedy[i], c.Logprobs[i][0].TokenID)
			assert.Equal(t, 1, c.Logprobs[i][0].Rank)
			assert.InDelta(t, want, c.Logprobs[i][0].Logprob, 1e-4)
			sum += float64(c.Logprobs[i][0].Logprob)
		}
		assert.InDelta(t, sum, c.CumulativeLogprob, 1e-9)
		for i, id := range p.Top5 {
			assert.Equal(t, id, c.Logprobs[0][i].TokenID)
		}
	}
}

// The log-probability of a prompt's token is that of the same token as an output; a prefix hit and
// chunks do not change it.
func TestPromptLogprobs(t *testing.T) {
	g := loadGolden(t)
	for name, cfg := range map[string]Config{"one chunk": {}, "chunks of 5": {MaxNumBatchedTokens: 5}} {
		t.Run(name, func(t *testing.T) {
			e := openTiny(t, cfg)
			p := g.Prompts[5]
			whole := append(append([]int32(nil), p.IDs...), p.Greedy...)
			for range 2 { // the second finds everything cached, and must not use it
				outs, err := e.Generate(t.Context(), Request{
					PromptTokenIDs: whole,
					Sampling:       SamplingParams{MaxTokens: 1, PromptLogprobs: ptr(0)},
				})
				require.NoError(t, err)
				lps := outs[0].PromptLogprobs
				require.Len(t, lps, len(whole))
				assert.Nil(t, lps[0])
				for i, want := range p.Logprobs {
					at := lps[len(p.IDs)+i]
					require.NotEmpty(t, at)
					assert.Equal(t, p.Greedy[i], at[len(at)-1].TokenID)
					assert.InDelta(t, want, at[len(at)-1].Logprob, 1e-4)
				}
				assert.Zero(t, outs[0].CachedTokens)
			}
		})
	}
}

func TestStopsAtEOSLikeTransformers(t *testing.T) {
	g := loadGolden(t)
	e := openTiny(t, Config{})
	for _, s := range g.EOSStops {
		c := one(t, e, g.Prompts[s.Prompt].IDs, SamplingParams{MaxTokens: 40, StopTokenIDs: []int32{s.EOS}})
		assert.Equal(t, s.Out, c.TokenIDs)
		assert.Equal(t, llm.FinishStop, c.FinishReason)
		assert.Equal(t, itoa(s.EOS), c.StopReason)
	}
}

func TestProcessorsEqualTransformers(t *testing.T) {
	g := loadGolden(t)
	e := openTiny(t, Config{})
	for _, s := range g.Processors {
		p := SamplingParams{
			MaxTokens: 40, RepetitionPenalty: s.KW.RepetitionPenalty, NoRepeatNGramSize: s.KW.NoRepeatNGram,
			MinTokens: s.KW.MinNewTokens,
			IgnoreEOS: true,
		}
		if s.KW.EOS != nil {
			p.StopTokenIDs = []int32{*s.KW.EOS}
		}
		assert.Equal(t, s.Out, one(t, e, g.Prompts[s.Prompt].IDs, p).TokenIDs, "%+v", s.KW)
	}
}

// A seeded request gives the same output alone, in a batch, after a preemption and in chunks; n
// outputs differ from each other.
func TestSeedsDoNotDependOnTheBatch(t *testing.T) {
	g := loadGolden(t)
	random := SamplingParams{
		MaxTokens: 40, Temperature: 1, TopP: 0.95, TopK: 100, Seed: ptr(int64(7)), N: 3,
		IgnoreEOS: true,
	}
	run := func(cfg Config, alone bool) []Output {
		e := openTiny(t, cfg)
		reqs := g.requests()
		for i := range reqs {
			if i%2 == 0 {
				reqs[i].Sampling = random
			}
		}
		if !alone {
			outs, err := e.Generate(t.Context(), reqs...)
			require.NoError(t, err)
			return outs
		}
		var outs []Output
		for _, r := range reqs {
			o, err := e.Generate(t.Context(), r)
			require.NoError(t, err)
			outs = append(outs, o...)
		}
		return outs
	}
	want := run(Config{}, true)
	for i := 0; i < len(want); i += 2 {
		c := want[i].Completions
		require.Len(t, c, 3)
		assert.NotEqual(t, c[0].TokenIDs, c[1].TokenIDs)
		assert.NotEqual(t, c[1].TokenIDs, c[2].TokenIDs)
	}
	for _, cfg := range []Config{{}, {MaxNumBatchedTokens: 9}, {MaxModelLen: 160, KVCacheBytes: 20 * 16 * 1024}} {
		got := run(cfg, false)
		for i := range want {
			assert.Equal(t, want[i].Completions, got[i].Completions)
		}
	}
}

// Requests without a seed differ from each other, and an engine with the same Config.Seed repeats
// them.
func TestUnseededRequests(t *testing.T) {
	run := func(seed int64) [2][]int32 {
		e := openTiny(t, Config{Seed: seed})
		p := SamplingParams{Temperature: 1, MaxTokens: 20, IgnoreEOS: true}
		return [2][]int32{one(t, e, ids(5, 0), p).TokenIDs, one(t, e, ids(5, 0), p).TokenIDs}
	}
	a, b, c := run(1), run(1), run(2)
	assert.NotEqual(t, a[0], a[1])
	assert.Equal(t, a, b)
	assert.NotEqual(t, a[0], c[0])
}

func TestConcurrentCallersGetTheirOwn(t *testing.T) {
	g := loadGolden(t)
	e := openTiny(t, Config{})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			p := g.Prompts[i%len(g.Prompts)]
			outs, err := e.Generate(t.Context(), g.requests()[i%len(g.Prompts)])
			if assert.NoError(t, err) {
				assert.Equal(t, p.Greedy, outs[0].Completions[0].TokenIDs)
			}
		})
	}
	wg.Wait()
}
