//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// However a core breaks in a step, everybody gets the cause at once, and Shutdown leaves nothing.
func TestChildFaultsInSteps(t *testing.T) {
	for _, point := range []llm.FaultPoint{llm.FaultForward, llm.FaultSample, llm.FaultOutput} {
		for action, want := range map[llm.FaultAction]string{
			llm.ActError: "injected fault at " + string(point) + ": planted", llm.ActPanic: "planted",
			llm.ActOOM:  "out of device memory",
			llm.ActExit: "exited with code 1", llm.ActKill: "was killed by SIGKILL",
		} {
			t.Run(string(point)+"/"+string(action), func(t *testing.T) {
				e := openTiny(t, Config{
					Core:   ChildProcess,
					Faults: []llm.Fault{{Point: point, Action: action, After: 10, Text: "planted"}},
				})
				process := action == llm.ActExit || action == llm.ActKill
				isDead := func(err error) {
					t.Helper()
					assert.ErrorIs(t, err, llm.ErrEngineDead)
					assert.ErrorContains(t, err, want)
					assert.Equal(t, 1, strings.Count(err.Error(), "engine: dead"), err)
					assert.Equal(t, !process, errors.Is(err, llm.ErrInjected))
					assert.Equal(t, action == llm.ActOOM, errors.Is(err, llm.ErrOutOfMemory))
					var p *PanicError
					assert.Equal(t, action == llm.ActPanic, errors.As(err, &p))
				}
				req := Request{PromptTokenIDs: ids(5, 0), Sampling: SamplingParams{MaxTokens: 100, IgnoreEOS: true}}
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() { _, err := e.Generate(t.Context(), req); isDead(err) })
				}
				for _, err := range e.Stream(t.Context(), req) {
					if err != nil {
						isDead(err)
					}
				}
				wg.Wait()
				<-e.Done()
				assert.Equal(t, Failed, e.State())
				isDead(e.Err())
				_, err := e.Generate(t.Context(), req)
				isDead(err)
				isDead(e.ResetPrefixCache(t.Context()))
				if process {
					require.Eventually(t, func() bool { return len(e.PIDs()) == 0 }, time.Minute, time.Millisecond)
					assert.Empty(t, e.Holdings(), "the memory went with the process")
				} else {
					assert.NotEmpty(t, e.Holdings())
				}
				assert.Equal(t, 1, e.Faults()[0].Fired, "a fault that ends the process is known to have fired")
				require.NoError(t, e.Shutdown(t.Context()))
				isDead(e.Err())
				assert.Equal(t, 1, e.Faults()[0].Fired)
				report := names(e.ShutdownReport())
				assert.Equal(t, "reap", report[len(report)-1])
			})
		}
	}
}

func TestChildFaultsInShutdown(t *testing.T) {
	for action, want := range map[llm.FaultAction]string{
		llm.ActError: "engine: injected fault at shutdown", llm.ActPanic: "engine: injected fault at shutdown",
		llm.ActHang: "release of the model runner",
		llm.ActExit: "exited with code 1", llm.ActKill: "was killed by SIGKILL",
	} {
		t.Run(string(action), func(t *testing.T) {
			e, err := Open(t.Context(), Config{
				Model: tinyLlama, Logger: quiet, Core: ChildProcess,
				Faults: []llm.Fault{{Point: llm.FaultShutdown, Action: action}},
			})
			require.NoError(t, err)
			limit := time.Minute
			if action == llm.ActHang {
				limit = time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			err = e.Shutdown(ctx)
			assert.ErrorContains(t, err, want)
			assert.Equal(t, action == llm.ActHang, errors.Is(err, llm.ErrKilled), "%v", err)
			var late *ShutdownTimeoutError
			assert.NotErrorAs(t, err, &late, "nothing goes on any more")
			var leak *LeakError
			assert.Equal(t, action != llm.ActExit && action != llm.ActKill && action != llm.ActHang, errors.As(err, &leak), "%v",
				err)
			assert.Empty(t, e.Holdings(), "whatever it says, its process is gone")
			assert.Empty(t, children())
			assert.Equal(t, Stopped, e.State())
		})
	}
}

// A core that does not react to anything is killed within the context, and the report says so step
// by step.
func TestChildThatHangsIsKilled(t *testing.T) {
	e, err := Open(t.Context(), Config{Model: tinyLlama, Logger: quiet, Core: ChildProcess})
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(e.PIDs()[0], syscall.SIGSTOP))
	_, err = e.Generate(ctx50(t), Request{PromptTokenIDs: ids(3, 0)})
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err = e.Shutdown(ctx)
	assert.ErrorIs(t, err, llm.ErrKilled)
	assert.ErrorContains(t, err, "SIGKILL ended it")
	assert.Equal(t, []string{"abort", "SIGTERM", "SIGKILL", "reap"}, names(e.ShutdownReport()))
	assert.Equal(t, err, e.Shutdown(t.Context()))
	assert.Empty(t, children())
	assert.Empty(t, e.Holdings())
}

