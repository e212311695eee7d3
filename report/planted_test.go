package report_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/enginetest/enginetest/forkproc"
	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/gpuwait/gpuwaittest"
	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/report"
)

const plantedEnv = "ENGINETEST_PLANTED"

func TestMain(m *testing.M) {
	if os.Getenv(plantedEnv) != "" {
		forkproc.Main(m)
		return
	}
	os.Exit(m.Run())
}

// errorFaults fail with an error, which each of the styles reports in its own way.
var errorFaults = map[string]func() error{
	"infra--full-disk": func() error { return os.WriteFile("/dev/full", []byte("weights"), 0o600) },
	"infra--dns": func() error {
		return fmt.Errorf("download the tokenizer: %w",
			&net.DNSError{Err: "no such host", Name: "models.example", IsNotFound: true})
	},
	"infra--tls-handshake": tlsHandshake,
	"infra--certificate": func() error {
		return fmt.Errorf("Get \"https://models.example/x\": tls: failed to verify certificate: %w",
			x509.CertificateInvalidError{Reason: x509.Expired})
	},
	"infra--registry":   func() error { return status(http.StatusBadGateway) },
	"infra--rate-limit": func() error { return status(http.StatusTooManyRequests) },
	"infra--disk-error": func() error {
		return &fs.PathError{Op: "read", Path: "/mnt/models/shard-3", Err: syscall.EIO}
	},
	"infra--stale-mount": func() error { return &fs.PathError{Op: "open", Path: "/mnt/models", Err: syscall.ESTALE} },
	"infra--read-only": func() error {
		return &fs.PathError{Op: "mkdir", Path: "/var/cache/models", Err: syscall.EROFS}
	},
	"infra--unreachable": func() error {
		return &net.OpError{
			Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 9), Port: 443},
			Err: syscall.ENETUNREACH,
		}
	},
	"infra--driver-mismatch": func() error {
		return errors.New("Failed to initialize NVML: Driver/library version mismatch")
	},
	"infra--lost-device": func() error {
		return fmt.Errorf("NVML: device memory: %w: GPU-1: GPU is lost (15)", gpuwait.ErrLost)
	},
	"infra--ecc": func() error {
		return errors.New("cuda: cuCtxCreate: CUDA_ERROR_ECC_UNCORRECTABLE (214): uncorrectable ECC error encountered")
	},
	"infra--docker": func() error {
		return errors.New("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")
	},

	"capacity--address-space": func() error {
		_, err := syscall.Mmap(-1, 0, 1<<46, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		return os.NewSyscallError("mmap of 64 TiB of weights", err)
	},
	"capacity--cuda": func() error {
		return errors.New("cuda: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory")
	},
	"capacity--vllm": func() error {
		return errors.New("server: vllm exited with code 1 before it was ready\n    ValueError: Free memory on device (3.2/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB)")
	},
	"capacity--ollama": func() error {
		return errors.New("500 Internal Server Error: model requires more system memory (19.9 GiB) than is available (7.5 GiB)")
	},
	"capacity--llama-server": func() error {
		return errors.New("server exited: ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8192.00 MiB on device 0: cudaMalloc failed: out of memory")
	},
	"capacity--torch": func() error {
		return errors.New("engine: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.1 GiB of which 12 MiB is free")
	},
	"capacity--devices": func() error {
		return errors.New("tensor_parallel_size is 4: needs 2 GPUs at least, there is 1: not enough GPUs")
	},
	"capacity--no-gpu": func() error { return fmt.Errorf("open: %w", gpuwait.ErrNoSource) },

	"engine--refused": refused,
	"engine--hung-up": hungUp,
	"engine--500":     func() error { return answered(http.StatusInternalServerError) },
	"engine--exited": func() error {
		return fmt.Errorf("server exited before it was ready: %w", exec.Command("sh", "-c", "exit 7").Run())
	},
	"engine--segfault": func() error {
		return fmt.Errorf("llama-server: %w", exec.Command("sh", "-c", "kill -SEGV $$").Run())
	},
	"engine--illegal": func() error {
		return errors.New("cuda: cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered")
	},
	"engine--assert": func() error {
		return errors.New("llama.cpp/ggml/src/ggml.c:3211: GGML_ASSERT(ggml_can_mul_mat(a, b)) failed")
	},
	"engine--load": func() error {
		return errors.New("llama_model_load: error loading model: missing tensor 'token_embd.weight'")
	},
	"engine--core": func() error {
		return errors.New("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}")
	},
	"engine--runner": func() error {
		return errors.New("Post \"/api/generate\": llama runner process has terminated: exit status 2")
	},
	"engine--launch": func() error {
		return errors.New("cuda: cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure")
	},
	"engine--broken-pipe": func() error { return fmt.Errorf("child core: write request: %w", syscall.EPIPE) },

	"timeout--context": func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		<-ctx.Done()
		return fmt.Errorf("generate: %w", ctx.Err())
	},
	"timeout--client":  clientTimeout,
	"timeout--read":    readDeadline,
	"timeout--drain":   func() error { return errors.New("Shutdown has not returned 1s after its context ended") },
	"timeout--healthy": func() error { return errors.New("the server did not become ready in 2m0s") },

	"test--tokens":    func() error { return errors.New("got 3 tokens, want 4") },
	"test--order":     func() error { return errors.New("outputs are not in the order of the requests") },
	"test--no-error":  func() error { return errors.New(`want the error "no space left on device", got nil`) },
	"test--wrong-oom": func() error { return errors.New(`got error "invalid argument", want "CUDA out of memory"`) },
	"test--diff": func() error {
		return errors.New("Generate() mismatch (-want +got):\n  strings.Join({\n- \t\"no such host\",\n+ \t\"\",\n  })")
	},
	"test--perplexity": func() error { return errors.New("perplexity is 31.2, more than the bound of 30") },
	"test--parse":      func() error { _, err := time.ParseDuration("3 parsecs"); return err },
}

