package bench

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/leakcheck"
)

func TestRun(t *testing.T) {
	var said []string
	r, err := Run(t.Context(), Options{
		Config: engine.Config{Model: fixtures.Checkpoint(t, fixtures.Spec{}), Device: "cpu", Threads: 1},
		Prompt: 16, Output: 2, Batches: []int{1, 3}, Repeat: 2, Cycles: fewestLives,
	}, func(what string) { said = append(said, what) })
	require.NoError(t, err)
	assert.Len(t, said, 3)
	var names []string
	for _, m := range r.Results {
		names = append(names, m.Name)
		assert.True(t, m.Min <= m.Median && m.Median <= m.Max, "%+v", m)
		assert.Positive(t, m.Runs, m.Name)
		if m.Unit == "ms" || m.Unit == "tok/s" {
			assert.Positive(t, m.Min, m.Name)
			assert.False(t, math.IsInf(m.Max, 0), m.Name)
		}
	}
	for _, want := range []string{
		lifeName, "+ Go heap", "+ memory outside the Go heap", "+ goroutines",
		"+ file descriptors", "open", "prefill 1×16", "decode 1×2", "prefill 3×16", "decode 3×2",
	} {
		assert.Contains(t, names, want)
	}
	assert.Contains(t, r.String(), "the weights may stay in a cache", "no share of a floor that does not bind")
	_, err = json.Marshal(r)
	require.NoError(t, err)
}

// A life that leaves something behind fails the run, with the measurements.
func TestLivesThatGrow(t *testing.T) {
	if testing.Short() {
		t.Skip("the explanation of growth takes seconds")
	}
	var kept [][]byte
	results, err := lives(t.Context(), 12, func(context.Context) error {
		kept = append(kept, make([]byte, 256<<10))
		return nil
	})
	var grown *leakcheck.Error
	require.ErrorAs(t, err, &grown)
	assert.ErrorContains(t, err, "Go heap: 256.")
	require.NotEmpty(t, results)
	assert.Greater(t, len(kept), 12, "a second series confirms the growth")
}

// What the measuring keeps itself is far below what it lets pass.
func TestLivesThatDoNot(t *testing.T) {
	results, err := lives(t.Context(), 12, func(context.Context) error { return nil })
	require.NoError(t, err)
	for _, m := range results[1:] {
		if m.Name == "+ Go heap" {
			assert.Less(t, m.Median, 1.0, "KiB a life")
		}
	}
}

func TestLivesThatFail(t *testing.T) {
	n := 0
	_, err := lives(t.Context(), 12, func(context.Context) error {
		if n++; n == 3 {
			return errors.New("no memory")
		}
		return nil
	})
	require.EqualError(t, err, "life 3 of 12: no memory")
	assert.Equal(t, 3, n, "no life after the one that failed")
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Run(ctx, Options{
		Config: engine.Config{Model: fixtures.Checkpoint(t, fixtures.Spec{}), Device: "cpu"},
		Prompt: 4, Output: 2, Batches: []int{1}, Repeat: 1, Cycles: fewestLives,
	}, func(string) {})
	require.ErrorIs(t, err, context.Canceled)
}

// A step reads every matrix, but of an embedding that is no output layer only a row.
func TestStepBytes(t *testing.T) {
	const layers, embedding, norm = 2 * (64*64*2 + 32*64*2 + 3*64*128 + 2*64), 256 * 64, 64
	for _, row := range []struct {
		why  string
		spec fixtures.Spec
		want int64
	}{
		{"an output layer of its own", fixtures.Spec{}, 2 * (layers + embedding + norm)},
		{"tied: the embedding is the output layer", fixtures.Spec{Tied: true}, 2 * (layers + embedding + norm)},
		{"four bytes a number", fixtures.Spec{DType: fixtures.F32}, 4 * (layers + embedding + norm)},
	} {
		n, err := StepBytes(fixtures.Checkpoint(t, row.spec))
		require.NoError(t, err)
		assert.Equal(t, row.want, n, row.why)
	}
}

func TestSummarize(t *testing.T) {
	assert.Equal(t, Result{Name: "x", Unit: "ms", Median: 2, Min: 1, Max: 9, Runs: 3},
		summarize("x", "ms", []float64{9, 1, 2}))
	assert.Equal(t, Result{Median: 2.5, Min: 1, Max: 9, Runs: 4}, summarize("", "", []float64{9, 1, 2, 3}))
	assert.InDelta(t, 0.5, share(Result{Unit: "tok/s", Median: 1, Floor: 2}), 0)
	assert.InDelta(t, 0.5, share(Result{Unit: "ms", Median: 2, Floor: 1}), 0)
}

func TestBandwidth(t *testing.T) {
	if testing.Short() {
		t.Skip("reads 128 MiB several times")
	}
	v := NewBandwidth(1).Measure()
	assert.Greater(t, v, 1e8, "bytes/s: slower than any machine")
	assert.Less(t, v, 1e12, "bytes/s: faster than any memory")
}
