// Package sampler is a sampler suite as a user writes one: each test starts an engine on the
// bundled model, and each proves at its end that the engine is gone. The properties are those of
// vLLM's sampler tests.
package sampler

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/runner"
)

const story = "The lighthouse"

func start(t *testing.T) *runner.Runner {
	t.Helper()
	// many at a time fit on one GPU
	return runner.New(t, runner.Config{Model: fixtures.Bundled(), KVCacheBytes: 64 << 20})
}

func TestModelKnowsItsFacts(t *testing.T) {
	t.Parallel()
	r := start(t)
	for _, p := range fixtures.Prompts(25, 7) {
		if p.Answer == "" {
			continue
		}
		assert.Equal(t, p.Answer, r.GenerateGreedy(p.Text, 128).Text, "%s: %s", p.Kind, p.Text)
	}
}

func TestGreedyIsDeterministic(t *testing.T) {
	t.Parallel()
	r := start(t)
	first := r.GenerateGreedy(story, 32)
	assert.Equal(t, first, r.GenerateGreedy(story, 32))
}

func TestBatchEqualsSingle(t *testing.T) {
	t.Parallel()
	r := start(t)
	var reqs []engine.Request
	for i, p := range fixtures.Prompts(12, 3) {
		seed := int64(i)
		reqs = append(reqs, engine.Request{
			Prompt:   p.Text,
			Sampling: engine.SamplingParams{MaxTokens: 24, Temperature: float64(i%3) / 2, Seed: &seed},
		})
	}
	together := r.Generate(reqs...)
	for i, req := range reqs {
		assert.Equal(t, r.Generate(req)[0].Completions, together[i].Completions, "request %d", i)
	}
}

func TestSeeds(t *testing.T) {
	t.Parallel()
	r := start(t)
	text := func(seed int64) string {
		return r.GenerateWith(story, engine.SamplingParams{
			MaxTokens: 32, Temperature: 1,
			Seed: &seed,
		}).Completions[0].Text
	}
	seen := map[string]bool{}
	for seed := range int64(8) {
		first := text(seed)
		require.Equal(t, first, text(seed), "the same seed gives the same text")
		seen[first] = true
	}
	assert.Greater(t, len(seen), 4, "other seeds give other texts")
}

func TestTopKOneIsGreedy(t *testing.T) {
	t.Parallel()
	r := start(t)
	want := r.GenerateGreedy(story, 32).TokenIDs
	for seed := range int64(8) {
		got := r.GenerateWith(story, engine.SamplingParams{MaxTokens: 32, Temperature: 2, TopK: 1, Seed: &seed})
		assert.Equal(t, want, got.Completions[0].TokenIDs)
	}
}

func TestSeveralOutputs(t *testing.T) {
	t.Parallel()
	r := start(t)
	out := r.GenerateWith(story, engine.SamplingParams{MaxTokens: 24, Temperature: 1.5, N: 5})
	require.Len(t, out.Completions, 5)
	seen := map[string]bool{}
	for i, c := range out.Completions {
		assert.Equal(t, i, c.Index)
		seen[c.Text] = true
	}
	assert.Greater(t, len(seen), 1, "each output has its own draws")
}

func TestAllowedTokensOnly(t *testing.T) {
	t.Parallel()
	r := start(t)
	allowed := []int32{20, 21, 22}
	for _, temperature := range []float64{0, 1.5} {
		c := r.GenerateWith(story, engine.SamplingParams{
			MaxTokens: 16, Temperature: temperature,
			AllowedTokenIDs: allowed,
		}).Completions[0]
		for _, id := range c.TokenIDs {
			assert.Contains(t, allowed, id)
		}
	}
}

func TestLogitBiasForcesAndForbids(t *testing.T) {
	t.Parallel()
	r := start(t)
	likeliest := r.GenerateGreedy(story, 1).TokenIDs[0]
	forbid := r.GenerateWith(story, engine.SamplingParams{MaxTokens: 1, LogitBias: map[int32]float64{likeliest: -100}})
	assert.NotEqual(t, likeliest, forbid.Completions[0].TokenIDs[0])
	force := r.GenerateWith(story, engine.SamplingParams{
		MaxTokens: 4, IgnoreEOS: true,
		LogitBias: map[int32]float64{42: 100},
	})
	assert.Equal(t, []int32{42, 42, 42, 42}, force.Completions[0].TokenIDs)
}

func TestBadWordsDoNotComeOut(t *testing.T) {
	t.Parallel()
	r := start(t)
	plain := r.GenerateGreedy(story, 48).Text
	require.Contains(t, plain, "sea", "the story is about the sea")
	c := r.GenerateWith(story, engine.SamplingParams{MaxTokens: 48, BadWords: []string{"sea"}}).Completions[0]
	assert.NotContains(t, c.Text, " sea")
}