// styles are the ways in which suites fail with an error.
var styles = map[string]func(t *testing.T, err error){
	"fatal":   func(t *testing.T, err error) { t.Fatal(err) },
	"wrapped": func(t *testing.T, err error) { t.Errorf("TestLoad: start the engine: %v", err) },
	"require": func(t *testing.T, err error) { require.NoError(t, err, "start the engine") },
	"noisy": func(t *testing.T, err error) {
		t.Log("retry: dial tcp 127.0.0.1:8000: connect: connection refused")
		t.Log("GPU-1 uses 71.2 GiB; the test of a full disk expects: no space left on device")
		defer t.Cleanup(func() {
			fmt.Println("engine: shutdown: 0 requests ended, context deadline exceeded for none")
		})
		t.Fatalf("load: %v", err)
	},
}

// faults fail in their own way.
var faults = map[string]func(t *testing.T){
	"leak--guard-goroutine": func(t *testing.T) { leakcheck.Guard(t); go func() { select {} }() },
	"leak--guard-reference": func(t *testing.T) {
		g := leakcheck.Guard(t)
		kept = &weights{data: make([]byte, 1<<10)}
		g.Track("weights", kept)
	},
	"leak--guard-buffer": func(t *testing.T) {
		g, l := leakcheck.Guard(t), ledger.New(false)
		g.Buffers(l)
		l.Add(ledger.Holding{Owner: "kv_cache", Kind: "mapped", Device: "cpu:0", Bytes: 1 << 20})
		keptLedger = l
	},
	"leak--goleak": func(t *testing.T) {
		go func() { select {} }()
		goleak.VerifyNone(t)
	},
	"leak--fixture-goroutine": func(t *testing.T) { start(t, &fake{plant: func() { go func() { select {} }() }}) },
	"leak--fixture-file": func(t *testing.T) {
		start(t, &fake{plant: func() { f, _ := os.Open("/dev/null"); keptFile = f }})
	},
	"leak--fixture-reference": func(t *testing.T) { e := &fake{}; keptEngine = e; start(t, e) },
	"leak--own-memory":        func(t *testing.T) { held(t, os.Getpid()) },
	"leak--child": func(t *testing.T) {
		forkproc.Run(t, func(t *testing.T) {
			cmd := exec.Command("sleep", "60")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			require.NoError(t, cmd.Start())
		})
	},
	"capacity--held-by-others": func(t *testing.T) { held(t, 1) },
	"infra--lost-while-waiting": func(t *testing.T) {
		src := gpuwaittest.New(gpuwaittest.Device{Device: gpuwait.Device{UUID: "GPU-1"}, Total: 80 << 30})
		src.Set("GPU-1", gpuwaittest.Step{Err: gpuwait.ErrLost})
		gpuwait.ForClear(t, gpuwait.Bytes(0), gpuwait.From(src))
	},
	"engine--shutdown":   func(t *testing.T) { start(t, &fake{err: errors.New("connector still busy")}) },
	"engine--child-exit": func(t *testing.T) { forkproc.Run(t, func(*testing.T) { os.Exit(3) }) },
	"engine--child-crash": func(t *testing.T) {
		forkproc.Run(t, func(*testing.T) { _ = syscall.Kill(os.Getpid(), syscall.SIGSEGV); select {} })
	},
	"engine--panic":         func(*testing.T) { llmPanic() },
	"engine--panic-in-loop": func(*testing.T) { done := make(chan bool); go func() { llmPanic(); close(done) }(); <-done; select {} },
	"capacity--child-killed": func(t *testing.T) {
		forkproc.Run(t, func(*testing.T) { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} })
	},
	"timeout--child": func(t *testing.T) {
		forkproc.Run(t, func(*testing.T) { select {} }, forkproc.Timeout(200*time.Millisecond))
	},
	"timeout--go-test": func(t *testing.T) { time.Sleep(time.Hour) },
	"timeout--eventually": func(t *testing.T) {
		require.Eventually(t, func() bool {
			return false
		}, 20*time.Millisecond, 5*time.Millisecond, "requests are still waiting")
	},
	"test--equal":       func(t *testing.T) { assert.Equal(t, []int{1, 2, 3}, []int{1, 2, 4}) },
	"test--equal-infra": func(t *testing.T) { assert.Equal(t, "no space left on device", "") },
	"test--contains":    func(t *testing.T) { assert.Contains(t, "CUDA_ERROR_OUT_OF_MEMORY", "NVML: device lost") },
	"test--error-is":    func(t *testing.T) { assert.ErrorIs(t, errors.New("no such host"), syscall.ENOSPC) },
	"test--error-text": func(t *testing.T) {
		assert.EqualError(t, errors.New("context deadline exceeded"), "read: timed out")
	},
	"test--length": func(t *testing.T) { require.Len(t, []string{"docker.io", "ghcr.io"}, 1) },
	"test--subtest": func(t *testing.T) {
		t.Run("batch", func(t *testing.T) { t.Error("batch of 4: got 3, want 4") })
	},
	"test--json":          func(t *testing.T) { assert.JSONEq(t, `{"a":1}`, `{"a":2}`) },
	"test--panic":         func(*testing.T) { unmade["a"] = 1 },
	"test--index":         func(*testing.T) { var s []int; _ = s[len(os.Args)] },
	"test--panic-library": func(t *testing.T) { t.Log(strings.Repeat("x", -len(os.Args))) },
	"test--bare":          func(t *testing.T) { t.Fail() },
	"test--child":         func(t *testing.T) { forkproc.Run(t, func(t *testing.T) { t.Error("got 1, want 2") }) },
	"test--expectation": func(t *testing.T) {
		forkproc.Run(t, func(*testing.T) {}, forkproc.Expect(forkproc.Killed(syscall.SIGKILL)))
	},
}

