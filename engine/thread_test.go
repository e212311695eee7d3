package engine

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/scheduler/fakerunner"
	"github.com/enginetest/enginetest/internal/cudatest"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// threaded is a runner that says it has a thread.
type threaded struct {
	*fakerunner.Runner
	on, closedOn  atomic.Bool
	inside, steps atomic.Int32
}

func (r *threaded) OnThread(f func() error) error {
	r.on.Store(true)
	defer r.on.Store(false)
	return f()
}

func (r *threaded) Execute(b *modelrunner.Batch) ([]modelrunner.SeqResult, error) {
	r.steps.Add(1)
	if r.on.Load() {
		r.inside.Add(1)
	}
	return r.Runner.Execute(b)
}

func (r *threaded) Close() error {
	r.closedOn.Store(r.on.Load())
	return r.Runner.Close()
}

// The loop runs on the runner's thread, and leaves it before it closes the runner.
func TestLoopIsOnTheRunnersThread(t *testing.T) {
	r := &threaded{Runner: &fakerunner.Runner{}}
	e, err := open(t.Context(), Config{Model: "fake", Logger: quiet}, func(c *core) (model, error) {
		m, err := fakeLoader(r.Runner, false)(c)
		m.runner = r
		return m, err
	})
	require.NoError(t, err)
	one(t, e, ids(4, 0), SamplingParams{MaxTokens: 10, IgnoreEOS: true})
	require.NoError(t, e.Shutdown(t.Context()))
	assert.EqualValues(t, 10, r.inside.Load())
	assert.EqualValues(t, 11, r.steps.Load(), "Open's own is from outside")
	assert.False(t, r.closedOn.Load())
}

// A driver that hangs holds the thread that the loop is on: callers are told all the same, and
// Shutdown says what it waits for.
func TestDriverHangs(t *testing.T) {
	for limit := 100 * time.Millisecond; !driverHangs(t, limit); limit *= 2 {
		require.Less(t, limit, time.Minute, "no step was in time")
	}
}

// driverHangs reports whether the step that hangs was the first to take longer than this.
func driverHangs(t *testing.T, stepTimeout time.Duration) bool {
	stub := cudatest.New(t, 1, 1<<30)
	t.Setenv("ENGINETEST_LIBCUDA", stub.Path)
	e, err := Open(t.Context(), Config{
		Model: tinyLlama, Device: "cuda", Logger: quiet, KVCacheBytes: 64 << 20,
		StepTimeout: stepTimeout,
	})
	require.NoError(t, err)
	stub.Fail("cuStreamSynchronize", 3, cudatest.Hang)
	_, err = e.Generate(t.Context(), Request{
		PromptTokenIDs: ids(5, 0),
		Sampling:       SamplingParams{MaxTokens: 10, IgnoreEOS: true},
	})
	assert.ErrorIs(t, err, llm.ErrEngineDead)
	assert.ErrorContains(t, err, " hangs: a forward pass has been running for ")
	meant := strings.Contains(err.Error(), "step 3 hangs: ")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var late *ShutdownTimeoutError
	if err := e.Shutdown(ctx); meant {
		require.ErrorAs(t, err, &late)
		assert.Equal(t, "a forward pass", late.Phase)
	}
	stub.Resume()
	require.NoError(t, e.Shutdown(t.Context()))
	assert.Empty(t, e.Holdings())
	assert.Zero(t, stub.Used(0))
	assert.False(t, stub.Active(0))
	return meant
}