func TestNoEndlessRepetition(t *testing.T) {
	t.Parallel()
	r := start(t)
	mostOften := func(p engine.SamplingParams) int {
		p.MaxTokens, p.AllowedTokenIDs = 64, []int32{20, 21, 22, 23}
		counts := map[int32]int{}
		for _, id := range r.GenerateWith(story, p).Completions[0].TokenIDs {
			counts[id]++
		}
		return slices.Max(slices.Collect(maps.Values(counts)))
	}
	assert.Less(t, mostOften(engine.SamplingParams{FrequencyPenalty: 2}), mostOften(engine.SamplingParams{}))
	assert.Equal(t, 64-1, distinct2grams(r), "no pair of tokens comes twice")
}

func distinct2grams(r *runner.Runner) int {
	ids := r.GenerateWith("yes yes", engine.SamplingParams{
		MaxTokens: 64, IgnoreEOS: true,
		NoRepeatNGramSize: 2,
	}).Completions[0].TokenIDs
	pairs := map[[2]int32]bool{}
	for i := range ids[1:] {
		pairs[[2]int32{ids[i], ids[i+1]}] = true
	}
	return len(pairs)
}

func TestStops(t *testing.T) {
	t.Parallel()
	r := start(t)
	full := r.GenerateGreedy(story, 48)
	cut := r.GenerateWith(story, engine.SamplingParams{MaxTokens: 48, Stop: []string{"sea"}}).Completions[0]
	assert.Equal(t, llm.FinishStop, cut.FinishReason)
	assert.Equal(t, "sea", cut.StopReason)
	assert.Equal(t, full.Text[:strings.Index(full.Text, "sea")], cut.Text)
	kept := r.GenerateWith(story, engine.SamplingParams{
		MaxTokens: 48, Stop: []string{"sea"},
		IncludeStopInOutput: true,
	}).Completions[0]
	assert.Equal(t, cut.Text+"sea", kept.Text)
	byID := r.GenerateWith(story, engine.SamplingParams{MaxTokens: 48, StopTokenIDs: full.TokenIDs[4:5]}).Completions[0]
	assert.Equal(t, full.TokenIDs[:5], byID.TokenIDs, "the first of the listed ids ends the output and is part of it")
}

func TestEndOfSequence(t *testing.T) {
	t.Parallel()
	r := start(t)
	c := r.GenerateGreedy("2+3=", 16)
	assert.Equal(t, "5", c.Text)
	assert.Equal(t, llm.FinishStop, c.FinishReason)
	on := r.GenerateWith("2+3=", engine.SamplingParams{MaxTokens: 16, IgnoreEOS: true}).Completions[0]
	assert.Len(t, on.TokenIDs, 16)
	assert.Equal(t, llm.FinishLength, on.FinishReason)
	later := r.GenerateWith("2+3=", engine.SamplingParams{MaxTokens: 16, MinTokens: 8}).Completions[0]
	assert.GreaterOrEqual(t, len(later.TokenIDs), 8)
}

func TestLogprobs(t *testing.T) {
	t.Parallel()
	r := start(t)
	c := r.GenerateGreedyLogprobs(story, 12, 3)
	require.Len(t, c.Logprobs, 12)
	sum := 0.0
	for i, position := range c.Logprobs {
		require.Len(t, position, 3)
		assert.Equal(t, c.TokenIDs[i], position[0].TokenID, "the greedy token is the likeliest")
		assert.Equal(t, 1, position[0].Rank)
		assert.GreaterOrEqual(t, position[0].Logprob, position[1].Logprob)
		sum += float64(position[0].Logprob)
	}
	assert.InDelta(t, sum, c.CumulativeLogprob, 1e-5)
}

func TestPerplexityPrefersSense(t *testing.T) {
	t.Parallel()
	r := start(t)
	sense := r.PromptPerplexity("Once upon a time there was a brave girl named Mara who lived near the lighthouse.")
	noise := r.PromptPerplexity("lighthouse near Mara the girl who time brave a upon there named was lived Once.")
	assert.Less(t, sense, noise/4)
}

func TestBeamSearchIsAtLeastGreedy(t *testing.T) {
	t.Parallel()
	r := start(t)
	greedy := r.GenerateGreedyLogprobs(story, 8, 1)
	beams := r.BeamSearch(engine.Request{Prompt: story}, 4, 8)
	require.Len(t, beams, 4)
	assert.GreaterOrEqual(t, beams[0].Logprob, greedy.CumulativeLogprob-1e-6)
	assert.True(t, slices.IsSortedFunc(beams, func(a, b runner.Beam) int { return int(1e9 * (b.Score - a.Score)) }))
}

func TestStreamIsGenerate(t *testing.T) {
	t.Parallel()
	r := start(t)
	var text strings.Builder
	var ids []int32
	for d := range r.Stream(engine.Request{Prompt: story, Sampling: engine.SamplingParams{MaxTokens: 24}}) {
		text.WriteString(d.Text)
		ids = append(ids, d.TokenIDs...)
	}
	want := r.GenerateGreedy(story, 24)
	assert.Equal(t, want.Text, text.String())
	assert.Equal(t, want.TokenIDs, ids)
}
