package forkproc_test

import (
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/forkproc"
)

// BenchmarkChild compares the time from spawn to verdict with a plain os/exec of the same binary
// that runs the same empty test, in turns, and reports the medians. The difference is what
// isolation costs.
//
//	go test ./forkproc -run '^$' -bench Child -benchtime 200x
func BenchmarkChild(b *testing.B) {
	all := func(string, string) (bool, error) { return true, nil }
	test := []testing.InternalTest{{Name: "TestNothing", F: func(t *testing.T) {
		forkproc.Run(t, func(*testing.T) {})
	}}}
	var plain, run []time.Duration
	for b.Loop() {
		start := time.Now()
		cmd := exec.Command(os.Args[0], "-test.run=^TestNothing$")
		cmd.Stdout = io.Discard
		require.NoError(b, cmd.Run())
		middle := time.Now()
		require.True(b, testing.RunTests(all, test)) // Run needs a *testing.T
		plain, run = append(plain, middle.Sub(start)), append(run, time.Since(middle))
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return d[len(d)/2].Seconds() * 1000
	}
	b.ReportMetric(median(plain), "exec-ms")
	b.ReportMetric(median(run), "run-ms")
	b.ReportMetric(median(run)-median(plain), "cost-ms")
}

// TestNothing is what both sides of BenchmarkChild run.
func TestNothing(t *testing.T) {
	if forkproc.InChild() {
		forkproc.Run(t, func(*testing.T) {})
	}
}