func ctx50(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// SIGTERM to a core alone does nothing: its life is its parent's business. SIGKILL ends it, and
// callers know.
func TestSignalsToTheCore(t *testing.T) {
	e := openTiny(t, Config{Model: fixtures.Bundled(), Core: ChildProcess, MaxModelLen: 512})
	require.NoError(t, syscall.Kill(e.PIDs()[0], syscall.SIGTERM))
	tail := e.b.(*child).tail
	require.Eventually(t, func() bool {
		return strings.Contains(tail.quote(), "SIGTERM ignored")
	}, time.Minute, time.Millisecond)
	assert.Len(t, one(t, e, ids(3, 0), SamplingParams{MaxTokens: 5, IgnoreEOS: true}).TokenIDs, 5)
	got := make(chan error, 1)
	go func() {
		_, err := e.Generate(context.Background(), Request{
			PromptTokenIDs: ids(3, 0),
			Sampling:       SamplingParams{MaxTokens: 500, IgnoreEOS: true},
		})
		got <- err
	}()
	require.Eventually(t, func() bool { return e.Stats().Running == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, syscall.Kill(e.PIDs()[0], syscall.SIGKILL))
	err := <-got
	assert.ErrorIs(t, err, llm.ErrEngineDead)
	assert.ErrorContains(t, err, "was killed by SIGKILL")
	assert.ErrorContains(t, err, "SIGTERM ignored", "the tail of the core's log")
	s := e.Stats()
	assert.Zero(t, s.Running+s.Waiting+s.KVBlocksUsed, "nothing runs any more")
	assert.Equal(t, 1, s.Errored)
}

// A core that ended by itself, just after the context did, was not killed: its exit code says so.
func TestChildThatEndedWasNotKilled(t *testing.T) {
	e := openTiny(t, Config{Core: ChildProcess})
	c := e.b.(*child)
	_, err := call[closed](t.Context(), c, "shutdown", none{})
	require.NoError(t, err)
	require.NoError(t, c.link.Close())
	<-c.dead
	assert.NoError(t, c.endByForce(t.Context(), time.Minute))
	assert.Equal(t, "SIGTERM", c.report.Phases[0].Name)
	assert.Equal(t, "exited with code 0", c.report.Phases[0].Detail)
}

// SIGTERM to a core that hangs in its shutdown shows where, and ends it.
func TestSIGTERMShowsWhatHangs(t *testing.T) {
	e, err := Open(t.Context(), Config{
		Model: tinyLlama, Logger: quiet, Core: ChildProcess,
		Faults: []llm.Fault{{Point: llm.FaultShutdown, Action: llm.ActHang}},
	})
	require.NoError(t, err)
	pid, got := e.PIDs()[0], make(chan error)
	go func() { got <- e.Shutdown(context.Background()) }()
	require.Eventually(t, func() bool {
		return e.b.(*child).faultReports()[0].Fired == 1
	}, time.Minute, time.Millisecond)
	require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
	err = <-got
	assert.ErrorContains(t, err, "exited with code 143; its log, from the crash on:\n    engine core: SIGTERM, and it was told to stop; goroutines:")
	assert.ErrorContains(t, err, "inject.go", "the place")
	assert.Empty(t, children())
}

// A crash that no fault injected, in a goroutine that no one watches: its stack is in the error.
func TestChildCrashIsQuoted(t *testing.T) {
	e := openTiny(t, Config{Core: ChildProcess})
	require.NoError(t, syscall.Kill(e.PIDs()[0], syscall.SIGQUIT)) // the Go runtime prints all stacks and exits with 2
	<-e.Done()
	assert.ErrorContains(t, e.Err(), "exited with code 2")
	assert.ErrorContains(t, e.Err(), "its log, from the crash on:\n    SIGQUIT: quit")
}

// The core dies with its parent, while it loads and while it serves.
func TestChildDiesWithItsParent(t *testing.T) {
	if os.Getenv("ENGINE_TEST_PARENT") != "" {
		cfg := Config{Model: tinyLlama, Core: ChildProcess}
		if os.Getenv("ENGINE_TEST_PARENT") == "loading" {
			cfg.Faults = []llm.Fault{{Point: llm.FaultLoad, Action: llm.ActHang}}
			go func() {
				for corePID() == 0 {
					time.Sleep(time.Millisecond)
				}
				fmt.Println("child", corePID())
			}()
		}
		e, err := Open(t.Context(), cfg)
		require.NoError(t, err)
		fmt.Println("child", e.PIDs()[0])
		select {}
	}
	for _, when := range []string{"loading", "serving"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestChildDiesWithItsParent$")
		cmd.Env = append(os.Environ(), "ENGINE_TEST_PARENT="+when)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		var pid int
		_, err = fmt.Fscanf(out, "child %d\n", &pid)
		require.NoError(t, err)
		require.Positive(t, pid)
		require.NoError(t, syscall.Kill(pid, 0))
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		assert.Eventually(t, func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || strings.Contains(string(stat), ") Z ")
		}, time.Minute, time.Millisecond, when)
	}
}

func TestChildIsReportedWhenDropped(t *testing.T) {
	e := openTiny(t, Config{Core: ChildProcess})
	e.b.reportDropped() // what a collected handle calls; TestDroppedEngineIsReportedOnce has the collector
	require.NoError(t, e.Shutdown(t.Context()))
}
