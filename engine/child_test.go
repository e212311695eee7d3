//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var cores = []Core{InProcess, ChildProcess}

// Whatever is asked, a core in a child answers what one in this process does.
func TestChildGivesTheSame(t *testing.T) {
	text := func(prompt string, p SamplingParams) []Request { return []Request{{Prompt: prompt, Sampling: p}} }
	nan := []Request{{PromptTokenIDs: ids(3, 0)}, {PromptTokenIDs: ids(3, 0), Sampling: SamplingParams{TopP: 7}}}
	for _, row := range []struct {
		name string
		reqs []Request
	}{
		{"text", text("The lighthouse", SamplingParams{MaxTokens: 20})},
		{"several, by id and by text", []Request{{ID: "a", PromptTokenIDs: ids(5, 0)}, {ID: "b", Prompt: "2+3="}, {PromptTokenIDs: ids(50, 3)}}},
		{"three outputs with a seed of zero", text("Once", SamplingParams{N: 3, Temperature: 1, Seed: ptr(int64(0)), MaxTokens: 12})},
		{"drawn without a seed", text("Once", SamplingParams{Temperature: 1, MaxTokens: 12})},
		{"no logprobs but the sampled one: a pointer to zero", text("2+3=", SamplingParams{Logprobs: ptr(0), PromptLogprobs: ptr(0)})},
		{"all logprobs", text("2+3=", SamplingParams{Logprobs: ptr(-1), PromptLogprobs: ptr(2), MaxTokens: 3})},
		{"a stop string", text("The lighthouse", SamplingParams{Stop: []string{" the"}, MaxTokens: 60, IncludeStopInOutput: true})},
		{"special tokens kept", text("2+3=", SamplingParams{SkipSpecialTokens: ptr(false)})},
		{"bias, bad words, penalties", text("The", SamplingParams{
			LogitBias: map[int32]float64{5: 2, 6: -3}, BadWords: []string{"the"}, RepetitionPenalty: 1.2, StopTokenIDs: []int32{9},
		})},
		{"an empty text", text("", SamplingParams{})},
		{"bytes that are no text", text("a\xff\xfe", SamplingParams{MaxTokens: 3})},
		{"no tokens", []Request{{PromptTokenIDs: []int32{}}}},
		{"a bad token", []Request{{PromptTokenIDs: []int32{1, -7}}}},
		{"the second is bad", nan},
		{"nothing allowed", text("x", SamplingParams{AllowedTokenIDs: []int32{}})},
		{"a temperature that is no number", text("x", SamplingParams{Temperature: nanValue()})},
		{"N out of range", text("x", SamplingParams{N: 1 << 40, Temperature: 1})},
		{"too long", []Request{{PromptTokenIDs: ids(5000, 0)}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var outs [2][]Output
			var errs [2]error
			var streams [2]string
			for i, core := range cores {
				e := openTiny(t, Config{Model: fixtures.Bundled(), Core: core})
				outs[i], errs[i] = e.Generate(t.Context(), row.reqs...)
				text := map[int]string{}
				for d, err := range e.Stream(t.Context(), row.reqs[0]) {
					text[d.Index] += fmt.Sprint(d.Text, d.TokenIDs, d.Logprobs, d.FinishReason, d.StopReason)
					if err != nil {
						text[-1] = err.Error()
					}
				}
				streams[i] = fmt.Sprint(text)
				want, err := e.Encode("The lighthouse")
				require.NoError(t, err)
				back, err := e.Decode(want)
				require.NoError(t, err)
				assert.Equal(t, "The lighthouse", strings.TrimSpace(back))
			}
			assert.Equal(t, outs[0], outs[1])
			assert.Equal(t, streams[0], streams[1])
			if errs[0] == nil {
				assert.NoError(t, errs[1])
				return
			}
			require.Error(t, errs[1])
			assert.Equal(t, errs[0].Error(), errs[1].Error())
			var p, q *ParamError
			assert.Equal(t, errors.As(errs[0], &p), errors.As(errs[1], &q))
			if p != nil {
				assert.Equal(t, fmt.Sprintf("%T %v", p.Value, p), fmt.Sprintf("%T %v", q.Value, q)) // NaN is not equal to itself
			}
			assert.Equal(t, errors.Is(errs[0], ErrPromptTooBig), errors.Is(errs[1], ErrPromptTooBig))
		})
	}
}

func nanValue() float64 { z := 0.0; return z / z }

