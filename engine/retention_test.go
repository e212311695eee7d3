package engine

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// kept is what a caller may hold on to without keeping an engine.
type kept struct {
	outs []Output
	errs []error
	more []any
}

// After Shutdown nothing of the engine is reachable but for what the caller asked for: not the
// handle, not the runner, not the loop's parts, whatever happened before, with all results and
// errors still held.
func TestNothingKeepsAnEngine(t *testing.T) {
	req := Request{PromptTokenIDs: ids(5, 0), Sampling: SamplingParams{
		MaxTokens: 30, IgnoreEOS: true,
		Logprobs: ptr(3),
	}}
	for _, tc := range []struct {
		name   string
		faults []llm.Fault
		use    func(t *testing.T, e *Engine, k *kept)
	}{
		{"nothing", nil, func(*testing.T, *Engine, *kept) {}},
		{"a request", nil, func(t *testing.T, e *Engine, k *kept) {
			outs, err := e.Generate(t.Context(), req)
			require.NoError(t, err)
			k.outs = outs
		}},
		{"a stream that was left", nil, func(t *testing.T, e *Engine, k *kept) {
			for d, err := range e.Stream(t.Context(), req) {
				require.NoError(t, err)
				k.more = append(k.more, d)
				break
			}
		}},
		{"a cancelled request, with its context", nil, func(t *testing.T, e *Engine, k *kept) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
			k.more = append(k.more, ctx, cancel)
			_, err := e.Generate(ctx, req)
			k.errs = append(k.errs, err)
		}},
		{"requests in flight at the shutdown", nil, func(t *testing.T, e *Engine, k *kept) {
			r := req
			r.Sampling.MaxTokens = 1000
			rs, err := e.b.(*core).start(t.Context(), []Request{r, r}, false)
			require.NoError(t, err)
			require.NoError(t, e.Shutdown(t.Context()))
			for _, r := range rs {
				<-r.done
				assert.Nil(t, r.seqs)
				k.more = append(k.more, r)
			}
		}},
		{"settings, counters, holdings", nil, func(_ *testing.T, e *Engine, k *kept) {
			k.more = append(k.more, e.Config(), e.Stats(), e.Holdings(), e.Faults(), e.Done())
		}},
		{"a failed step", []llm.Fault{{Point: llm.FaultForward, Action: llm.ActError, After: 3}}, nil},
		{"a panic in a step", []llm.Fault{{Point: llm.FaultForward, Action: llm.ActPanic, After: 3}}, nil},
		{"a panic in sampling", []llm.Fault{{Point: llm.FaultSample, Action: llm.ActPanic, After: 3}}, nil},
		{"a failed output", []llm.Fault{{Point: llm.FaultOutput, Action: llm.ActError, After: 3}}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var k kept
			use := tc.use
			if use == nil {
				use = func(t *testing.T, e *Engine, k *kept) {
					outs, err := e.Generate(t.Context(), req, req)
					require.ErrorIs(t, err, llm.ErrEngineDead)
					k.outs, k.errs = outs, append(k.errs, err, e.Err())
				}
			}
			held, released := lifeOf(t, tc.faults, use, &k)
			require.Eventually(t, func() bool {
				runtime.GC()
				return len(released()) == 0
			}, time.Minute, time.Millisecond, "the runner and the parts, with the handle held")
			runtime.KeepAlive(held[0])
			handle, parts := weak.Make(held[0]), weak.Make(held[0].b.(*core))
			held[0] = nil
			require.Eventually(t, func() bool {
				runtime.GC()
				return handle.Value() == nil && parts.Value() == nil
			}, time.Minute, time.Millisecond)
			runtime.KeepAlive(&k)
		})
	}
}

// lifeOf opens an engine, uses it, shuts it down, and tells which of its parts can still be
// reached.
func lifeOf(t *testing.T, faults []llm.Fault, use func(*testing.T, *Engine, *kept),
	k *kept,
) (held []*Engine, alive func() []string) {
	e, err := Open(t.Context(), Config{Model: tinyLlama, Logger: quiet, Faults: faults})
	require.NoError(t, err)
	require.Len(t, e.Parts(), 3)
	runner, sched, cache := weakRunner(e.b.(*core).loop.runner), weak.Make(e.b.(*core).loop.sched), weak.Make(e.b.(*core).loop.cache)
	use(t, e, k)
	require.NoError(t, e.Shutdown(t.Context()))
	return []*Engine{e}, func() (names []string) {
		if runner.Value() != nil {
			names = append(names, "runner")
		}
		if sched.Value() != nil {
			names = append(names, "scheduler")
		}
		if cache.Value() != nil {
			names = append(names, "kv cache")
		}
		return names
	}
}

// weakRunner holds a device's runner, whichever it is, weakly.
func weakRunner(r modelrunner.Runner) weak.Pointer[byte] {
	return weak.Make((*byte)(reflect.ValueOf(r).UnsafePointer()))
}

// The check above finds what it looks for: an error that holds the runner keeps it.
func TestPlantedRetentionIsSeen(t *testing.T) {
	e, err := Open(t.Context(), Config{Model: tinyLlama, Logger: quiet})
	require.NoError(t, err)
	type holder struct {
		error
		runner modelrunner.Runner
	}
	planted := holder{errors.New("x"), e.b.(*core).loop.runner}
	runner := weakRunner(e.b.(*core).loop.runner)
	require.NoError(t, e.Shutdown(t.Context()))
	for range 5 {
		runtime.GC()
	}
	assert.NotNil(t, runner.Value())
	runtime.KeepAlive(planted)
}

// A request that has finished is not kept by an engine that goes on.
func TestFinishedRequestsAreNotKept(t *testing.T) {
	e := openTiny(t, Config{})
	run := func() weak.Pointer[request] {
		rs, err := e.b.(*core).start(t.Context(), []Request{{
			PromptTokenIDs: ids(40, 0),
			Sampling:       SamplingParams{MaxTokens: 3},
		}}, false)
		require.NoError(t, err)
		<-rs[0].done
		return weak.Make(rs[0])
	}
	w := run()
	require.Eventually(t, func() bool { runtime.GC(); return w.Value() == nil }, time.Minute, time.Millisecond)
	assert.Equal(t, Running, e.State())
}
