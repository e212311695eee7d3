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
	"github.com/enginetest/enginetest/internal/checkpoint"
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
			reqs = append(reqs,
				Request{
					Prompt:   fmt.Sprintf("The keeper of the lighthouse %d went down to the sea, to the sea", i),
					Sampling: p,
				})
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
		if testing.Short() && c.name != "preempted" {
			continue
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
	cfg.Model = fixtures.Bundled()
	return openModel(t, cfg)
}

// openModel opens an engine on the CPU, and ends it with the test.
func openModel(t *testing.T, cfg Config) *Engine {
	t.Helper()
	cfg.Device = "cpu"
	e, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, e.Shutdown(context.Background())) })
	return e
}

// What cannot speculate is refused by its field, before memory is taken.
func TestSpeculationRefused(t *testing.T) {
	bundled, tiny := fixtures.Bundled(), fixtures.Checkpoint(t, fixtures.Spec{})
	short := fixtures.Checkpoint(t, fixtures.Spec{Vocab: 1024, MaxPositions: 64})
	odd := fixtures.Checkpoint(t, fixtures.Spec{Vocab: 1024, MaxPositions: 1024, Heads: 3, HeadDim: 16, KVHeads: 3})
	classes := fixtures.Checkpoint(t, fixtures.Spec{Architecture: fixtures.Qwen2Classifier, Vocab: 1024})
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Speculative: Speculative{Model: bundled}}, "Speculative.NumTokens is 0, must be in [1, 32]"},
		{Config{Speculative: Speculative{NumTokens: 33}}, "Speculative.NumTokens is 33, must be in [1, 32]"},
		{
			Config{Speculative: Speculative{NumTokens: 3, Method: "eagle"}},
			`Speculative.Method is "eagle", must be "ngram" or "draft_model"`,
		},
		{
			Config{Speculative: Speculative{NumTokens: 3, Method: "draft_model"}},
			`Speculative.Model is "", must be the folder of a checkpoint`,
		},
		{
			Config{Speculative: Speculative{NumTokens: 3, Method: "ngram", Model: bundled}},
			`must be "" with Method "ngram"`,
		},
		{
			Config{Speculative: Speculative{NumTokens: 3, Model: bundled, PromptLookupMin: 2}},
			`Speculative.PromptLookupMax is 2, must be 0`,
		},
		{
			Config{Speculative: Speculative{NumTokens: 3, PromptLookupMin: -1}},
			"Speculative.PromptLookupMin is -1, must be ≥ 1",
		},
		{
			Config{Speculative: Speculative{NumTokens: 3, PromptLookupMin: 3, PromptLookupMax: 2}},
			"must be at least PromptLookupMin (3)",
		},
		{
			Config{Speculative: Speculative{NumTokens: 3, Model: tiny}},
			"must be one with the model's vocabulary of 1024; it has 256",
		},
		{
			Config{Speculative: Speculative{NumTokens: 3, Model: short}},
			"one with max_position_embeddings of at least 512, or MaxModelLen at most 64",
		},
		{Config{Speculative: Speculative{NumTokens: 3, Model: classes}}, "must be a checkpoint that generates"},
		{
			Config{Speculative: Speculative{NumTokens: 3, Model: odd}, TensorParallel: 2},
			"one that 2 devices (TensorParallel) can share: num_attention_heads is 3",
		},
		{
			Config{Speculative: Speculative{NumTokens: 3}, Task: llm.TaskEmbed},
			`Speculative.Method is "ngram", must be "" for Task "embed"`,
		},
		{Config{Faults: []llm.Fault{{Point: llm.FaultDraft, Action: llm.ActError}}}, "another one without Speculative"},
	} {
		c.cfg.Model, c.cfg.Device = bundled, "cpu"
		if c.cfg.MaxModelLen == 0 {
			c.cfg.MaxModelLen = 512
		}
		e, err := Open(t.Context(), c.cfg)
		if !assert.Error(t, err, c.want) {
			require.NoError(t, e.Shutdown(t.Context()))
			continue
		}
		var bad *llm.ParamError
		assert.ErrorAs(t, err, &bad)
		assert.ErrorContains(t, err, c.want)
	}
}

// A device that is named must be able to; else the CPU speculates although there is a GPU.
func TestSpeculationIsTheCPUs(t *testing.T) {
	model := &checkpoint.Config{}
	cfg := Config{Speculative: Speculative{Method: SpeculativeNGram}}
	on, err := cfg.useGPUs(1, model)
	require.NoError(t, err)
	assert.False(t, on)
	cfg.Device = "cuda:0"
	_, err = cfg.useGPUs(1, model)
	assert.EqualError(t, err,
		`engine: Speculative.Method is "ngram", must be "" on device cuda:0: only the CPU speculates`)
	cfg.Speculative = Speculative{}
	on, err = cfg.useGPUs(1, model)
	require.NoError(t, err)
	assert.True(t, on)
}

