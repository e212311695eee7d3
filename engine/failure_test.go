package engine

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/scheduler/fakerunner"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A fault while the engine opens: a typed error, and nothing is left.
func TestFaultsInOpen(t *testing.T) {
	for _, point := range []llm.FaultPoint{llm.FaultLoad, llm.FaultAllocate, llm.FaultProfile} {
		for _, action := range []llm.FaultAction{llm.ActError, llm.ActPanic, llm.ActOOM} {
			for after := range 4 { // of the allocations: weights, rope, workspace, kv_cache
				if after > 0 && point != llm.FaultAllocate {
					continue
				}
				t.Run(string(point)+"/"+string(action), func(t *testing.T) {
					var c *core
					_, err := open(t.Context(), Config{
						Model: tinyLlama, Logger: quiet,
						Faults: []llm.Fault{{Point: point, Action: action, After: after, Text: "planted"}},
					}, func(x *core) (model, error) { c = x; return loadCheckpoint(x) })
					assert.ErrorIs(t, err, llm.ErrInjected)
					assert.ErrorContains(t, err, "engine: injected fault at "+string(point)+": planted")
					assert.Equal(t, action == llm.ActOOM, errors.Is(err, llm.ErrOutOfMemory))
					var p *PanicError
					assert.Equal(t, action == llm.ActPanic, errors.As(err, &p))
					var leak *LeakError
					assert.NotErrorAs(t, err, &leak)
					assert.Empty(t, c.ledger.Holdings())
					assert.Equal(t, 1, c.faults.report()[0].Fired)
					assert.Equal(t, Stopped, c.state)
				})
			}
		}
	}
}

// A fault in a step: all requests of now and later get the cause, and the engine still gives
// everything back.
func TestFaultsInSteps(t *testing.T) {
	for _, point := range []llm.FaultPoint{llm.FaultForward, llm.FaultSample, llm.FaultOutput} {
		for _, action := range []llm.FaultAction{llm.ActError, llm.ActPanic, llm.ActOOM} {
			t.Run(string(point)+"/"+string(action), func(t *testing.T) {
				e := openTiny(t, Config{Faults: []llm.Fault{{Point: point, Action: action, After: 10, Text: "planted"}}})
				isDead := func(err error) {
					assert.ErrorIs(t, err, llm.ErrEngineDead)
					assert.ErrorIs(t, err, llm.ErrInjected)
					assert.ErrorContains(t, err, "planted")
					assert.Equal(t, action == llm.ActOOM, errors.Is(err, llm.ErrOutOfMemory))
					var p *PanicError
					if assert.Equal(t, action == llm.ActPanic, errors.As(err, &p)) && p != nil {
						assert.Contains(t, p.Stack, "inject.go")
					}
				}
				var wg sync.WaitGroup
				for i := range 3 {
					wg.Go(func() {
						outs, err := e.Generate(t.Context(),
							Request{
								PromptTokenIDs: ids(5, i),
								Sampling:       SamplingParams{MaxTokens: 100, IgnoreEOS: true},
							})
						isDead(err)
						if len(outs) == 1 { // it was started before the fault struck
							assert.Equal(t, llm.FinishError, outs[0].Completions[0].FinishReason)
						}
					})
				}
				for _, err := range e.Stream(t.Context(),
					Request{PromptTokenIDs: ids(5, 9), Sampling: SamplingParams{MaxTokens: 100, IgnoreEOS: true}}) {
					if err != nil {
						isDead(err)
					}
				}
				wg.Wait()
				<-e.Done()
				assert.Equal(t, Failed, e.State())
				isDead(e.Err())
				_, err := e.Generate(t.Context(), Request{PromptTokenIDs: ids(5, 0)})
				isDead(err)
				isDead(e.ResetPrefixCache(t.Context()))
				assert.NotEmpty(t, e.Holdings(), "a failed engine keeps its memory until it is shut down")
				assert.Equal(t, []llm.FaultReport{{Fault: e.Config().Faults[0], Passes: e.Faults()[0].Passes, Fired: 1}},
					e.Faults())
				require.NoError(t, e.Shutdown(t.Context()))
				isDead(e.Err())
				assert.Empty(t, e.Holdings())
			})
		}
	}
}

