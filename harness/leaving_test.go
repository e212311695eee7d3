package harness_test

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/internal/faketb"
	"github.com/enginetest/enginetest/llm"
)

// A test that ends in the middle runs its cleanups while what it was doing is still on its stack.
// That is no leak: a skipped test stays one.
func TestEndInTheMiddle(t *testing.T) {
	for _, row := range []struct {
		name string
		body func(*testing.T, *harness.Runner)
	}{
		{"in a loop over a stream", func(t *testing.T, r *harness.Runner) {
			for range r.Stream(llm.Request{Prompt: "a b c"}) {
				t.Skip("enough was seen")
			}
		}},
		{"with the engine in a variable that is used below", func(t *testing.T, r *harness.Runner) {
			e := r.Engine().(*toy)
			if len(e.Holdings()) > 0 {
				t.Skip("enough was seen")
			}
			assert.Empty(t, e.Holdings())
		}},
	} {
		skipped := false
		ok := t.Run(row.name, func(t *testing.T) {
			t.Cleanup(func() { skipped = t.Skipped() && !t.Failed() })
			row.body(t, harness.Start(t, openToy, quick...))
		})
		assert.True(t, ok && skipped, row.name)
	}
}

func TestStopInTheMiddleOfAStream(t *testing.T) {
	failures := faketb.Run(func(ft *faketb.T) {
		r := harness.Start(ft, openToy, noGPU...)
		for range r.Stream(llm.Request{Prompt: "a b c"}) {
			assert.NoError(t, r.Stop().Err())
		}
	})
	assert.Equal(t, []string{"harness: stream: TestPlanted has been stopped by Stop, or its test is over: engine: stopped"}, failures,
		"the loop goes on, and gets no token")
	failures = faketb.Run(func(ft *faketb.T) {
		r := harness.Start(ft, openToy, noGPU...)
		for range r.Stream(llm.Request{Prompt: "a b c"}) {
			r.Stop()
			break
		}
	})
	assert.Empty(t, failures)
}

// Users of CUDA lock their threads: with a coroutine under the stream this ended the process.
func TestThreadIsLockedInAStream(t *testing.T) {
	r := harness.Start(t, openToy, noGPU...)
	n := 0
	for range r.Stream(llm.Request{Prompt: "a b c"}) {
		runtime.LockOSThread()
		n++
	}
	for range n {
		runtime.UnlockOSThread()
	}
	assert.Equal(t, 3, n)
}

// badStream is an engine whose streams end as they should not.
type badStream struct {
	remote
	end func()
}

func (b badStream) Stream(context.Context, llm.Request) iter.Seq2[llm.Delta, error] {
	return func(yield func(llm.Delta, error) bool) {
		yield(llm.Delta{}, nil)
		b.end()
	}
}

// What a stream does to its goroutine it does to the loop's.
func TestStreamThatEndsItsGoroutine(t *testing.T) {
	loop := func(end func(), leave bool) (got any, exited bool) {
		r := harness.Start(t, func(context.Context) (badStream, error) { return badStream{end: end}, nil }, noGPU...)
		exited = true
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { got = recover() }()
			for range r.Stream(llm.Request{}) {
				if leave {
					break
				}
			}
			exited = false
		}()
		<-done
		require.NoError(t, r.Stop().Err())
		return got, exited
	}
	for _, leave := range []bool{false, true} {
		got, _ := loop(func() { panic("lost") }, leave)
		assert.Contains(t, fmt.Sprint(got), "lost")
		got, exited := loop(runtime.Goexit, leave)
		assert.True(t, got == nil && exited)
		got, exited = loop(func() {}, leave)
		assert.True(t, got == nil && !exited)
	}
}

// A real leak is still one when the test ends in the middle.
func TestLeakOfATestThatEndsInTheMiddle(t *testing.T) {
	ft := &faketb.T{TestName: "TestPlanted"}
	exits(func() {
		defer func() { ft.RunCleanups() }() // where testing runs them
		keep = append(keep, harness.Start(ft, openToy, quick...).Engine())
		runtime.Goexit()
	})
	keep = nil
	require.Len(t, ft.Failures, 1)
	assert.Contains(t, ft.Failures[0], "harness_test.keep")
}

// An open that ends the test leaves a half-built engine, and must not spoil the checks of the
// fixtures behind it.
func TestOpenThatEndsTheTest(t *testing.T) {
	ft := &faketb.T{TestName: "TestPlanted"}
	var half *toy
	exits(func() {
		harness.Start(ft, func(ctx context.Context) (*toy, error) {
			half, _ = openToy(ctx)
			runtime.Goexit() // t.FailNow
			return half, nil
		}, quick...)
	})
	require.Len(t, ft.Failures, 1)
	assert.Contains(t, ft.Failures[0], "goroutines")
	assert.Contains(t, ft.Failures[0], "openToy")
	require.NoError(t, half.Shutdown(t.Context()))

	report := harness.Start(t, openToy, noGPU...).Stop()
	host := report.Steps[len(report.Steps)-1]
	assert.Empty(t, host.Skipped, "the fixture whose open did not return is still counted as alive")
}

func TestNilContextOfAFixture(t *testing.T) {
	_, err := harness.Open(nil, openToy, noGPU...) //nolint:staticcheck // on purpose
	require.EqualError(t, err, "harness: Open with a nil context")
	f, err := harness.Open(t.Context(), openToy, noGPU...)
	require.NoError(t, err)
	require.NoError(t, f.Close(nil).Err()) //nolint:staticcheck // on purpose
}

// exits runs f, which ends its goroutine.
func exits(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// In a fuzz target the methods of the *testing.F that owns the Runner are forbidden.
func FuzzWithOneRunner(f *testing.F) {
	r := harness.Start(f, openToy, noGPU...)
	f.Add("a prompt")
	f.Fuzz(func(t *testing.T, prompt string) {
		outs, err := r.TryGenerate(llm.Request{Prompt: prompt})
		if prompt == "" {
			require.ErrorContains(t, err, "empty prompt")
			return
		}
		require.NoError(t, err)
		require.Equal(t, prompt, outs[0].Completions[0].Text)
	})
}

func TestTryGenerateOfAStoppedRunner(t *testing.T) {
	failures := faketb.Run(func(ft *faketb.T) {
		r := harness.Start(ft, openToy, noGPU...)
		r.Stop()
		_, err := r.TryGenerate(llm.Request{Prompt: "x"})
		assert.ErrorIs(t, err, llm.ErrStopped)
	})
	assert.Empty(t, failures)
}