// Abort, cancelled contexts, streams that are left, drains and resets do in a child what they do here.
func TestChildEndsRequests(t *testing.T) {
	e := openTiny(t, Config{Model: fixtures.Bundled(), Core: ChildProcess, MaxModelLen: 512})
	req := Request{ID: "x", PromptTokenIDs: ids(5, 0), Sampling: SamplingParams{MaxTokens: 500, IgnoreEOS: true}}

	got := make(chan []Output)
	go func() { outs, err := e.Generate(context.Background(), req); assert.NoError(t, err); got <- outs }()
	require.Eventually(t, func() bool { return e.Stats().Running == 1 }, 5*time.Second, time.Millisecond)
	assert.ErrorIs(t, e.ResetPrefixCache(t.Context()), ErrBlocksInUse)
	_, err := e.Generate(t.Context(), req)
	assert.ErrorContains(t, err, `ID is "x", must be unique`)
	assert.True(t, e.Abort("x"))
	assert.False(t, e.Abort("nobody"))
	assert.Equal(t, FinishAbort, (<-got)[0].Completions[0].FinishReason)

	for range e.Stream(t.Context(), req) {
		break
	}
	require.Eventually(t, func() bool { return e.Stats().Running == 0 }, 5*time.Second, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = e.Generate(ctx, req)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	require.Eventually(t, func() bool { return e.ResetPrefixCache(t.Context()) == nil }, 5*time.Second, time.Millisecond)
	assert.Equal(t, 3, e.Stats().Aborted)

	go func() { outs, _ := e.Generate(context.Background(), req); got <- outs }()
	require.Eventually(t, func() bool { return e.Stats().Running == 1 }, 5*time.Second, time.Millisecond)
	ctx, cancel = context.WithCancel(t.Context())
	drained := make(chan error)
	go func() { drained <- e.Drain(ctx) }()
	require.Eventually(t, func() bool { return e.State() == Draining }, 5*time.Second, time.Millisecond)
	_, err = e.Generate(t.Context(), req)
	assert.ErrorIs(t, err, ErrDraining)
	cancel()
	err = <-drained
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorContains(t, err, "1 of 1 requests aborted")
	assert.Equal(t, FinishAbort, (<-got)[0].Completions[0].FinishReason)
	assert.Equal(t, err, e.Drain(t.Context()))
	require.NoError(t, e.Shutdown(t.Context()))
	assert.Equal(t, []string{"drain", "abort", "release", "exit", "reap"}, names(e.ShutdownReport()))
}

func TestChildShutdown(t *testing.T) {
	e := openTiny(t, Config{Core: ChildProcess})
	require.Len(t, e.PIDs(), 1)
	require.NotEmpty(t, e.Holdings())
	req := Request{PromptTokenIDs: ids(5, 0), Sampling: SamplingParams{MaxTokens: 1000, IgnoreEOS: true}}
	got := make(chan error)
	go func() {
		outs, err := e.Generate(context.Background(), req)
		assert.Len(t, outs, 1)
		assert.Equal(t, FinishAbort, outs[0].Completions[0].FinishReason)
		assert.NotEmpty(t, outs[0].Completions[0].TokenIDs)
		got <- err
	}()
	require.Eventually(t, func() bool { return e.Stats().OutputTokens > 3 }, 5*time.Second, time.Millisecond)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { assert.NoError(t, e.Shutdown(context.Background())) })
	}
	wg.Wait()
	assert.ErrorIs(t, <-got, ErrStopped)
	assert.Empty(t, e.PIDs())
	assert.Empty(t, e.Holdings())
	assert.Equal(t, 1, e.Stats().Aborted)
	assert.ErrorIs(t, e.Err(), ErrStopped)
	_, err := e.Generate(t.Context(), req)
	assert.ErrorIs(t, err, ErrStopped)
	_, err = e.Encode("x")
	assert.ErrorIs(t, err, ErrStopped)
	assert.ErrorIs(t, e.ResetPrefixCache(t.Context()), ErrStopped)
	assert.False(t, e.Abort("x"))
}

func TestChildSleeps(t *testing.T) {
	e := openTiny(t, Config{Device: "cpu", Core: ChildProcess})
	var p *ParamError
	assert.ErrorAs(t, e.Sleep(t.Context(), 9), &p)
	before := one(t, e, ids(5, 0), SamplingParams{MaxTokens: 8})
	for level := 1; level <= 2; level++ {
		held := ledger.ByOwner(e.Holdings())
		require.NoError(t, e.Sleep(t.Context(), level))
		assert.Equal(t, Sleeping, e.State())
		assert.Zero(t, ledger.ByOwner(e.Holdings())["kv_cache"])
		_, err := e.Generate(t.Context(), Request{PromptTokenIDs: ids(5, 0)})
		assert.ErrorIs(t, err, ErrSleeping)
		require.NoError(t, e.Wake(t.Context()))
		assert.Equal(t, held, ledger.ByOwner(e.Holdings()))
		assert.Equal(t, before, one(t, e, ids(5, 0), SamplingParams{MaxTokens: 8}))
	}
	require.NoError(t, e.Sleep(t.Context(), 1))
	assert.NoError(t, e.Shutdown(t.Context()), "from its sleep")
}