func TestHungStepEndsWithShutdown(t *testing.T) {
	for _, point := range []llm.FaultPoint{llm.FaultForward, llm.FaultSample, llm.FaultOutput} {
		t.Run(string(point), func(t *testing.T) {
			e := openTiny(t, Config{Faults: []llm.Fault{{Point: point, Action: llm.ActHang, After: 2}}})
			got := make(chan error)
			go func() {
				_, err := e.Generate(context.Background(),
					Request{PromptTokenIDs: ids(5, 0), Sampling: SamplingParams{MaxTokens: 50, IgnoreEOS: true}})
				got <- err
			}()
			require.Eventually(t, func() bool { return e.Faults()[0].Fired == 1 }, time.Minute, time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_, err := e.Generate(ctx, Request{PromptTokenIDs: ids(5, 0)})
			assert.ErrorIs(t, err, context.DeadlineExceeded, "a caller's context works although the engine hangs")
			require.NoError(t, e.Shutdown(t.Context()))
			assert.ErrorIs(t, <-got, llm.ErrStopped)
			assert.ErrorIs(t, e.Err(), llm.ErrStopped)
		})
	}
}

// A release step that fails leaves its memory, which is named; all others run.
func TestFaultsInShutdown(t *testing.T) {
	for _, action := range []llm.FaultAction{llm.ActError, llm.ActPanic, llm.ActHang} {
		t.Run(string(action), func(t *testing.T) {
			e, err := Open(t.Context(), Config{
				Model: tinyLlama, Device: "cpu", Logger: quiet, RecordStacks: true,
				Faults: []llm.Fault{{Point: llm.FaultShutdown, Action: action}},
			})
			require.NoError(t, err)
			runner := e.b.(*core).loop.runner
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			err = e.Shutdown(ctx)
			if action == llm.ActHang {
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			}
			err = e.Shutdown(t.Context())
			assert.ErrorContains(t, err, "cpurunner: releasing kv_cache (8.0 MiB): ")
			assert.ErrorContains(t, err, "engine: injected fault at shutdown")
			var leak *LeakError
			require.ErrorAs(t, err, &leak)
			assert.Equal(t, "kv_cache", leak.Holdings[0].Owner, "the first that is released")
			assert.NotEmpty(t, leak.Holdings[0].Stack)
			assert.Len(t, leak.Holdings, 1, "the other steps ran")
			assert.Equal(t, Stopped, e.State())
			assert.NoError(t, runner.Close(), "what the planted fault left can be released")
			assert.Empty(t, e.Holdings())
		})
	}
}

// What ends the process ends it.
func TestFaultsThatEndTheProcess(t *testing.T) {
	if action := os.Getenv("ENGINE_TEST_ACTION"); action != "" {
		e, err := Open(t.Context(), Config{
			Model:  tinyLlama,
			Faults: []llm.Fault{{Point: llm.FaultForward, Action: llm.FaultAction(action), After: 1}},
		})
		require.NoError(t, err)
		one(t, e, ids(3, 0), SamplingParams{})
		t.Fatal("the process should be gone")
	}
	for action, want := range map[llm.FaultAction]string{llm.ActExit: "exit status 1", llm.ActKill: "signal: killed"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFaultsThatEndTheProcess$")
		cmd.Env = append(os.Environ(), "ENGINE_TEST_ACTION="+string(action))
		out, err := cmd.CombinedOutput()
		assert.EqualError(t, err, want, "%s", out)
		assert.NotContains(t, string(out), "should be gone")
	}
}

// One sequence's own error ends its request alone.
func TestRequestFailsAlone(t *testing.T) {
	bad := errors.New("no token is left")
	r := &fakerunner.Runner{OnSeq: func(_ int, s modelrunner.Seq) error {
		if s.Sampler != nil && s.Sampler.Prompt[0] == 13 && s.Sampler.Params.Seed == 100 && len(s.Sampler.Output) == 2 {
			return bad
		}
		return nil
	}}
	e := openFake(t, Config{Model: "fake"}, r, false)
	p := SamplingParams{MaxTokens: 5, IgnoreEOS: true, Seed: ptr(int64(100))}
	outs, err := e.Generate(t.Context(),
		Request{PromptTokenIDs: ids(4, 0), Sampling: p}, Request{
			ID: "bad", PromptTokenIDs: ids(4, 13),
			Sampling: p,
		}, Request{PromptTokenIDs: ids(4, 20), Sampling: p})
	assert.EqualError(t, err, "engine: request bad: no token is left")
	assert.ErrorIs(t, err, bad)
	require.Len(t, outs, 3)
	for i, want := range []llm.FinishReason{llm.FinishLength, llm.FinishError, llm.FinishLength} {
		assert.Equal(t, want, outs[i].Completions[0].FinishReason)
	}
	assert.Len(t, outs[1].Completions[0].TokenIDs, 2)
	assert.NoError(t, e.Err(), "the engine is well")
	assert.Len(t, one(t, e, ids(4, 0), p).TokenIDs, 5)
	assert.Equal(t, 1, e.Stats().Errored)
	assert.Zero(t, e.Stats().KVBlocksUsed)

	// With n outputs the siblings end too, in the same step.
	p.N, p.Temperature = 3, 1
	outs, err = e.Generate(t.Context(), Request{PromptTokenIDs: ids(4, 13), Sampling: p})
	assert.ErrorIs(t, err, bad)
	for i, tokens := range []int{2, 1, 1} { // the siblings began when the prompt was computed
		assert.Equal(t, llm.FinishError, outs[0].Completions[i].FinishReason)
		assert.Len(t, outs[0].Completions[i].TokenIDs, tokens)
	}
	assert.Zero(t, e.Stats().KVBlocksUsed)
	require.NoError(t, e.ResetPrefixCache(t.Context()))
}

// A runner that breaks its contract is an error, not a crash.
func TestRunnerThatLies(t *testing.T) {
	steps := 0
	r := &fakerunner.Runner{OnExecute: func(b *modelrunner.Batch) error {
		if steps++; steps == 3 {
			b.Seqs = b.Seqs[:0]
		}
		return nil
	}}
	e := openFake(t, Config{Model: "fake", Logger: quiet}, r, false)
	_, err := e.Generate(t.Context(), Request{PromptTokenIDs: ids(4, 0)})
	assert.ErrorIs(t, err, llm.ErrEngineDead)
	assert.ErrorContains(t, err, "the runner gave 0 results for 1 sequences")
	require.NoError(t, e.Shutdown(t.Context()))
}

func TestPanicErrorReads(t *testing.T) {
	type big struct{ Engine *Engine }
	err := panicError("a forward pass", &big{}, []byte("goroutine 1\nmain.go:1\n"))
	assert.True(t, strings.HasPrefix(err.Error(), "panic during a forward pass: &{<nil>}\ngoroutine 1"))
	assert.NoError(t, errors.Unwrap(err), "a value that is no error is kept as text only")
	again := panicError("output", err, []byte("other"))
	assert.Same(t, err, again, "a panic that was handed on keeps its own stack")
}
