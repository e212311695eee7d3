package runner_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/internal/cudatest"
	"github.com/enginetest/enginetest/runner"
)

// onStub runs one test of this binary in a process of its own, where libcuda is the stand-in, and
// returns what go test -json would read of it.
func onStub(t *testing.T, test string) (string, error) {
	t.Helper()
	path, err := cudatest.Build()
	if errors.Is(err, cudatest.ErrNoCompiler) {
		t.Skip(err)
	}
	require.NoError(t, err)
	c := exec.Command(os.Args[0], "-test.run", "^"+test+"$", "-test.v=test2json", "-test.count=1")
	c.Env = append(os.Environ(), "RUNNER_CHILD=1", "ENGINETEST_LIBCUDA="+path, "STUB_DEVICES=1",
		"STUB_MEMORY=2147483648", "STUB_DESCRIPTORS=1")
	out, err := c.CombinedOutput()
	return string(out), err
}

func onlyInChild(t *testing.T) {
	t.Helper()
	if os.Getenv("RUNNER_CHILD") == "" {
		t.Skip("run by another test, in a process of its own")
	}
}

// board is the stand-in's only device, as a driver that lists every process would show it: all of
// its memory is this process's, and a context takes memory of its own.
type board struct{ *cudatest.Stub }

const (
	stubUUID    = "GPU-d058595a-5b5c-5d5e-5f60-616263646566"
	stubContext = 91 << 20
)

func newBoard(t *testing.T) board { return board{cudatest.New(t, 1, 2<<30)} }

func (b board) Devices() ([]gpuwait.Device, error) {
	return []gpuwait.Device{{UUID: stubUUID, Name: "Stub GPU", Vendor: gpuwait.NVIDIA}}, nil
}

func (b board) used() (n int64) {
	if n = b.Used(0); b.Active(0) {
		n += stubContext
	}
	return n
}

func (b board) Memory(string) (gpuwait.Memory, error) {
	return gpuwait.Memory{Total: 80 << 30, Used: b.used()}, nil
}

func (b board) Holders(string) ([]gpuwait.Holder, error) {
	if used := b.used(); used > 0 {
		return []gpuwait.Holder{{PID: os.Getpid(), Bytes: used, Known: true}}, nil
	}
	return nil, nil
}

var onGPU = runner.Config{Model: fixtures.Bundled(), Device: "cuda", KVCacheBytes: 64 << 20}

// A clean engine on CUDA is gone, although the driver keeps what it opened at its first use.
func TestTheDriversDescriptorsAreItsOwn(t *testing.T) {
	out, err := onStub(t, "TestChildCleanOnCUDA")
	require.NoError(t, err, out)
	assert.Contains(t, out, "--- PASS: TestChildCleanOnCUDA")
}

func TestChildCleanOnCUDA(t *testing.T) {
	onlyInChild(t)
	r := runner.New(t, onGPU, runner.DeviceSource(newBoard(t)))
	report := r.Stop()
	require.NoError(t, report.Err())
	assert.Contains(t, report.String(), "(but for 5 descriptors of the CUDA driver, which keeps them until the process ends)")
}

// What the engine opens of the same kinds is found beside them.
func TestPlantedDescriptorsAreFoundBesideTheDrivers(t *testing.T) {
	out, err := onStub(t, "TestChildPlantedOnCUDA")
	require.Error(t, err)
	for _, want := range []string{"is open: pipe:", "is open: anon_inode:[eventfd]", "is open: anon_inode:[eventpoll]"} {
		assert.Contains(t, out, want)
	}
	assert.NotContains(t, out, "of the CUDA driver", "those are accepted")
}

func TestChildPlantedOnCUDA(t *testing.T) {
	onlyInChild(t)
	runner.New(t, onGPU, runner.DeviceSource(newBoard(t)), runner.TeardownTimeout(2*time.Second))
	plant(t)
}

func plant(t *testing.T) {
	t.Helper()
	require.NoError(t, unix.Pipe(make([]int, 2)))
	_, err := unix.Eventfd(0, 0)
	require.NoError(t, err)
	_, err = unix.EpollCreate1(0)
	require.NoError(t, err)
}

// An engine that was opened beside the fixture and forgotten is named by the line that opened it,
// in one process and with its core in another.
func TestForgottenEngineIsNamed(t *testing.T) {
	out, err := onStub(t, "TestChildForgotten")
	require.Error(t, err)
	assert.Contains(t, out, "engine opened at forgotten_linux_test.go:")
	assert.Regexp(t, `device memory .*\n.*GPU-d058.*: \d+\.\d MiB: engine opened at forgotten_linux_test.go:\d+, never shut down`, out)
	assert.Contains(t, out, "the rest is what the driver took for it")
}

func TestChildForgotten(t *testing.T) {
	onlyInChild(t)
	runner.New(t, onGPU, runner.DeviceSource(newBoard(t)), runner.TeardownTimeout(4*time.Second))
	cfg := onGPU
	cfg.KVCacheBytes = 512 << 20
	_, err := engine.Open(context.Background(), cfg)
	require.NoError(t, err)
}