// Lives of child cores leave no descriptor, no goroutine (TestMain looks) and no process.
func TestChildCyclesLeaveNothing(t *testing.T) {
	cycle := func() {
		e, err := Open(t.Context(), Config{Model: tinyLlama, Logger: quiet, Core: ChildProcess})
		require.NoError(t, err)
		one(t, e, []int32{306}, SamplingParams{MaxTokens: 1})
		require.NoError(t, e.Shutdown(t.Context()))
	}
	cycle()
	files := fds(t)
	for range 10 {
		cycle()
	}
	assert.LessOrEqual(t, fds(t), files)
	var status syscall.WaitStatus
	_, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
	assert.ErrorIs(t, err, syscall.ECHILD)
}

// A fault in Open crosses as it is, and nothing is left.
func TestChildFaultsInOpen(t *testing.T) {
	for _, point := range []FaultPoint{FaultLoad, FaultAllocate, FaultProfile} {
		for action, want := range map[FaultAction]string{
			ActError: "engine: injected fault at " + string(point) + ": planted", ActPanic: "planted", ActOOM: "engine: out of device memory",
			ActHang: "Config.StartTimeout (300ms)", ActExit: "exited with code 1", ActKill: "was killed by SIGKILL",
		} {
			t.Run(string(point)+"/"+string(action), func(t *testing.T) {
				cfg := Config{Model: tinyLlama, Logger: quiet, Core: ChildProcess, Faults: []Fault{{Point: point, Action: action, Text: "planted"}}}
				if action == ActHang {
					cfg.StartTimeout = 300 * time.Millisecond
				}
				files := fds(t)
				_, err := Open(t.Context(), cfg)
				assert.ErrorContains(t, err, "opening "+tinyLlama)
				assert.ErrorContains(t, err, want)
				assert.Equal(t, action == ActOOM, errors.Is(err, ErrOutOfMemory))
				assert.Equal(t, action == ActHang, errors.Is(err, context.DeadlineExceeded))
				assert.Equal(t, action == ActExit || action == ActKill, errors.Is(err, ErrEngineDead), "%v", err)
				var p *PanicError
				if errors.As(err, &p) {
					assert.Contains(t, p.Stack, "inject.go")
				}
				assert.Equal(t, action == ActPanic, p != nil)
				assert.LessOrEqual(t, fds(t), files)
			})
		}
	}
}

func TestChildOpenErrors(t *testing.T) {
	_, err := Open(t.Context(), Config{Model: "no/such/folder", Core: ChildProcess})
	var c *CheckpointError
	require.ErrorAs(t, err, &c)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	_, here := Open(t.Context(), Config{Model: "no/such/folder"})
	assert.Equal(t, here.Error(), err.Error())

	_, err = Open(t.Context(), Config{Model: tinyLlama, Core: ChildProcess, MaxModelLen: 5000})
	var p *ParamError
	require.ErrorAs(t, err, &p)
	assert.Equal(t, &ParamError{Field: "MaxModelLen", Value: 5000, Bound: "at most 1024, the checkpoint's max_position_embeddings"}, p)
	_, err = Open(t.Context(), Config{Model: tinyLlama, Core: ChildProcess, KVCacheBytes: 1})
	assert.ErrorIs(t, err, ErrOutOfMemory)
	_, err = Open(t.Context(), Config{Model: tinyLlama, Core: 7})
	assert.EqualError(t, err, "engine: Core is Core(7), must be InProcess or ChildProcess")

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err = Open(ctx, Config{Model: tinyLlama, Core: ChildProcess, Faults: []Fault{{Point: FaultLoad, Action: ActHang}}})
	assert.ErrorIs(t, err, context.Canceled)
	_, err = Open(ctx, Config{Model: tinyLlama, Core: ChildProcess})
	assert.ErrorIs(t, err, context.Canceled)
}