// draftOwners are what a draft model holds, as it is released.
var draftOwners = []string{"draft_kv_cache", "draft_workspace", "draft_rope", "draft_weights", "draft_weights"}

// Each owner of a draft fails to go once: the error names it.
func TestDraftReleaseFails(t *testing.T) {
	spec := Speculative{NumTokens: 2, Model: shallow(t, 1)}
	for after, owner := range draftOwners {
		e, err := Open(t.Context(), Config{
			Model: fixtures.Bundled(), Device: "cpu", Speculative: spec, Logger: quiet,
			Faults: []llm.Fault{{Point: llm.FaultShutdown, Action: llm.ActError, After: after}},
		})
		require.NoError(t, err)
		assert.Positive(t, bytesOf(e)[owner], owner)
		err = e.Shutdown(t.Context())
		require.ErrorIs(t, err, llm.ErrInjected)
		var leak *LeakError
		require.ErrorAs(t, err, &leak)
		for _, h := range leak.Holdings {
			assert.Equal(t, owner, h.Owner)
		}
		assert.ErrorContains(t, err, "draft model: cpurunner: releasing "+owner)
	}
}

// Whatever fails while a draft is opened, or while it wakes, nothing is left, or all is as before.
func TestDraftIsTransactional(t *testing.T) {
	spec := Speculative{NumTokens: 2, Model: shallow(t, 1)}
	prompt := Request{Prompt: "The lighthouse", Sampling: llm.SamplingParams{MaxTokens: 12}}
	want, err := openBundled(t, Config{}).Generate(t.Context(), prompt)
	require.NoError(t, err)
	const allocations = 8 // of Open: weights, rope and workspace of both, and two KV caches
	var faults []llm.Fault
	for i := range 2 * allocations {
		faults = append(faults, llm.Fault{Point: llm.FaultAllocate, After: i})
	}
	for i := range 4 {
		faults = append(faults, llm.Fault{Point: llm.FaultLoad, After: i})
	}
	for _, f := range faults {
		for _, f.Action = range []llm.FaultAction{llm.ActError, llm.ActPanic} {
			e, err := Open(t.Context(), Config{
				Model: fixtures.Bundled(), Device: "cpu", Speculative: spec, Faults: []llm.Fault{f}, Logger: quiet,
			})
			if err != nil { // and not that something is left
				require.ErrorIs(t, err, llm.ErrInjected)
				var leak *LeakError
				require.NotErrorAs(t, err, &leak, "%+v", f)
				continue
			}
			require.NoError(t, e.Sleep(t.Context(), 2))
			assert.Empty(t, bytesOf(e))
			err = e.Wake(t.Context())
			require.ErrorIs(t, err, llm.ErrInjected, "%+v", f)
			if f.Action == llm.ActError {
				assert.Empty(t, bytesOf(e), "%+v", f)
				require.NoError(t, e.Wake(t.Context()))
				got, err := e.Generate(t.Context(), prompt)
				require.NoError(t, err)
				same(t, want, got)
				require.NoError(t, e.Shutdown(t.Context()))
			} else {
				_ = e.Shutdown(t.Context()) // says what the engine died of
			}
			assert.Empty(t, e.Holdings(), "%+v", f)
		}
	}
}

// A planted draft is right after four of five tokens: so many are accepted, at each place that a
// text reaches.
func TestAcceptanceOfPlantedDraft(t *testing.T) {
	target, draft := plantedPair(t, fixtures.Spec{Hidden: 128}, fixtures.Spec{}, 400, 0.8)
	e := openModel(t, Config{Model: target, Speculative: Speculative{Model: draft, NumTokens: 3}})
	for first := range int32(10) {
		_, err := e.Generate(t.Context(), Request{
			PromptTokenIDs: []int32{40 * first},
			Sampling:       llm.SamplingParams{MaxTokens: 200},
		})
		require.NoError(t, err)
	}
	st := e.Stats()
	assert.InDelta(t, 0.8, float64(st.SpecAcceptedPerPos[0])/float64(st.SpecDrafts), 0.1)
	assert.InDelta(t, (0.8+0.8*0.8+0.8*0.8*0.8)/3, st.AcceptanceRate(), 0.12)
	assert.Less(t, st.Steps, st.OutputTokens*6/10)
}