// On the CPU it is named by its traces: they are one line under it.
func TestTracesOfAForgottenEngine(t *testing.T) {
	for test, want := range map[string]string{
		"TestChildForgottenGoroutine": `goroutines .*\n\s+\d+\.\d MiB: engine opened at forgotten_linux_test.go:\d+, never shut down\n` +
			`\s+with it came .*goroutine \d+ `,
		"TestChildForgottenOnCPU": `\n\s+\d+\.\d MiB: engine opened at forgotten_linux_test.go:\d+, never shut down\n` +
			`\s+with it came .*model.safetensors is mapped`,
		"TestChildForgottenCore": `\n\s+engine opened at forgotten_linux_test.go:\d+, never shut down\n` +
			`\s+with it came child process \d+ runs.* and 1 more \(process\).*socket.*descriptor`,
	} {
		out, err := onStub(t, test)
		require.Error(t, err)
		assert.Regexp(t, want, out)
		assert.NotContains(t, out, "lacks the scope's label", "its goroutines are its traces, too")
		assert.Contains(t, out, "shut it down before the fixture ends, or start it with a fixture of its own")
		assert.Contains(t, out, "verdict.class leak")
	}
}

func forget(t *testing.T, core engine.Core) {
	onlyInChild(t)
	cfg := runner.Config{Model: fixtures.Bundled(), Device: "cpu", Core: core}
	runner.New(t, cfg, runner.TeardownTimeout(2*time.Second))
	_, err := engine.Open(context.Background(), cfg)
	require.NoError(t, err)
}

func TestChildForgottenOnCPU(t *testing.T) { forget(t, engine.InProcess) }

// A timer's goroutine has no label: it counts as the fixture's where nothing else ran.
func TestChildForgottenGoroutine(t *testing.T) {
	started := make(chan bool)
	forget(t, engine.InProcess)
	time.AfterFunc(0, func() { started <- true; select {} })
	<-started
}

func TestChildForgottenCore(t *testing.T) { forget(t, engine.ChildProcess) }

// onRealGPU runs one test of this binary in a process of its own, without the stand-in.
func onRealGPU(t *testing.T, test string) (string, error) {
	t.Helper()
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		t.Skip("no GPU: ", err)
	}
	c := exec.Command(os.Args[0], "-test.run", "^"+test+"$", "-test.v=test2json", "-test.count=1")
	c.Env = append(os.Environ(), "RUNNER_CHILD=1")
	out, err := c.CombinedOutput()
	t.Logf("%s", out)
	return string(out), err
}

// Clean lives on a GPU pass, the first of a process and those after it, in this process and with a
// core of their own.
func TestCleanLivesOnRealGPU(t *testing.T) {
	out, err := onRealGPU(t, "TestChildCleanOnRealGPU")
	require.NoError(t, err)
	assert.NotContains(t, out, "device memory -", "it was checked")
}

func TestChildCleanOnRealGPU(t *testing.T) {
	onlyInChild(t)
	for _, core := range []engine.Core{engine.InProcess, engine.ChildProcess} {
		for range 10 {
			cfg := onGPU
			cfg.Core = core
			r := runner.New(t, cfg)
			require.Equal(t, "5", r.GenerateGreedy("2+3=", 8).Text)
			report := r.Stop()
			require.NoError(t, report.Err())
			t.Log(report)
		}
	}
}

// What the engine itself opens is found there too, and an engine that was forgotten is named.
func TestLeaksOnRealGPU(t *testing.T) {
	out, err := onRealGPU(t, "TestChildPlantedOnRealGPU")
	require.Error(t, err)
	for _, want := range []string{"is open: pipe:", "is open: anon_inode:[eventfd]", "is open: anon_inode:[eventpoll]"} {
		assert.Equal(t, map[bool]int{true: 2, false: 1}[want == "is open: pipe:"], strings.Count(messages(out), want), want)
	}
	assert.NotContains(t, messages(out), "of the CUDA driver", "those are accepted")
	out, err = onRealGPU(t, "TestChildForgottenOnRealGPU")
	require.Error(t, err)
	assert.Regexp(t, `: \d+\.\d [MG]iB: engine opened at forgotten_linux_test.go:\d+, never shut down`, out)
	assert.Contains(t, out, "the rest is what the driver took for it")
	out, err = onRealGPU(t, "TestChildForgottenCoreOnRealGPU")
	require.Error(t, err)
	assert.Regexp(t, `: \d+\.\d [MG]iB: engine opened at forgotten_linux_test.go:\d+, never shut down`, out)
}

// messages is the output without the attached reports, which say all of it again.
func messages(out string) (s string) {
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "enginetest-") && !strings.Contains(line, "ATTR") {
			s += line
		}
	}
	return s
}

func TestChildPlantedOnRealGPU(t *testing.T) {
	onlyInChild(t)
	runner.New(t, onGPU, runner.TeardownTimeout(10*time.Second))
	plant(t)
}

func TestChildForgottenOnRealGPU(t *testing.T)     { forgetOnGPU(t, engine.InProcess) }
func TestChildForgottenCoreOnRealGPU(t *testing.T) { forgetOnGPU(t, engine.ChildProcess) }

func forgetOnGPU(t *testing.T, core engine.Core) {
	onlyInChild(t)
	runner.New(t, onGPU, runner.TeardownTimeout(10*time.Second))
	cfg := onGPU
	cfg.KVCacheBytes, cfg.Core = 512<<20, core
	_, err := engine.Open(context.Background(), cfg)
	require.NoError(t, err)
}
