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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/enginetest/enginetest/internal/cudatest"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A fault in Open crosses as it is, and nothing is left.
func TestChildFaultsInOpen(t *testing.T) {
	for _, point := range []llm.FaultPoint{llm.FaultLoad, llm.FaultAllocate, llm.FaultProfile} {
		for action, want := range map[llm.FaultAction]string{
			llm.ActError: "engine: injected fault at " + string(point) + ": planted", llm.ActPanic: "planted",
			llm.ActOOM:  "engine: out of device memory",
			llm.ActHang: "Config.StartTimeout (300ms)", llm.ActExit: "exited with code 1", llm.ActKill: "was killed by SIGKILL",
		} {
			t.Run(string(point)+"/"+string(action), func(t *testing.T) {
				cfg := Config{
					Model: tinyLlama, Logger: quiet, Core: ChildProcess,
					Faults: []llm.Fault{{Point: point, Action: action, Text: "planted"}},
				}
				if action == llm.ActHang {
					cfg.StartTimeout = 300 * time.Millisecond
				}
				files := fds(t)
				_, err := Open(t.Context(), cfg)
				assert.ErrorContains(t, err, "opening "+tinyLlama)
				assert.ErrorContains(t, err, want)
				assert.Equal(t, action == llm.ActOOM, errors.Is(err, llm.ErrOutOfMemory))
				assert.Equal(t, action == llm.ActHang, errors.Is(err, context.DeadlineExceeded))
				assert.Equal(t, action == llm.ActExit || action == llm.ActKill, errors.Is(err, llm.ErrEngineDead), "%v", err)
				var p *PanicError
				if errors.As(err, &p) {
					assert.Contains(t, p.Stack, "inject.go")
				}
				assert.Equal(t, action == llm.ActPanic, p != nil)
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
	var p *llm.ParamError
	require.ErrorAs(t, err, &p)
	assert.Equal(t, &llm.ParamError{
		Field: "MaxModelLen", Value: 5000,
		Bound: "at most 1024, the checkpoint's max_position_embeddings",
	}, p)
	_, err = Open(t.Context(), Config{Model: tinyLlama, Core: ChildProcess, KVCacheBytes: 1})
	assert.ErrorIs(t, err, llm.ErrOutOfMemory)
	_, err = Open(t.Context(), Config{Model: tinyLlama, Core: 7})
	assert.EqualError(t, err, "engine: Core is Core(7), must be InProcess or ChildProcess")

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err = Open(ctx, Config{
		Model: tinyLlama, Core: ChildProcess,
		Faults: []llm.Fault{{Point: llm.FaultLoad, Action: llm.ActHang}},
	})
	assert.ErrorIs(t, err, context.Canceled)
	_, err = Open(ctx, Config{Model: tinyLlama, Core: ChildProcess})
	assert.ErrorIs(t, err, context.Canceled)
}

// A core that says nothing at all, as if it were stuck in a driver, does not hold up its parent.
func TestSilentChildNamesTheOption(t *testing.T) {
	err := openWithin(t, Config{
		Model: tinyLlama, Core: ChildProcess,
		Faults: []llm.Fault{{Point: llm.FaultLoad, Action: llm.ActHang}},
	}, ` (T (stopped)) has not answered "open" for `, func(ctx context.Context) {
		for ctx.Err() == nil {
			if pid := corePID(); pid != 0 {
				_ = syscall.Kill(pid, syscall.SIGSTOP)
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "the engine has not started within Config.StartTimeout (")
	assert.Empty(t, children())
}

// openWithin opens an engine that hangs, with longer and longer StartTimeouts until its error has
// this text: a busy machine may take longer than a timeout to get to the hang.
func openWithin(t *testing.T, cfg Config, text string, meanwhile func(ctx context.Context)) error {
	t.Helper()
	for cfg.StartTimeout = 500 * time.Millisecond; ; cfg.StartTimeout *= 2 {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { meanwhile(ctx) })
		_, err := Open(t.Context(), cfg)
		cancel()
		wg.Wait()
		require.Error(t, err)
		if strings.Contains(err.Error(), text) {
			return err
		}
		require.Less(t, cfg.StartTimeout, time.Minute, "%v", err)
	}
}

// A core that hangs in its driver while it loads shows where.
func TestChildHangingOpenShowsWhere(t *testing.T) {
	path, err := cudatest.Build()
	if errors.Is(err, cudatest.ErrNoCompiler) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Setenv("ENGINETEST_LIBCUDA", path)
	t.Setenv("STUB_FAIL", fmt.Sprintf("cuModuleLoadDataEx:1:%d", cudatest.Hang))
	err = openWithin(t, Config{Model: tinyLlama, Device: "cuda", Core: ChildProcess, Logger: quiet},
		"cudarunner.", func(context.Context) {})
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "within Config.StartTimeout (")
	assert.ErrorContains(t, err,
		"exited with code 143, told to show where it hangs; its log, from the crash on:\n    engine core: SIGTERM, ")
	assert.Empty(t, children())
}

// corePID is the one core of this process; 0 when there is none yet. Before its exec it is a copy
// of its supervisor.
func corePID() int {
	for _, supervisor := range children() {
		for _, pid := range childrenOf(strconv.Itoa(supervisor)) {
			if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.Contains(string(name),
				"engine core") {
				return pid
			}
		}
	}
	return 0
}

// children are this process's, from /proc: the supervisors of its cores.
func children() []int { return childrenOf("self") }

func childrenOf(process string) (pids []int) {
	tasks, _ := os.ReadDir("/proc/" + process + "/task")
	for _, task := range tasks {
		list, _ := os.ReadFile("/proc/" + process + "/task/" + task.Name() + "/children")
		for _, f := range strings.Fields(string(list)) {
			var pid int
			_, _ = fmt.Sscan(f, &pid)
			pids = append(pids, pid)
		}
	}
	return pids
}

// A process that only inherited the variable is no core.
func TestInheritedVariableIsIgnored(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestStates$", "-test.v")
	cmd.Env = append(os.Environ(), "ENGINETEST_CORE=0:123")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err)
	assert.Contains(t, string(out), "--- PASS: TestStates")
}

// A core is the parent's own binary, also when another one has taken its place: go install, or go
// test -c, while it runs.
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
