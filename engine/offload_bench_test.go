package engine_test

import (
	"slices"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// prefill is the time to the first token of a prompt of 400.
func prefill(tb testing.TB, e *engine.Engine, first int32) time.Duration {
	tb.Helper()
	prompt := make([]int32, 400)
	for i := range prompt {
		prompt[i] = (first + int32(i)) % 200
	}
	began := time.Now()
	_, err := e.Generate(tb.Context(), engine.Request{
		PromptTokenIDs: prompt,
		Sampling:       engine.SamplingParams{MaxTokens: 1, IgnoreEOS: true},
	})
	require.NoError(tb, err)
	return time.Since(began)
}

// settled waits for the copies of the last request.
func settled(tb testing.TB, e *engine.Engine) engine.Stats {
	tb.Helper()
	require.Eventually(tb, func() bool { return e.Stats().OffloadPending == 0 }, time.Minute, 100*time.Microsecond)
	return e.Stats()
}

// firstTokens returns the median times to the first token: computed, found on the device, and found
// in host memory.
func firstTokens(tb testing.TB, rounds int) (cold, device, host time.Duration) {
	tb.Helper()
	e, err := engine.Open(tb.Context(), engine.Config{
		Model: fixtures.Bundled(), Device: "cpu", OffloadBytes: 64 << 20,
		KVCacheBytes: 32 * 16 * 6144, MaxModelLen: 500,
	})
	require.NoError(tb, err)
	defer func() { require.NoError(tb, e.Shutdown(tb.Context())) }()
	var times [3][]time.Duration
	for range rounds {
		require.NoError(tb, e.ResetPrefixCache(tb.Context()))
		before := settled(tb, e)
		times[0] = append(times[0], prefill(tb, e, 0))
		settled(tb, e)
		times[1] = append(times[1], prefill(tb, e, 0))
		for first := range int32(2) { // two others take all of the device's blocks
			prefill(tb, e, 50*(first+1))
			settled(tb, e)
		}
		times[2] = append(times[2], prefill(tb, e, 0))
		after := settled(tb, e)
		require.Equal(tb, 384, after.OffloadHits-before.OffloadHits,
			"the last one came from host memory, as far as full blocks go")
		require.Equal(tb, before.OffloadErrors, after.OffloadErrors)
	}
	for i := range times {
		slices.Sort(times[i])
	}
	return times[0][rounds/2], times[1][rounds/2], times[2][rounds/2]
}

// A prefix from host memory must be worth it.
func TestOffloadedPrefixIsFaster(t *testing.T) {
	cold, device, host := firstTokens(t, 3)
	t.Logf("first token of 400: computed %s, on the device %s, in host memory %s", cold, device, host)
	assert.Less(t, host, cold/2)
}

func BenchmarkOffload(b *testing.B) {
	for b.Loop() {
		cold, device, host := firstTokens(b, 5)
		b.ReportMetric(float64(cold.Microseconds()), "cold-us")
		b.ReportMetric(float64(device.Microseconds()), "device-us")
		b.ReportMetric(float64(host.Microseconds()), "host-us")
	}
}

func BenchmarkSleepAndWake(b *testing.B) {
	for level := 1; level <= 2; level++ {
		b.Run(map[int]string{1: "level=1", 2: "level=2"}[level], func(b *testing.B) {
			e, err := engine.Open(b.Context(), engine.Config{Model: fixtures.Bundled(), Device: "cpu"})
			require.NoError(b, err)
			defer func() { require.NoError(b, e.Shutdown(b.Context())) }()
			for b.Loop() {
				require.NoError(b, e.Sleep(b.Context(), level))
				require.NoError(b, e.Wake(b.Context()))
			}
		})
	}
}