var (
	kept       *weights
	keptLedger *ledger.Ledger
	keptFile   *os.File
	keptEngine *fake
	unmade     map[string]int
)

type weights struct{ data []byte }

// fake is the smallest engine.
type fake struct {
	plant func()
	err   error
}

func (e *fake) Generate(context.Context, ...llm.Request) ([]llm.Output, error) { return nil, nil }

func (e *fake) Shutdown(context.Context) error { return e.err }

func start(t *testing.T, e *fake) {
	harness.Start(t, func(context.Context) (*fake, error) {
		if e.plant != nil {
			e.plant()
		}
		return e, nil
	}, harness.WithoutDeviceMemory("no GPU here"), harness.TeardownTimeout(3*time.Second))
}

// held waits for a device on which a process holds memory.
func held(t *testing.T, pid int) {
	src := gpuwaittest.New(gpuwaittest.Device{Device: gpuwait.Device{UUID: "GPU-1"}, Total: 80 << 30})
	src.Set("GPU-1", gpuwaittest.Step{
		Used: 8 << 30, Holders: []gpuwait.Holder{{PID: pid, Bytes: 8 << 30, Known: true}},
	})
	gpuwait.ForClear(t, gpuwait.Bytes(1<<30), gpuwait.From(src), gpuwait.Timeout(50*time.Millisecond))
}

func tlsHandshake() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	client := http.Client{Transport: &http.Transport{TLSHandshakeTimeout: 20 * time.Millisecond}}
	_, err = client.Get("https://" + l.Addr().String()) //nolint:bodyclose // there is none
	return err
}

// status is the error of a registry that answers with a status.
func status(code int) error {
	return fmt.Errorf("pull https://registry.ollama.ai/v2/library/llama3: %d %s", code, http.StatusText(code))
}

func answered(code int) error {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "step failed", code)
	}))
	defer s.Close()
	r, err := http.Get(s.URL)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	return fmt.Errorf("POST /v1/completions: %s", r.Status)
}

func refused() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	_ = l.Close()
	_, err = net.Dial("tcp", l.Addr().String())
	return err
}

