//go:build linux

package forkproc

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
)

const cleanMaps = `00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/app
7f1000000000-7f1000021000 rw-p 00000000 00:00 0
`

func maps(paths ...string) string {
	s := cleanMaps
	for _, p := range paths {
		s += "7f2000000000-7f2000100000 r-xp 00000000 08:02 1 " + p + "\n"
	}
	return s
}

// The states that were seen on a machine with a driver.
func TestTracesOfCUDA(t *testing.T) {
	three, zero := 3, 0
	lib := "/usr/lib/x86_64-linux-gnu/libcuda.so.580.1"
	for _, c := range []struct {
		tr   traces
		want []string // nothing: not initialised
		why  string
	}{
		{traces{maps: cleanMaps}, nil, "no trace of the driver"},
		{
			traces{maps: maps(lib), files: []string{"/dev/nvidia0", "/dev/nvidiactl"}, count: &three},
			nil,
			"after nvmlInit: libcuda is mapped, device files are open, CUDA is not initialised",
		},
		{traces{maps: maps(lib), count: &three}, nil, "after nvmlShutdown"},
		{
			traces{maps: maps(lib, "/dev/nvidia0", "/dev/nvidiactl"), files: []string{"/dev/nvidia0"}, count: &zero},
			[]string{
				"cuDeviceGetCount of " + lib + " returns 0", "mapped /dev/nvidia0, /dev/nvidiactl",
				"open /dev/nvidia0",
			},
			"after cuInit",
		},
		{traces{maps: maps(lib), count: &zero}, []string{"returns 0"}, "the driver's word alone"},
		{
			traces{maps: maps("/dev/nvidia-uvm")},
			[]string{"mapped /dev/nvidia-uvm"},
			"a driver linked in under another name",
		},
		{
			traces{maps: maps(lib), countBy: "it has no cuDeviceGetCount"},
			[]string{"cannot tell", "is mapped but it has no cuDeviceGetCount"},
			"no answer is not a good one",
		},
		{traces{maps: maps(lib, "/opt/libcudart.so.12", "/opt/libtorch_cuda.so"), count: &zero, threads: []string{"app", "cuda-EvtHandlr"}}, []string{"in this process: libcudart.so.12, libtorch_cuda.so, thread cuda-EvtHandlr"}, "who may have done it"},
	} {
		err := c.tr.judge()
		if c.want == nil {
			require.NoError(t, err, c.why)
			continue
		}
		for _, w := range c.want {
			require.ErrorContains(t, err, w, c.why)
		}
	}
}

const fakeCUDA = `static int up;
int cuInit(unsigned flags) { up = 1; return 0; }
int cuDeviceGetCount(int *n) { if (!up) return 3; *n = 1; return 0; }
`

// A library that answers as libcuda does, in a child of its own.
func TestNoCUDAAsksTheDriver(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	lib := os.Getenv("FORKPROC_FAKE_CUDA")
	if lib == "" {
		dir := t.TempDir()
		src := filepath.Join(dir, "cuda.c")
		lib = filepath.Join(dir, "libcuda.so.1")
		require.NoError(t, os.WriteFile(src, []byte(fakeCUDA), 0o600))
		out, err := exec.Command("cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", lib, src).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	Run(t, func(t *testing.T) {
		mapped := func() bool {
			b, err := os.ReadFile("/proc/self/maps")
			require.NoError(t, err)
			return strings.Contains(string(b), "libcuda.so")
		}
		require.NoError(t, NoCUDA())
		require.False(t, mapped(), "the question must not load the library, although it is in the search path")
		h, err := purego.Dlopen(lib, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		require.NoError(t, err)
		require.True(t, mapped())
		require.NoError(t, NoCUDA(), "loaded, not initialised")
		RequireNoCUDA(t)
		f, err := purego.Dlsym(h, "cuInit")
		require.NoError(t, err)
		purego.SyscallN(f, 0)
		err = NoCUDA()
		var cuda *CUDAError
		require.ErrorAs(t, err, &cuda)
		require.ErrorContains(t, err, "cuDeviceGetCount of "+lib+" returns 0, not CUDA_ERROR_NOT_INITIALIZED (3)")
	}, Env("FORKPROC_FAKE_CUDA="+lib, "LD_LIBRARY_PATH="+filepath.Dir(lib)))
	RequireNoCUDA(t) // the parent is as it was
}

func TestJudge(t *testing.T) {
	base := facts{ready: true, begun: true, bodyDone: true, ended: true, verdict: "pass"}
	with := func(change func(*facts)) facts { f := base; change(&f); return f }
	for _, c := range []struct {
		f      facts
		status Status
		reason string
		why    string
	}{
		{base, StatusPassed, "passed", "both witnesses"},
		{with(func(f *facts) { f.verdict = "skip" }), StatusSkipped, "skipped", ""},
		{with(func(f *facts) { f.verdict = "skip"; f.bodyPass = true }), StatusPassed, "passed", "stop's fallback"},
		{with(func(f *facts) { f.ended = false }), StatusExited, "did not confirm", "the stream alone is no witness"},
		{with(func(f *facts) { f.verdict = "" }), StatusExited, "exited with code 0 before the test finished, after the test had ended", "the note alone is none either"},
		{with(func(f *facts) {
			f.exitCode = 3
		}), StatusFailed, "but then exited with code 3: TestMain", "a pass is not one when the process fails"},
		{with(func(f *facts) {
			f.exitCode = 66
			f.race = true
			f.verdict = ""
		}), StatusFailed, "ended by the race detector (exit code 66)", ""},
		{with(func(f *facts) { f.exitCode = 1; f.race = true }), StatusFailed, "a data race outside of the test", ""},
		{
			facts{ready: true, verdict: "skip"},
			StatusNotReached, "without reaching forkproc.Run",
			"the test took another way",
		},
		{facts{ready: true}, StatusNotReached, "ran no test of this name", ""},
		{facts{ready: true, call: true}, StatusNotReached, "never came to forkproc.Main", "TestMain does not call it"},
		{
			facts{ready: true, exitCode: 1},
			StatusExited, "exited with code 1 before the test reached forkproc.Run",
			"TestMain failed",
		},
		{
			facts{exitCode: 2, panicLine: "panic: init"},
			StatusPanicked,
			"crashed (exit code 2) before package init was over: panic: init", "",
		},
		{with(func(f *facts) {
			f.stuck = true
			f.limit = 1e9
		}), StatusTimedOut, "does not die of SIGKILL: it is in an uninterruptible system call", "a driver that hangs"},
		{with(func(f *facts) { f.signal = 9; f.oom = "the oom_kill counter of this cgroup rose from 3 to 4" }), StatusOOMKilled, "likely the kernel's OOM killer: the oom_kill counter of this cgroup rose from 3 to 4", ""},
		{with(func(f *facts) {
			f.signal = 15
			f.oom = "rose"
		}), StatusKilled, "killed by SIGTERM", "the OOM killer sends SIGKILL only"},
		{with(func(f *facts) {
			f.exitCode = 127
			f.linker = "x: symbol lookup error: y"
		}), StatusNotStarted, "dynamic linker (exit code 127)", ""},
	} {
		v := c.f.judge()
		require.Equal(t, c.status, v.status, "%s: %s", c.why, v.reason)
		require.Contains(t, v.reason+"\n"+v.note, c.reason, c.why)
	}
}
