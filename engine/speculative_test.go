package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/llm"
)

// shallow is the bundled model without its last layers: it agrees with it now and then.
func shallow(t *testing.T, layers int) string {
	t.Helper()
	dir := t.TempDir()
	files, err := os.ReadDir(fixtures.Bundled())
	require.NoError(t, err)
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(fixtures.Bundled(), f.Name()))
		require.NoError(t, err)
		if f.Name() == "config.json" {
			var c map[string]any
			require.NoError(t, json.Unmarshal(data, &c))
			require.Greater(t, c["num_hidden_layers"], float64(layers))
			c["num_hidden_layers"] = layers
			data, err = json.Marshal(c)
			require.NoError(t, err)
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name()), data, 0o600))
	}
	return dir
}

// speculations are the ways to propose tokens: well, now and then, hardly ever.
func speculations(t *testing.T) map[string]Speculative {
	return map[string]Speculative{
		"ngram":     {NumTokens: 4, PromptLookupMin: 1, PromptLookupMax: 3},
		"itself":    {NumTokens: 3, Model: fixtures.Bundled()},
		"shallow":   {NumTokens: 5, Model: shallow(t, 1)},
		"a foreign": {NumTokens: 2, Model: fixtures.Checkpoint(t, fixtures.Spec{Vocab: 1024, MaxPositions: 1024})},
	}
}

// everyParameter are requests with each parameter that a sampler or the engine looks at.
func everyParameter() (reqs []Request) {
	k, seed := 3, int64(7)
	for i, p := range []SamplingParams{
		{},
		{Logprobs: &k, PromptLogprobs: &k},
		{Stop: []string{" the", "ed"}},
		{Stop: []string{"."}, IncludeStopInOutput: true, MinTokens: 9},
		{IgnoreEOS: true, RepetitionPenalty: 1.3, PresencePenalty: 0.2, FrequencyPenalty: 0.1},
		{NoRepeatNGramSize: 2, BadWords: []string{"lamp", "sea"}},
		{LogitBias: map[int32]float64{17: 4, 300: -3}, StopTokenIDs: []int32{300, 301}},
		{Temperature: 1},
		{Temperature: 0.8, TopK: 20, TopP: 0.9, MinP: 0.02, Logprobs: &k},
		{Temperature: 0.6, TypicalP: 0.9, EpsilonCutoff: 1e-3, N: 3},
		{Temperature: 0.9, StructuredOutputs: &llm.StructuredOutputs{Regex: `[a-f]{3,6}-\d+(\.\d{2})?!`}},
		{StructuredOutputs: &llm.StructuredOutputs{Choice: []string{"yes", "no", "perhaps not"}}, IgnoreEOS: true},
		{AllowedTokenIDs: []int32{40, 41, 42, 43, 44}},
	} {
		p.Seed = &seed
		p.IgnoreEOS = p.IgnoreEOS || i%2 == 0
		for _, n := range []int{1, 2, 48} {
			if p.MaxTokens = n; p.MinTokens > n {
				continue
			}
			reqs = append(reqs, Request{Prompt: fmt.Sprintf("The keeper of the lighthouse %d went down to the sea, to the sea", i), Sampling: p})
		}
	}
	return reqs
}

// same compares outputs but for what tells requests apart.
func same(t *testing.T, want, got []Output) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		got[i].RequestID, got[i].CachedTokens = want[i].RequestID, want[i].CachedTokens
		if !assert.Equal(t, want[i], got[i], "request %d", i) {
			return
		}
	}
}

// Every output is the same with and without speculation, to the last bit: with chunked prompts,
// preemption, a core in a child, KV offload, and on devices that share both models.
func TestSpeculationChangesNoOutput(t *testing.T) {
	reqs := everyParameter()
	ways := speculations(t)
	for _, c := range []struct {
		name string
		cfg  Config
	}{
		{"as it is", Config{}},
		{"preempted", Config{KVCacheBytes: 14 * bundledBlock, MaxModelLen: 96, MaxNumBatchedTokens: 24}},
		{"child", Config{Core: ChildProcess}},
		{"two devices", Config{TensorParallel: 2, OffloadBytes: 1 << 20}},
	} {
		if c.cfg.Core == ChildProcess && runtime.GOOS != "linux" {
			continue // only Linux has it
		}
		plain := openBundled(t, c.cfg)
		want, err := plain.Generate(t.Context(), reqs...)
		require.NoError(t, err)
		for name, spec := range ways {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				cfg := c.cfg
				cfg.Speculative = spec
				e := openBundled(t, cfg)
				got, err := e.Generate(t.Context(), reqs...)
				require.NoError(t, err)
				same(t, want, got)
				checkSpeculation(t, e.Stats(), spec)
				if c.name == "preempted" {
					assert.Positive(t, e.Stats().Preemptions)
				}
				require.NoError(t, e.Shutdown(t.Context()))
				assert.Empty(t, e.Holdings())
			})
		}
	}
}

// bundledBlock is the bundled model's KV block, in bytes.
const bundledBlock = 96 << 10

// checkSpeculation checks that the counters of drafts agree with each other.
func checkSpeculation(t *testing.T, st Stats, spec Speculative) {
	t.Helper()
	sum := 0
	for i, n := range st.SpecAcceptedPerPos {
		sum += n
		assert.LessOrEqual(t, n, st.SpecDrafts, "draft %d", i)
	}
	assert.Len(t, st.SpecAcceptedPerPos, spec.NumTokens)
	assert.Equal(t, st.SpecAcceptedTokens, sum)
	assert.Positive(t, st.SpecAcceptedTokens)
	assert.LessOrEqual(t, st.SpecDraftTokens, st.SpecDrafts*spec.NumTokens)
	assert.InDelta(t, float64(st.SpecAcceptedTokens)/float64(st.SpecDraftTokens), st.AcceptanceRate(), 1e-9)
}

func openBundled(t *testing.T, cfg Config) *Engine {
	t.Helper()
	cfg.Model, cfg.Device = fixtures.Bundled(), "cpu"
	e, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, e.Shutdown(context.Background())) })
	return e
}
