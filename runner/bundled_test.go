package runner_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/fixtures/fault"
	"github.com/enginetest/enginetest/internal/faketb"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/runner"
)

func TestBundledEngine(t *testing.T) {
	r := runner.New(t, runner.Config{Model: fixtures.Bundled()})
	report := func() runner.Report {
		require.Equal(t, "5", r.GenerateGreedy("2+3=", 8).Text)
		return r.Stop()
	}()
	require.NoError(t, report.Err())
	for _, s := range report.Steps {
		assert.LessOrEqual(t, s.Took, s.Budget, s.Name)
	}
	t.Log(report)
}

func TestChat(t *testing.T) {
	r := runner.New(t, runner.Config{Model: fixtures.Bundled(), Device: "cpu"})
	out := r.Chat([]engine.Message{{Role: "user", Content: "What is 12+30?"}}, engine.SamplingParams{MaxTokens: 20})
	assert.Equal(t, " 42", out.Completions[0].Text)
}

// TestReferences compares the verbs with Hugging Face's outputs of the bundled model.
func TestReferences(t *testing.T) {
	r := runner.New(t, runner.Config{Model: fixtures.Bundled(), Device: "cpu"})
	for _, ref := range fixtures.BundledReference() {
		if ref.MinMargin() < 0.05 {
			continue // a rounding may turn it
		}
		out := r.GenerateWith(ref.Prompt, engine.SamplingParams{MaxTokens: len(ref.TokenIDs)})
		assert.Equal(t, ref.PromptTokenIDs, out.PromptTokenIDs, ref.Prompt)
		assert.Equal(t, ref.TokenIDs, out.Completions[0].TokenIDs, ref.Prompt)
		if n := len(ref.PromptTokenIDs); n > 1 {
			sum := 0.0
			for _, lp := range ref.PromptLogprobs[1:] {
				sum += *lp
			}
			assert.InEpsilon(t, math.Exp(-sum/float64(n-1)), r.PromptPerplexity(ref.Prompt), 1e-3, ref.Prompt)
		}
	}
}

// TestReferencesOfLogprobs compares the likeliest tokens, and the perplexity of a prompt's end, with
// Hugging Face's.
func TestReferencesOfLogprobs(t *testing.T) {
	const k = 5
	r := runner.New(t, runner.Config{Model: fixtures.Bundled(), Device: "cpu"})
	e := r.Engine().(*engine.Engine)
	var refs []fixtures.Reference
	var prompts []string
	masked := 0
	for _, ref := range fixtures.BundledReference() {
		if ref.MinMargin() < 0.05 || len(ref.PromptTokenIDs) > 100 {
			continue
		}
		refs, prompts = append(refs, ref), append(prompts, ref.Prompt)
		n := len(ref.PromptTokenIDs) / 2
		mask, err := e.Decode(ref.PromptTokenIDs[:n])
		require.NoError(t, err)
		if ids, err := e.Encode(mask); err != nil || n == 0 || !slices.Equal(ids, ref.PromptTokenIDs[:n]) {
			continue // it is not cut where a token ends
		}
		sum := 0.0
		for _, lp := range ref.PromptLogprobs[n:] {
			sum += *lp
		}
		want := math.Exp(-sum / float64(len(ref.PromptLogprobs)-n))
		assert.InEpsilon(t, want, r.PromptPerplexityMasked(ref.Prompt, mask), 1e-3, ref.Prompt)
		masked++
	}
	assert.Greater(t, masked, 3)
	for i, c := range r.GenerateGreedyLogprobsLimit(prompts, 8, k) {
		want := refs[i].TopLogprobs[:len(c.Logprobs)]
		assert.Equal(t, refs[i].TokenIDs[:len(c.TokenIDs)], c.TokenIDs, prompts[i])
		for at, lps := range c.Logprobs {
			require.Len(t, lps, k)
			for j, lp := range lps {
				assert.InDelta(t, want[at][j].Logprob, lp.Logprob, 1e-3, "%q, token %d, the %d likeliest", prompts[i], at, j+1)
			}
		}
	}
}

