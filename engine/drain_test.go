package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/scheduler/fakerunner"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// running starts n requests of this many tokens, waits until all of them run, and returns what
// gives their results.
func running(t *testing.T, e *Engine, n, tokens int) func() ([]Output, []error) {
	t.Helper()
	outs, errs := make([]Output, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			got, err := e.Generate(context.Background(),
				Request{PromptTokenIDs: ids(5, i), Sampling: SamplingParams{MaxTokens: tokens, IgnoreEOS: true}})
			errs[i] = err
			if len(got) == 1 {
				outs[i] = got[0]
			}
		})
	}
	require.Eventually(t, func() bool { return e.Stats().Running == n }, time.Minute, time.Millisecond)
	return func() ([]Output, []error) { wg.Wait(); return outs, errs }
}

func names(r llm.ShutdownReport) (out []string) {
	for _, p := range r.Phases {
		out = append(out, p.Name)
	}
	return out
}

func TestDrainLetsRequestsFinish(t *testing.T) {
	var draining atomic.Bool
	e := openFake(t, Config{Model: "fake"}, &fakerunner.Runner{OnExecute: func(*modelrunner.Batch) error {
		if !draining.Load() {
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	}}, false)
	results := running(t, e, 4, 900)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { assert.NoError(t, e.Drain(t.Context())) })
	}
	require.Eventually(t, func() bool { return e.State() == Draining }, time.Minute, 100*time.Microsecond)
	draining.Store(true)
	_, err := e.Generate(t.Context(), Request{PromptTokenIDs: ids(5, 0)})
	assert.ErrorIs(t, err, llm.ErrDraining)
	assert.ErrorIs(t, err, llm.ErrStopped)
	assert.ErrorIs(t, e.ResetPrefixCache(t.Context()), llm.ErrDraining)
	assert.NoError(t, e.Err(), "it still works")
	wg.Wait()
	outs, errs := results()
	for i := range outs {
		assert.NoError(t, errs[i])
		assert.Len(t, outs[i].Completions[0].TokenIDs, 900)
	}
	assert.Equal(t, Draining, e.State(), "until Shutdown")
	require.NoError(t, e.Shutdown(t.Context()))
	assert.Equal(t, []string{"drain", "abort", "release"}, names(e.ShutdownReport()))
	assert.Contains(t, e.ShutdownReport().String(), "4 requests finished")
	assert.NoError(t, e.Drain(t.Context()), "the drain that was")
}

func TestDrainDeadlineAbortsTheRest(t *testing.T) {
	e := openFake(t, Config{Model: "fake"}, slowRunner(5*time.Millisecond), false)
	results := running(t, e, 3, 900)
	require.Eventually(t, func() bool { return e.Stats().OutputTokens > 10 }, time.Minute, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := e.Drain(ctx)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "engine: drain: 3 of 3 requests aborted after ")
	assert.Equal(t, err, e.Drain(t.Context()), "one drain, one result")
	outs, errs := results() // the engine has ended them, no one has called Shutdown
	for i := range outs {
		assert.ErrorIs(t, errs[i], llm.ErrStopped)
		assert.Equal(t, llm.FinishAbort, outs[i].Completions[0].FinishReason)
		assert.NotEmpty(t, outs[i].Completions[0].TokenIDs)
	}
	require.Eventually(t, func() bool { return e.Stats().KVBlocksUsed == 0 }, time.Minute, time.Millisecond)
}

