package engine

import (
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
)

// What a draft ten times smaller is worth at batch 1, with four of five drafts accepted: the target
// alone and with it, in turns, by the time that the process computed.
//
//	ENGINETEST_LONG=1 go test -run TestSpeedOfSpeculation -v ./engine
func TestSpeedOfSpeculation(t *testing.T) {
	if os.Getenv("ENGINETEST_LONG") == "" {
		t.Skip("set ENGINETEST_LONG=1: it measures, on a machine that is left alone")
	}
	for _, dtype := range []string{fixtures.BF16, fixtures.F32} {
		t.Run(dtype, func(t *testing.T) { measureSpeculation(t, dtype) })
	}
}

func measureSpeculation(t *testing.T, dtype string) {
	target, draft := plantedPair(t, fixtures.Spec{
		Hidden: 1024, Layers: 12, Heads: 16, KVHeads: 4, Intermediate: 3072, MaxPositions: 2048, DType: dtype,
	}, fixtures.Spec{
		Hidden: 384, Layers: 6, Heads: 6, KVHeads: 2, Intermediate: 1024, MaxPositions: 2048, DType: dtype,
	}, 4096, 0.88)
	assert.GreaterOrEqual(t, weightsOf(t, target), 10*weightsOf(t, draft))
	const tokens = 256
	plain := openModel(t, Config{Model: target})
	spec := openModel(t, Config{Model: target, Speculative: Speculative{Model: draft, NumTokens: 3}})
	run := func(e *Engine, first int) time.Duration {
		began := cpuTime(t)
		outs, err := e.Generate(t.Context(), Request{
			PromptTokenIDs: []int32{int32(first)}, Sampling: SamplingParams{MaxTokens: tokens, IgnoreEOS: true},
		})
		require.NoError(t, err)
		require.Len(t, outs[0].Completions[0].TokenIDs, tokens)
		return cpuTime(t) - began
	}
	run(plain, 0)
	run(spec, 0)
	var times [2][]time.Duration
	for i := range 9 {
		times[0], times[1] = append(times[0], run(plain, 450*i)), append(times[1], run(spec, 450*i))
	}
	for i := range times {
		slices.Sort(times[i])
	}
	st := spec.Stats()
	t.Logf("acceptance %.3f, per place %v of %d, steps %d", st.AcceptanceRate(), st.SpecAcceptedPerPos, st.SpecDrafts, st.Steps)
	rate := func(d time.Duration) float64 { return tokens / d.Seconds() }
	t.Logf("tokens per second of CPU time, median: %.1f alone, %.1f with the draft: %.2f times; best %.1f and %.1f: %.2f times",
		rate(times[0][4]), rate(times[1][4]), rate(times[1][4])/rate(times[0][4]),
		rate(times[0][0]), rate(times[1][0]), rate(times[1][0])/rate(times[0][0]))
}

// weightsOf is the size of a checkpoint's weights in the ledger of an engine.
func weightsOf(t *testing.T, model string) (n int64) {
	t.Helper()
	e := openModel(t, Config{Model: model})
	for _, h := range e.Holdings() {
		if h.Owner == "weights" {
			n += h.Bytes
		}
	}
	require.NoError(t, e.Shutdown(t.Context()))
	return n
}

// cpuTime is what this process has computed: on a busy machine it says more than the time that passed.
func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
