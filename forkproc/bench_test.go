package forkproc_test

import (
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/forkproc"
)

// BenchmarkChild compares the time from spawn to verdict with a plain os/exec of the same binary that runs one empty test, in
// turns. The difference is what isolation costs.
//
//	go test ./forkproc -run '^$' -bench Child -benchtime 200x
func BenchmarkChild(b *testing.B) {
	b.Run("exec", func(b *testing.B) {
		for b.Loop() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestNothing$")
			cmd.Stdout = io.Discard
			require.NoError(b, cmd.Run())
		}
	})
	b.Run("run", func(b *testing.B) {
		// Run needs a *testing.T: a test binary runs the same test b.N times.
		testing.Init()
		for b.Loop() {
			ok := testing.RunTests(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "TestNothing", F: func(t *testing.T) { forkproc.Run(t, func(*testing.T) {}) }}})
			require.True(b, ok)
		}
	})
}

// TestNothing is what both sides of BenchmarkChild run.
func TestNothing(t *testing.T) {
	if forkproc.InChild() {
		forkproc.Run(t, func(*testing.T) {})
	}
}
