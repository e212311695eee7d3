package failures

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onsi/gomega"
	"github.com/onsi/gomega/gleak"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/fixtures/fault"
	"github.com/enginetest/enginetest/forkproc"
	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/gpuwait/gpuwaittest"
	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/runner"
)

// testCases fail in their own way.
var testCases = map[string]func(t *testing.T){
	// Faults of the bundled engine.
	"engine--own-forward-late":  func(t *testing.T) { own(t, fault.Error(llm.FaultForward, 1)) },
	"engine--own-forward-panic": func(t *testing.T) { own(t, fault.Panic(llm.FaultForward, 1)) },
	"engine--own-sample-panic":  func(t *testing.T) { own(t, fault.Panic(llm.FaultSample, 1)) },
	"engine--own-output-error":  func(t *testing.T) { own(t, fault.Error(llm.FaultOutput, 1)) },
	"engine--own-output-panic":  func(t *testing.T) { own(t, fault.Panic(llm.FaultOutput, 0)) },
	"engine--own-profile":       func(t *testing.T) { own(t, fault.Error(llm.FaultProfile, 0)) },
	"engine--own-load-panic":    func(t *testing.T) { own(t, fault.Panic(llm.FaultLoad, 0)) },
	"engine--own-shutdown":      func(t *testing.T) { own(t, fault.Panic(llm.FaultShutdown, 0)) },
	"engine--own-allocate":      func(t *testing.T) { own(t, fault.Error(llm.FaultAllocate, 1)) },
	"capacity--own-oom-load":    func(t *testing.T) { own(t, fault.OutOfMemory(llm.FaultAllocate, 0)) },
	"capacity--own-oom-late":    func(t *testing.T) { own(t, fault.OutOfMemory(llm.FaultAllocate, 1)) },
	"timeout--own-sample-hang":  func(t *testing.T) { ownWithin(t, fault.Hang(llm.FaultSample, 1)) },
	"timeout--own-output-hang":  func(t *testing.T) { ownWithin(t, fault.Hang(llm.FaultOutput, 1)) },
	"timeout--own-start":        func(t *testing.T) { own(t, fault.Hang(llm.FaultLoad, 0), runner.StartTimeout(time.Second)) },
	"test--own-unfired":         func(t *testing.T) { own(t, fault.Panic(llm.FaultSample, 90_000)) },
	"capacity--own-cuda":        func(t *testing.T) { ownConfig(t, runner.Config{Model: fixtures.Bundled(), Device: "cuda"}) },
	"engine--own-no-model":      func(t *testing.T) { ownConfig(t, runner.Config{Model: t.TempDir(), Device: "cpu"}) },
	"engine--own-torn-model":    func(t *testing.T) { ownConfig(t, runner.Config{Model: torn(t), Device: "cpu"}) },
	"test--own-answer": func(t *testing.T) {
		r := runner.New(t, runner.Config{Model: fixtures.Bundled(), Device: "cpu"})
		require.Equal(t, "connection refused", r.GenerateGreedy("2+3=", 4).Text)
	},
	"engine--own-use-after": func(t *testing.T) {
		r := runner.New(t, runner.Config{Model: fixtures.Bundled(), Device: "cpu", Faults: []llm.Fault{fault.Error(llm.FaultForward, 2)}})
		for range 4 {
			r.GenerateGreedy("2+3=", 1)
		}
	},

	// Leaks, found by this module and by others.
	"leak--guard-timer": func(t *testing.T) { leakcheck.Guard(t); go time.Sleep(time.Hour) },
	"leak--guard-mutex": func(t *testing.T) { leakcheck.Guard(t); var m sync.Mutex; m.Lock(); go m.Lock() },
	"leak--guard-listener": func(t *testing.T) {
		leakcheck.Guard(t)
		l, _ := net.Listen("tcp", "127.0.0.1:0")
		go func() { _, _ = l.Accept() }()
	},
	"leak--guard-closure": func(t *testing.T) {
		g := leakcheck.Guard(t)
		e := &toy{}
		g.Track("engine", e)
		keep = append(keep, func() { _ = e })
	},
	"leak--fixture-socket": func(t *testing.T) {
		plantIn(t, func() { l, _ := net.Listen("tcp", "127.0.0.1:0"); keep = append(keep, l) })
	},
	"leak--fixture-pipe": func(t *testing.T) { plantIn(t, func() { r, w, _ := os.Pipe(); keep = append(keep, r, w) }) },
	"leak--fixture-mmap": func(t *testing.T) {
		plantIn(t, func() {
			b, _ := syscall.Mmap(-1, 0, 64<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_ANON)
			keep = append(keep, b)
		})
	},
	"leak--fixture-shm": func(t *testing.T) {
		name := fmt.Sprintf("/dev/shm/failures-%d", os.Getpid())
		t.Cleanup(func() { _ = os.Remove(name) })
		plantIn(t, func() { _ = os.WriteFile(name, make([]byte, 4096), 0o600) })
	},
	"leak--fixture-ticker": func(t *testing.T) {
		plantIn(t, func() {
			tick := time.NewTicker(time.Hour)
			go func() {
				for range tick.C {
					_ = tick
				}
			}()
		})
	},
	"leak--fixture-http": func(t *testing.T) {
		plantIn(t, func() { s := httptest.NewServer(http.NotFoundHandler()); keep = append(keep, s) })
	},
	"leak--fixture-process": func(t *testing.T) {
		plantIn(t, func() { cmd := exec.Command("sleep", "30"); _ = cmd.Start(); keep = append(keep, cmd) })
	},
	"leak--goleak-ticker": func(t *testing.T) {
		defer goleak.VerifyNone(t)
		go func() {
			for range time.Tick(time.Hour) {
				continue
			}
		}()
	},
	"leak--goleak-http": func(t *testing.T) {
		defer goleak.VerifyNone(t)
		s := httptest.NewServer(http.NotFoundHandler())
		r, err := http.Get(s.URL)
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, r.Body)
	},
	"leak--gleak": func(t *testing.T) {
		g := gomega.NewWithT(t)
		before := gleak.Goroutines()
		go func() { select {} }()
		g.Eventually(gleak.Goroutines, "500ms").ShouldNot(gleak.HaveLeaked(before))
	},
	"leak--synctest": func(t *testing.T) {
		synctest.Test(t, func(*testing.T) { go func() { <-make(chan int) }(); synctest.Wait() })
	},
	"leak--log-after": func(t *testing.T) {
		t.Run("request", func(t *testing.T) { go func() { time.Sleep(50 * time.Millisecond); t.Log("token 9") }() })
		time.Sleep(300 * time.Millisecond)
	},
	"leak--tempdir": func(t *testing.T) {
		dir := t.TempDir()
		stop := make(chan bool)
		go func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					_ = os.MkdirAll(filepath.Join(dir, "spill", fmt.Sprint(i)), 0o700)
					_ = os.WriteFile(filepath.Join(dir, "spill", fmt.Sprint(i), "kv"), nil, 0o600)
				}
			}
		}()
		time.Sleep(100 * time.Millisecond)
	},
	"leak--fork-process": func(t *testing.T) {
		forkproc.Run(t, func(t *testing.T) { require.NoError(t, exec.Command("setsid", "-f", "sleep", "40").Run()) })
	},
	"leak--fork-shm": func(t *testing.T) {
		name := fmt.Sprintf("/dev/shm/failures-f%d", os.Getpid())
		t.Cleanup(func() { _ = os.Remove(name) })
		forkproc.Run(t, func(t *testing.T) {
			f, err := os.Create(name)
			require.NoError(t, err)
			require.NoError(t, f.Truncate(1<<20))
			keep = append(keep, f)
		})
	},
	"leak--device-own": func(t *testing.T) { devices(t, gpuwait.Holder{PID: os.Getpid(), Bytes: 9 << 30, Known: true}) },
	"leak--growth": func(t *testing.T) {
		leakcheck.Growth(t, 20, func(int) { keep = append(keep, make([]byte, 64<<10)) })
	},

	// Devices.
	"capacity--device-others": func(t *testing.T) { devices(t, gpuwait.Holder{PID: 1, Bytes: 9 << 30, Known: true}) },
	"capacity--device-lease": func(t *testing.T) {
		t.Setenv("GPUWAIT_LEASE_DIR", t.TempDir())
		src := gpuwaittest.New(gpuwaittest.Device{Device: gpuwait.Device{UUID: "GPU-5"}, Total: 24 << 30})
		gpuwait.Acquire(t, 1, gpuwait.From(src))
		t.Run("second", func(t *testing.T) { gpuwait.Acquire(t, 1, gpuwait.From(src), gpuwait.Timeout(300*time.Millisecond)) })
	},
	"capacity--device-few": func(t *testing.T) {
		t.Setenv("GPUWAIT_LEASE_DIR", t.TempDir())
		src := gpuwaittest.New(gpuwaittest.Device{Device: gpuwait.Device{UUID: "GPU-5"}, Total: 24 << 30})
		gpuwait.Acquire(t, 4, gpuwait.From(src), gpuwait.Timeout(300*time.Millisecond))
	},
	"capacity--device-full": func(t *testing.T) {
		t.Setenv("GPUWAIT_LEASE_DIR", t.TempDir())
		src := gpuwaittest.New(gpuwaittest.Device{Device: gpuwait.Device{UUID: "GPU-5"}, Total: 24 << 30, Steps: []gpuwaittest.Step{{Used: 23 << 30}}})
		gpuwait.Acquire(t, 1, gpuwait.From(src), gpuwait.MinFree(20<<30), gpuwait.Timeout(300*time.Millisecond))
	},
	"infra--device-error": func(t *testing.T) {
		src := gpuwaittest.New(gpuwaittest.Device{Device: gpuwait.Device{UUID: "GPU-5"}, Total: 24 << 30})
		src.Set("GPU-5", gpuwaittest.Step{Err: fmt.Errorf("nvmlDeviceGetMemoryInfo: %w", gpuwait.ErrLost)})
		_, err := gpuwait.Snapshot(src)
		require.NoError(t, err)
	},

	// Children.
	"engine--fork-abort": func(t *testing.T) {
		forkproc.Run(t, func(*testing.T) { _ = syscall.Kill(os.Getpid(), syscall.SIGABRT); select {} })
	},
	"engine--fork-bus": func(t *testing.T) {
		forkproc.Run(t, func(*testing.T) { _ = syscall.Kill(os.Getpid(), syscall.SIGBUS); select {} })
	},
	"engine--fork-exit":  func(t *testing.T) { forkproc.Run(t, func(*testing.T) { syscall.Exit(0) }) },
	"engine--fork-panic": func(t *testing.T) { forkproc.Run(t, func(*testing.T) { strike() }) },
	"timeout--fork-limit": func(t *testing.T) {
		forkproc.Run(t, func(*testing.T) { time.Sleep(time.Hour) }, forkproc.Timeout(400*time.Millisecond))
	},
	"test--fork-require": func(t *testing.T) { forkproc.Run(t, func(t *testing.T) { require.Equal(t, 3, 4) }) },
	"capacity--fork-oom": func(t *testing.T) {
		forkproc.Run(t, func(t *testing.T) {
			dir := fmt.Sprintf("/sys/fs/cgroup/memory/failures-o%d", os.Getpid())
			require.NoError(t, os.Mkdir(dir, 0o755))
			require.NoError(t, os.WriteFile(dir+"/memory.limit_in_bytes", []byte("90000000"), 0o600))
			require.NoError(t, os.WriteFile(dir+"/cgroup.procs", fmt.Append(nil, os.Getpid()), 0o600))
			for {
				b := make([]byte, 16<<20)
				for i := range b {
					b[i] = 1
				}
				keep = append(keep, b)
			}
		})
	},

	// The fixture.
	"engine--fixture-shutdown": func(t *testing.T) { startToy(t, &toy{down: errors.New("2 requests are still in the batch")}) },
	"engine--fixture-generate": func(t *testing.T) { startToy(t, &toy{err: errors.New("logits of row 3 are NaN")}).Generate(request) },
	"engine--fixture-panic":    func(t *testing.T) { startToy(t, &toy{strike: true}).Generate(request) },
	"engine--fixture-open": func(t *testing.T) {
		harness.Start(t, func(context.Context) (*toy, error) { return nil, errors.New("vocab has 512 tokens, the head 500") }, harness.WithoutDeviceMemory("no GPU"))
	},
	"timeout--fixture-shutdown": func(t *testing.T) {
		harness.Start(t, func(context.Context) (*toy, error) { return &toy{hang: true}, nil }, harness.WithoutDeviceMemory("no GPU"), harness.TeardownTimeout(2*time.Second))
	},
	"timeout--fixture-open": func(t *testing.T) {
		harness.Start(t, func(ctx context.Context) (*toy, error) { <-ctx.Done(); return nil, ctx.Err() }, harness.WithoutDeviceMemory("no GPU"), harness.StartTimeout(300*time.Millisecond))
	},
	"infra--fixture-open": func(t *testing.T) {
		harness.Start(t, func(context.Context) (*toy, error) {
			return nil, os.WriteFile(filepath.Join(tmpfs(t, "size=64k"), "cache"), make([]byte, 1<<20), 0o600)
		}, harness.WithoutDeviceMemory("no GPU"), harness.WithoutHost("a mount"))
	},
	"capacity--fixture-open": func(t *testing.T) {
		harness.Start(t, func(context.Context) (*toy, error) {
			_, err := syscall.Mmap(-1, 0, 1<<46, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
			return nil, fmt.Errorf("reserve the KV cache: %w", err)
		}, harness.WithoutDeviceMemory("no GPU"))
	},
}