func TestDrainIsEndedBy(t *testing.T) {
	for _, row := range []struct {
		name string
		end  func(e *Engine, broken chan struct{})
		want error
	}{
		{"Shutdown", func(e *Engine, _ chan struct{}) { _ = e.Shutdown(context.Background()) }, llm.ErrStopped},
		{"a failure", func(_ *Engine, broken chan struct{}) { close(broken) }, llm.ErrEngineDead},
	} {
		t.Run(row.name, func(t *testing.T) {
			broken := make(chan struct{})
			e := openFake(t, Config{Model: "fake", Logger: quiet},
				&fakerunner.Runner{OnExecute: func(*modelrunner.Batch) error {
					select {
					case <-broken:
						return assert.AnError
					case <-time.After(5 * time.Millisecond):
						return nil
					}
				}}, false)
			results := running(t, e, 2, 900)
			got := make(chan error)
			go func() { got <- e.Drain(context.Background()) }()
			require.Eventually(t, func() bool { return e.State() == Draining }, time.Minute, 100*time.Microsecond)
			row.end(e, broken)
			err := <-got
			assert.ErrorIs(t, err, row.want)
			assert.ErrorContains(t, err, "2 requests not finished")
			results()
		})
	}
}

func TestDrainOfAnEngineThatCannot(t *testing.T) {
	e := openFake(t, Config{Model: "fake"}, &fakerunner.Runner{}, false)
	require.NoError(t, e.Shutdown(t.Context()))
	assert.ErrorIs(t, e.Drain(t.Context()), llm.ErrStopped)
}

// The watchdog tells every caller while the step still hangs; when it comes back, its results are
// discarded.
func TestWatchdog(t *testing.T) {
	release, steps := make(chan struct{}), 0
	r := &fakerunner.Runner{OnExecute: func(*modelrunner.Batch) error {
		if steps++; steps == 3 {
			<-release
		}
		return nil
	}}
	e := openFake(t, Config{Model: "fake", Logger: quiet, StepTimeout: time.Second}, r, false)
	isDead := func(err error) {
		t.Helper()
		assert.ErrorIs(t, err, llm.ErrEngineDead)
		assert.ErrorContains(t, err, "step 2 hangs: a forward pass has been running for ")
		assert.ErrorContains(t, err, "Config.StepTimeout is 1s")
	}
	streamed := make(chan error)
	go func() {
		var last error
		for _, err := range e.Stream(context.Background(), Request{PromptTokenIDs: ids(4, 1)}) {
			last = err
		}
		streamed <- last
	}()
	outs, err := e.Generate(t.Context(), Request{ID: "x", PromptTokenIDs: ids(4, 0)})
	isDead(err)
	if len(outs) == 1 { // it was started before the watchdog fired
		assert.Equal(t, Output{
			RequestID: "x", PromptTokenIDs: ids(4, 0),
			Completions: []llm.Completion{{FinishReason: llm.FinishError}},
		}, outs[0])
	}
	isDead(<-streamed)
	assert.Equal(t, Failed, e.State())
	isDead(e.Err())
	isDead(e.ResetPrefixCache(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	var late *ShutdownTimeoutError
	assert.ErrorAs(t, e.Shutdown(ctx), &late, "in process nobody can end it")
	close(release)
	assert.NoError(t, e.Shutdown(t.Context()))
	isDead(e.Err())
}

// A watchdog that is set stays silent when steps are in time.
func TestWatchdogIsSilent(t *testing.T) {
	e := openFake(t, Config{Model: "fake", StepTimeout: time.Minute}, slowRunner(100*time.Microsecond), false)
	assert.Len(t, one(t, e, ids(4, 0), SamplingParams{MaxTokens: 200, IgnoreEOS: true}).TokenIDs, 200)
	assert.NoError(t, e.Err())
}

func TestStartTimeoutNamesItself(t *testing.T) {
	limit, err := 20*time.Millisecond, error(nil)
	for ; limit < time.Minute; limit *= 2 { // a busy machine needs more to get to the profiling pass
		if err = openHanging(t, limit); strings.Contains(err.Error(), "the profiling pass") {
			break
		}
	}
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, fmt.Sprintf(
		"opening "+tinyLlama+": the profiling pass: the engine has not started within Config.StartTimeout (%v)", limit))
}

func openHanging(t *testing.T, limit time.Duration) error {
	_, err := Open(t.Context(), Config{
		Model: tinyLlama, Device: "cpu", StartTimeout: limit,
		Faults: []llm.Fault{{Point: llm.FaultProfile, Action: llm.ActHang}},
	})
	require.Error(t, err)
	return err
}