// A core that says nothing at all, as if it were stuck in a driver, does not hold up its parent.
func TestSilentChildNamesTheOption(t *testing.T) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		assert.Eventually(t, func() bool {
			for _, pid := range children() {
				// Before its exec it is a copy of this process that os/exec waits for.
				if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.Contains(string(name), "engine core") {
					_ = syscall.Kill(pid, syscall.SIGSTOP)
					return true
				}
			}
			return false
		}, 5*time.Second, time.Millisecond)
	}()
	began := time.Now()
	_, err := Open(t.Context(), Config{Model: tinyLlama, Core: ChildProcess, StartTimeout: 500 * time.Millisecond, Faults: []Fault{{Point: FaultLoad, Action: ActHang}}})
	<-done
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "the engine has not started within Config.StartTimeout (500ms)")
	assert.ErrorContains(t, err, `has not answered "open"`)
	assert.Less(t, time.Since(began), 10*time.Second)
	assert.Empty(t, children())
}

// children are this process's, from /proc.
func children() (pids []int) {
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, task := range tasks {
		list, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		for _, f := range strings.Fields(string(list)) {
			var pid int
			_, _ = fmt.Sscan(f, &pid)
			pids = append(pids, pid)
		}
	}
	return pids
}

// However a core breaks in a step, everybody gets the cause at once, and Shutdown leaves nothing.
func TestChildFaultsInSteps(t *testing.T) {
	for _, point := range []FaultPoint{FaultForward, FaultSample, FaultOutput} {
		for action, want := range map[FaultAction]string{
			ActError: "injected fault at " + string(point) + ": planted", ActPanic: "planted", ActOOM: "out of device memory",
			ActExit: "exited with code 1", ActKill: "was killed by SIGKILL (by somebody, or by the kernel's OOM killer",
		} {
			t.Run(string(point)+"/"+string(action), func(t *testing.T) {
				e := openTiny(t, Config{Core: ChildProcess, Faults: []Fault{{Point: point, Action: action, After: 10, Text: "planted"}}})
				process := action == ActExit || action == ActKill
				isDead := func(err error) {
					t.Helper()
					assert.ErrorIs(t, err, ErrEngineDead)
					assert.ErrorContains(t, err, want)
					assert.Equal(t, 1, strings.Count(err.Error(), "engine: dead"), err)
					assert.Equal(t, !process, errors.Is(err, ErrInjected))
					assert.Equal(t, action == ActOOM, errors.Is(err, ErrOutOfMemory))
					var p *PanicError
					assert.Equal(t, action == ActPanic, errors.As(err, &p))
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
					require.Eventually(t, func() bool { return len(e.PIDs()) == 0 }, 5*time.Second, time.Millisecond)
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
	for action, want := range map[FaultAction]string{
		ActError: "engine: injected fault at shutdown", ActPanic: "engine: injected fault at shutdown", ActHang: "release of the model runner",
		ActExit: "exited with code 1", ActKill: "was killed by SIGKILL",
	} {
		t.Run(string(action), func(t *testing.T) {
			e, err := Open(t.Context(), Config{Model: tinyLlama, Logger: quiet, Core: ChildProcess, Faults: []Fault{{Point: FaultShutdown, Action: action}}})
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err = e.Shutdown(ctx)
			assert.ErrorContains(t, err, want)
			var leak *LeakError
			assert.Equal(t, action != ActExit && action != ActKill && action != ActHang, errors.As(err, &leak), "%v", err)
			assert.Empty(t, e.Holdings(), "whatever it says, its process is gone")
			assert.Empty(t, children())
			assert.Equal(t, Stopped, e.State())
		})
	}
}

// A core that does not react to anything is killed within the context, and the report says so step by step.
func TestChildThatHangsIsKilled(t *testing.T) {
	e, err := Open(t.Context(), Config{Model: tinyLlama, Logger: quiet, Core: ChildProcess})
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(e.PIDs()[0], syscall.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	_, err = e.Generate(ctx50(t), Request{PromptTokenIDs: ids(3, 0)})
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	err = e.Shutdown(ctx)
	assert.Less(t, time.Since(began), 3*time.Second)
	assert.ErrorIs(t, err, ErrKilled)
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

// SIGTERM to a core alone does nothing: its life is its parent's business. SIGKILL ends it, and callers know within a second.
func TestSignalsToTheCore(t *testing.T) {
	e := openTiny(t, Config{Model: fixtures.Bundled(), Core: ChildProcess, MaxModelLen: 512})
	require.NoError(t, syscall.Kill(e.PIDs()[0], syscall.SIGTERM))
	tail := e.b.(*child).tail
	require.Eventually(t, func() bool { return strings.Contains(tail.quote(), "SIGTERM ignored") }, 5*time.Second, time.Millisecond)
	assert.Len(t, one(t, e, ids(3, 0), SamplingParams{MaxTokens: 5, IgnoreEOS: true}).TokenIDs, 5)
	got := make(chan error, 1)
	var struck time.Time
	go func() {
		_, err := e.Generate(context.Background(), Request{PromptTokenIDs: ids(3, 0), Sampling: SamplingParams{MaxTokens: 500, IgnoreEOS: true}})
		got <- err
	}()
	require.Eventually(t, func() bool { return e.Stats().Running == 1 }, 5*time.Second, time.Millisecond)
	struck = time.Now()
	require.NoError(t, syscall.Kill(e.PIDs()[0], syscall.SIGKILL))
	err := <-got
	assert.Less(t, time.Since(struck), time.Second)
	assert.ErrorIs(t, err, ErrEngineDead)
	assert.ErrorContains(t, err, "was killed by SIGKILL")
	assert.ErrorContains(t, err, "SIGTERM ignored", "the tail of the core's log")
}

// SIGTERM to a core that hangs in its shutdown shows where, and ends it.
func TestSIGTERMShowsWhatHangs(t *testing.T) {
	e, err := Open(t.Context(), Config{Model: tinyLlama, Logger: quiet, Core: ChildProcess, Faults: []Fault{{Point: FaultShutdown, Action: ActHang}}})
	require.NoError(t, err)
	pid, got := e.PIDs()[0], make(chan error)
	go func() { got <- e.Shutdown(context.Background()) }()
	require.Eventually(t, func() bool { return e.b.(*child).faultReports()[0].Fired == 1 }, 5*time.Second, time.Millisecond)
	require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
	err = <-got
	assert.ErrorContains(t, err, "exited with code 143; its log, from the crash on:\n    engine core: SIGTERM during the shutdown; goroutines:")
	assert.ErrorContains(t, err, "inject.go", "the place")
	assert.Empty(t, children())
}

// A crash that no fault injected, in a goroutine that nobody watches: its stack is in the error.
func TestChildCrashIsQuoted(t *testing.T) {
	e := openTiny(t, Config{Core: ChildProcess})
	require.NoError(t, syscall.Kill(e.PIDs()[0], syscall.SIGQUIT)) // the Go runtime prints all stacks and exits with 2
	<-e.Done()
	assert.ErrorContains(t, e.Err(), "exited with code 2")
	assert.ErrorContains(t, e.Err(), "its log, from the crash on:\n    SIGQUIT: quit")
}

// A process that only inherited the variable is no core.
func TestInheritedVariableIsIgnored(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestStates$", "-test.v")
	cmd.Env = append(os.Environ(), "ENGINETEST_CORE=0:123")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err)
	assert.Contains(t, string(out), "--- PASS: TestStates")
}

// A core is the parent's own binary, also when another one has taken its place: go install, or go test -c, while it runs.
func TestCoreOfAReplacedBinary(t *testing.T) {
	if os.Getenv("ENGINE_TEST_REPLACED") != "" {
		exe, err := os.Executable()
		require.NoError(t, err)
		require.NoError(t, os.Remove(exe))
		require.NoError(t, os.WriteFile(exe, []byte("#!/bin/false\n"), 0o700))
		one(t, openTiny(t, Config{Core: ChildProcess}), ids(3, 0), SamplingParams{MaxTokens: 5})
		return
	}
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	exe := filepath.Join(t.TempDir(), "engine.test")
	require.NoError(t, os.WriteFile(exe, self, 0o700))
	cmd := exec.Command(exe, "-test.run=^TestCoreOfAReplacedBinary$", "-test.v")
	cmd.Env = append(os.Environ(), "ENGINE_TEST_REPLACED=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "--- PASS: TestCoreOfAReplacedBinary")
}

// The core dies with its parent, while it loads and while it serves.
func TestChildDiesWithItsParent(t *testing.T) {
	if os.Getenv("ENGINE_TEST_PARENT") != "" {
		cfg := Config{Model: tinyLlama, Core: ChildProcess}
		if os.Getenv("ENGINE_TEST_PARENT") == "loading" {
			cfg.Faults = []Fault{{Point: FaultLoad, Action: ActHang}}
			time.AfterFunc(100*time.Millisecond, func() { fmt.Println("child", children()[0]) })
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
		require.NoError(t, syscall.Kill(pid, 0))
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		assert.Eventually(t, func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || strings.Contains(string(stat), ") Z ")
		}, time.Second, time.Millisecond, when)
	}
}

func TestChildIsReportedWhenDropped(t *testing.T) {
	e := openTiny(t, Config{Core: ChildProcess})
	e.b.reportDropped() // what a collected handle calls; TestDroppedEngineIsReportedOnce has the collector
	require.NoError(t, e.Shutdown(t.Context()))
}