func hungUp() error {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("data: "))
		panic(http.ErrAbortHandler)
	}))
	defer s.Close()
	r, err := http.Get(s.URL)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	_, err = io.ReadAll(r.Body)
	return fmt.Errorf("stream of completions: %w", err)
}

func clientTimeout() error {
	quit := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-quit }))
	defer func() { close(quit); s.Close() }()
	client := http.Client{Timeout: 20 * time.Millisecond}
	_, err := client.Get(s.URL) //nolint:bodyclose // there is none
	return err
}

func readDeadline() error {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	_ = a.SetReadDeadline(time.Now())
	_, err := a.Read(make([]byte, 1))
	return err
}

// llmPanic panics outside of test code.
func llmPanic() { (*ledger.Ledger)(nil).Add(ledger.Holding{Owner: "kv_cache"}) }

// TestPlanted fails as its environment says; it runs in a child.
func TestPlanted(t *testing.T) {
	name, style, _ := strings.Cut(os.Getenv(plantedEnv), " ")
	switch {
	case name == "":
		t.Skip("a part of TestMakeCorpus and TestToolkit")
	case heldOut(t, name):
	case faults[name] != nil:
		faults[name](t)
	default:
		err := errorFaults[name]()
		require.Error(t, err)
		styles[style](t, err)
	}
}

// plant runs TestPlanted in a child and returns its output.
func plant(t *testing.T, fault, style, v string) string {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	timeout := "60s"
	if fault == "timeout--go-test" {
		timeout = "1s"
	}
	cmd := exec.Command(exe, "-test.run=^TestPlanted$", "-test.v="+v, "-test.timeout="+timeout)
	cmd.Env = append(os.Environ(), plantedEnv+"="+strings.TrimSpace(fault+" "+style), "ENGINETEST_VERDICTS=")
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "%s does not fail", fault)
	return string(out) + "exit status 1\n"
}

// TestMakeCorpus makes the logs of TestCorpus anew: each fault as a program that reads verdicts
// sees it, and as text alone.
func TestMakeCorpus(t *testing.T) {
	if os.Getenv("ENGINETEST_LONG") == "" {
		t.Skip("it runs some 300 children: ENGINETEST_LONG=1 runs it")
	}
	dir, err := filepath.Abs("testdata/corpus")
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.MkdirAll(dir, 0o777))
	clean := cleaner(t)
	write := func(fault, style, out string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fault+"--"+style+".log"), []byte(clean.Replace(out)), 0o666))
	}
	for _, fault := range sorted(errorFaults) {
		for _, style := range sorted(styles) {
			write(fault, style, plant(t, fault, style, "true"))
		}
	}
	for _, fault := range sorted(faults) {
		write(fault, "text", plant(t, fault, "", "true"))
		write(fault, "recorded", plant(t, fault, "", "test2json"))
	}
}

// cleaner takes this machine's folders out of a log.
func cleaner(t *testing.T) *strings.Replacer {
	t.Helper()
	goroot := string(must(exec.Command("go", "env", "GOROOT").Output()))
	return strings.NewReplacer(filepath.Dir(must(os.Getwd())), "/src/llm", strings.TrimSpace(goroot), "/usr/local/go",
		os.TempDir(), "/tmp")
}

// What the packages of this module record reaches the report through a real test process.
func TestToolkit(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it starts children")
	}
	for fault, source := range map[string]string{
		"leak--fixture-goroutine": "leakcheck", "capacity--held-by-others": "gpuwait", "infra--lost-while-waiting": "the test",
		"engine--shutdown": "harness", "engine--child-exit": "forkproc",
	} {
		t.Run(fault, func(t *testing.T) {
			var c report.Collector
			out := plant(t, fault, "", "test2json")
			require.NoError(t, c.Read(strings.NewReader(out), report.Source{Name: fault, Package: "example.com/llm"}))
			failed := c.Report().Tests[0]
			class, _, _ := strings.Cut(fault, "--")
			assert.Equal(t, class, string(failed.Class), out)
			assert.Equal(t, "recorded by "+source, failed.Evidence)
			if strings.Contains(fault, "fixture") {
				require.Len(t, failed.Teardowns, 1, out)
				assert.Equal(t, "shutdown", failed.Teardowns[0].Steps[0].Name)
				assert.Equal(t, "not checked: no GPU here", failed.Attributes["teardown.device_memory"])
				assert.Regexp(t, "^failed after ", failed.Attributes["teardown.goroutines"])
				assert.Contains(t, failed.Repro, "TestPlanted")
			}
		})
	}
}

func must[T any](s T, err error) T {
	if err != nil {
		panic(err)
	}
	return s
}

func sorted[V any](m map[string]V) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