func TestInjectedFaultsMustFire(t *testing.T) {
	failures := faketb.Run(func(ft *faketb.T) {
		r := runner.New(ft, runner.Config{
			Model: fixtures.Bundled(), Device: "cpu",
			Faults: []llm.Fault{fault.Error(llm.FaultForward, 1000)},
		})
		r.GenerateGreedy("2+3=", 8)
	})
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], "never fired")
	assert.Contains(t, failures[0], "it waits for 1000 good passes")

	failures = faketb.Run(func(ft *faketb.T) {
		r := runner.New(ft, runner.Config{
			Model: fixtures.Bundled(), Device: "cpu",
			Faults: []llm.Fault{fault.Error(llm.FaultForward, 3)},
		})
		_, err := r.TryGenerate(engine.Request{Prompt: "The lighthouse"})
		assert.ErrorIs(t, err, llm.ErrEngineDead)
	})
	assert.Empty(t, failures, "a dead engine is torn down like any other, its error still held by the test")
}

func TestFailedOpenOfTheBundledEngine(t *testing.T) {
	dir := fixtures.Checkpoint(t, fixtures.Spec{Shards: 2})
	fixtures.Break(t, dir, "missing_shard")
	failures := faketb.Run(func(ft *faketb.T) { runner.New(ft, runner.Config{Model: dir, Device: "cpu"}) })
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], fixtures.Damage("missing_shard").Message())
	assert.NotContains(t, failures[0], "still there", "nothing was left behind")
}

// BenchmarkCycle is a whole life: open a tiny model, one token, shutdown, seven checks.
func BenchmarkCycle(b *testing.B) {
	dir := b.TempDir()
	require.NoError(b, fixtures.WriteCheckpoint(dir, fixtures.Spec{}))
	for b.Loop() {
		r := runner.New(b, runner.Config{Model: dir, Device: "cpu"})
		r.Generate(engine.Request{PromptTokenIDs: []int32{1, 2, 3}, Sampling: engine.SamplingParams{MaxTokens: 1}})
		require.NoError(b, r.Stop().Err())
	}
}

// TestManyLives is the short form of `enginetest bench --shape tiny --cycles 200`.
func TestManyLives(t *testing.T) {
	dir := fixtures.Checkpoint(t, fixtures.Spec{})
	var took []time.Duration
	for range 30 {
		r := runner.New(t, runner.Config{Model: dir, Device: "cpu"})
		r.Generate(engine.Request{PromptTokenIDs: []int32{1, 2, 3}, Sampling: engine.SamplingParams{MaxTokens: 2}})
		report := r.Stop()
		require.NoError(t, report.Err())
		took = append(took, report.Took)
	}
	t.Log("teardowns took", took)
}

func TestBeamsEndAtEndOfSequence(t *testing.T) {
	for _, core := range []engine.Core{engine.InProcess, engine.ChildProcess} {
		r := runner.New(t, runner.Config{Model: fixtures.Bundled(), Device: "cpu", Core: core, KVCacheBytes: 4 << 20})
		beams := r.BeamSearch(engine.Request{Prompt: "2+3="}, 2, 6)
		require.Len(t, beams, 2)
		assert.Equal(t, "5", beams[0].Text, core)
		assert.Len(t, beams[0].TokenIDs, 2, "the digit and the end")
	}
}

// TestTwoDevices: the teardown looks at each, and names the one that keeps something.
func TestTwoDevices(t *testing.T) {
	cfg := runner.Config{Model: fixtures.Bundled(), Device: "cpu", TensorParallel: 2, KVCacheBytes: 1 << 20}
	for _, core := range []engine.Core{engine.InProcess, engine.ChildProcess} {
		cfg.Core = core
		r := runner.New(t, cfg)
		require.Equal(t, "5", r.GenerateGreedy("2+3=", 8).Text)
		report := r.Stop()
		require.NoError(t, report.Err())
		assert.Equal(t, "the engine's ledger is empty, for cpu:0, cpu:1", report.Steps[1].Detail)
	}
	cfg.Core, cfg.Faults = engine.InProcess, []llm.Fault{{
		Point: llm.FaultShutdown, Action: llm.ActError,
		Rank: 1,
	}}
	fake := &faketb.T{TestName: "TestKeeps"}
	err := runner.New(fake, cfg).Stop().Err()
	require.ErrorContains(t, err, "rank 1 (cpu:1): cpurunner: releasing kv_cache")
	require.ErrorContains(t, err, "kv_cache     cpu:1 (mapped)")
	require.NotContains(t, err.Error(), "cpu:0 (", "the other one gave everything back")
}