var keep []any

// toy is a small engine with defects.
type toy struct {
	err, down    error
	strike, hang bool
}

func (e *toy) Generate(context.Context, ...llm.Request) ([]llm.Output, error) {
	if e.strike {
		strike()
	}
	return nil, e.err
}

func (e *toy) Shutdown(ctx context.Context) error {
	if e.hang {
		<-make(chan int)
	}
	return e.down
}

func startToy(t *testing.T, e *toy) *harness.Runner {
	return harness.Start(t, func(context.Context) (*toy, error) { return e, nil }, harness.WithoutDeviceMemory("no GPU"), harness.TeardownTimeout(3*time.Second))
}

func plantIn(t *testing.T, plant func()) {
	harness.Start(t, func(context.Context) (*toy, error) { plant(); return &toy{}, nil },
		harness.WithoutDeviceMemory("no GPU"), harness.TeardownTimeout(3*time.Second))
}

func own(t *testing.T, f llm.Fault, opts ...runner.Option) {
	r := runner.New(t, runner.Config{Model: fixtures.Bundled(), Device: "cpu", Faults: []llm.Fault{f}}, opts...)
	r.GenerateGreedy("2+3=", 8)
}

func ownWithin(t *testing.T, f llm.Fault) {
	r := runner.New(t, runner.Config{Model: fixtures.Bundled(), Device: "cpu", Faults: []llm.Fault{f}})
	r.WithContext(within(t, time.Second)).GenerateGreedy("2+3=", 8)
}

func ownConfig(t *testing.T, c runner.Config) { runner.New(t, c).GenerateGreedy("2+3=", 8) }

// torn copies the bundled model and cuts its weights.
func torn(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(fixtures.Bundled())))
	require.NoError(t, os.Truncate(filepath.Join(dir, "model.safetensors"), 1<<20))
	return dir
}

// devices waits for a device that one process holds.
func devices(t *testing.T, h gpuwait.Holder) {
	src := gpuwaittest.New(gpuwaittest.Device{Device: gpuwait.Device{UUID: "GPU-9"}, Total: 40 << 30})
	src.Set("GPU-9", gpuwaittest.Step{Used: 9 << 30, Holders: []gpuwait.Holder{h}})
	gpuwait.ForClear(t, gpuwait.Ratio(0.1), gpuwait.From(src), gpuwait.Timeout(80*time.Millisecond))
}
