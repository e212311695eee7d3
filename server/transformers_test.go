package server_test

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/internal/procfs"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

//go:embed testdata/transformers.py
var transformersEngine []byte

// transformers is an engine of three processes in Python, whose last one holds the GPU.
func transformers(t *testing.T, args ...string) server.Opener {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts a real engine")
	}
	out, err := exec.Command("python3", "-c", "import torch, transformers").CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		t.Skipf("python3 with torch and transformers: %v: %s", err, lines[len(lines)-1])
	}
	dir, err := os.MkdirTemp("", "py") // short: a message shows the first 100 bytes of a command line
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	script := filepath.Join(dir, "engine.py") // "transformers.py" would hide the module
	require.NoError(t, os.WriteFile(script, transformersEngine, 0o600))
	args = append([]string{script, "--port=" + server.Port, "--model", fixtures.Bundled()}, args...)
	return server.Command("python3", args...).With(server.For(t), server.Env("HF_HUB_OFFLINE=1"),
		server.ReadyHTTP("/health"))
}

// openTransformers starts the engine under a fixture, which follows its device memory.
func openTransformers(t *testing.T, args ...string) (*harness.Fixture, *server.Server) {
	t.Helper()
	// The first import of torch, and the first use of a GPU, take longer than other servers' starts.
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	f, err := harness.Open(ctx, transformers(t, args...), harness.StartTimeout(4*time.Minute))
	require.NoError(t, err)
	s := f.Engine().(*server.Server)
	outs, err := s.Generate(within(t), llm.Request{Prompt: "2+3=", Sampling: llm.SamplingParams{MaxTokens: 8}})
	require.NoError(t, err)
	require.Equal(t, "5", outs[0].Completions[0].Text)
	require.GreaterOrEqual(t, len(s.PIDs()), 3, "launcher, worker and core; and Python's resource trackers")
	return f, s
}

func TestTransformers(t *testing.T) {
	f, _ := openTransformers(t)
	report := f.Close(within(t))
	t.Logf("\n%s", report)
	require.NoError(t, report.Err())
	requireMemoryBack(t, report)
}

// requireMemoryBack checks the account of each GPU that the core used.
func requireMemoryBack(t *testing.T, report harness.Report) {
	t.Helper()
	if report.DeviceMemory == nil || len(report.DeviceMemory.Devices) == 0 {
		t.Log("no GPU: the model was on the CPU")
		return
	}
	used := false
	for _, d := range report.DeviceMemory.Devices {
		t.Logf("%v: %s (%s); of the family %d bytes at the peak", d.Device, d.Verdict, d.Proof, d.Peak.FamilyBytes())
		require.Equal(t, gpuwait.VerdictReturned, d.Verdict)
		used = used || d.Peak.FamilyBytes() >= 256<<20 || d.Peak.GPUMapped
	}
	require.True(t, used, "the core's memory was seen")
}

// The launcher exits well without ending what it started, or is killed: its worker, its core with
// the model in device memory, the shared memory and the semaphore are named, and the processes are
// ended.
func TestTransformersLeavesItsCore(t *testing.T) {
	for name, end := range map[string]func(launcher int) error{
		"forgotten": func(int) error { return nil },
		"killed":    func(launcher int) error { return syscall.Kill(launcher, syscall.SIGKILL) },
	} {
		t.Run(name, func(t *testing.T) {
			f, s := openTransformers(t, "--forget")
			pids := s.PIDs()
			require.NoError(t, end(pids[0]))
			report := f.Close(within(t))
			t.Logf("\n%s", report)
			err := report.Err()
			require.ErrorContains(t, err, "--role=core")
			require.ErrorContains(t, err, "setsid")
			require.ErrorContains(t, err, "--role=worker")
			require.ErrorContains(t, err, "shared memory /dev/shm/et-transformers-")
			require.ErrorContains(t, err, "semaphore /dev/shm/sem.et-transformers-")
			for _, pid := range pids {
				st, alive := procfs.StatOf(pid)
				require.False(t, alive && !st.Dead(), "process %d (%s)", pid, procfs.CommandLine(pid))
			}
			requireMemoryBack(t, report)
			left, err := filepath.Glob(fmt.Sprintf("/dev/shm/*et-transformers-%d", pids[0]))
			require.NoError(t, err)
			for _, path := range left {
				require.NoError(t, os.Remove(path))
			}
		})
	}
}
