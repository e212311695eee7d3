package report_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/fixtures/fault"
	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/internal/gguf"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/runner"
	"github.com/enginetest/enginetest/server"
)

// The logs of testdata/heldout were made after the rules, by faults that the rules' author had not
// seen: a real llama-server under the fixture, programs that print what servers print and answer as
// they do, and the bundled engine. The class in a name was decided before the log was made.

// llamaFaults happen to a real llama-server.
var llamaFaults = map[string]func(t *testing.T){
	"engine--llama-not-gguf": func(t *testing.T) { llama(t, model(t, func([]byte) []byte { return []byte("not a model at all") })) },
	"engine--llama-truncated": func(t *testing.T) {
		llama(t, model(t, func(b []byte) []byte { return b[:len(b)/3] }))
	},
	"engine--llama-half-weights": func(t *testing.T) {
		llama(t, model(t, func(b []byte) []byte { return b[:len(b)-len(b)/4] }))
	},
	"engine--llama-bad-version": func(t *testing.T) {
		llama(t, model(t, func(b []byte) []byte { b[4] = 99; return b }))
	},
	"engine--llama-crash-in-request": func(t *testing.T) { interrupted(t, syscall.SIGSEGV) },
	"engine--llama-abort-in-request": func(t *testing.T) { interrupted(t, syscall.SIGABRT) },
	"timeout--llama-hangs-in-request": func(t *testing.T) {
		r := llama(t, model(t, nil))
		require.NoError(t, syscall.Kill(harness.EngineOf[*server.Server](r).PIDs()[0], syscall.SIGSTOP))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		r.WithContext(ctx).Generate(request)
	},
	"timeout--llama-never-ready": func(t *testing.T) {
		harness.Start(t, server.LlamaCpp(model(t, nil)).With(server.ReadyLog("a line that it never writes")),
			harness.WithoutDeviceMemory("no GPU"), harness.StartTimeout(3*time.Second))
	},
	"capacity--llama-address-space": func(t *testing.T) {
		limited(t, "ulimit -v 200000")
	},
	"capacity--llama-kv-cache": func(t *testing.T) {
		limited(t, "ulimit -v 4000000", "--ctx-size", "20000000", "--parallel", "1", "--fit", "off")
	},
	"test--llama-context": func(t *testing.T) {
		r := llama(t, model(t, nil), "--ctx-size", "64", "--parallel", "1")
		r.Generate(llm.Request{Prompt: strings.Repeat("one two three ", 500), Sampling: llm.SamplingParams{MaxTokens: 2}})
	},
	"test--llama-tokens": func(t *testing.T) {
		r := llama(t, model(t, nil))
		if got := r.GenerateGreedy("2+3=", 4).Text; got != "six" {
			t.Errorf("2+3= is %q, want %q", got, "six")
		}
	},
	"leak--llama-companion": func(t *testing.T) {
		dir := t.TempDir()
		script := fmt.Sprintf("setsid sleep 300 & exec llama-server --model %s --host 127.0.0.1 --port $0", model(t, nil))
		harness.Start(t, server.Command("sh", "-c", script, server.Port).With(server.Dir(dir)), harness.WithoutDeviceMemory("no GPU"))
	},
	"leak--llama-shared-memory": func(t *testing.T) {
		name := filepath.Join("/dev/shm", fmt.Sprintf("heldout-%d", os.Getpid()))
		t.Cleanup(func() { _ = os.Remove(name) })
		script := fmt.Sprintf("head -c 65536 /dev/zero > %s; exec llama-server --model %s --host 127.0.0.1 --port $0", name, model(t, nil))
		harness.Start(t, server.Command("sh", "-c", script, server.Port), harness.WithoutDeviceMemory("no GPU"))
	},
}

var request = llm.Request{Prompt: "The lighthouse", Sampling: llm.SamplingParams{MaxTokens: 400, IgnoreEOS: true}}

// model writes the bundled model as GGUF, changed by a function.
func model(t *testing.T, change func([]byte) []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundled.gguf")
	require.NoError(t, gguf.Write(path, fixtures.Bundled()))
	if change != nil {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, change(b), 0o600))
	}
	return path
}

func llama(t *testing.T, model string, args ...string) *harness.Runner {
	t.Helper()
	args = append([]string{"--threads", "1", "--cache-ram", "0"}, args...)
	return harness.Start(t, server.LlamaCpp(model, args...), harness.WithoutDeviceMemory("no GPU"))
}

func interrupted(t *testing.T, sig syscall.Signal) {
	t.Helper()
	r := llama(t, model(t, nil))
	time.AfterFunc(50*time.Millisecond, func() { _ = syscall.Kill(harness.EngineOf[*server.Server](r).PIDs()[0], sig) })
	for range 1000 {
		r.Generate(request)
	}
}

func limited(t *testing.T, limit string, args ...string) {
	t.Helper()
	script := limit + `; port=$0; model=$1; shift; exec llama-server --model "$model" --host 127.0.0.1 --port "$port" "$@"`
	command := append([]string{"-c", script, server.Port, model(t, nil)}, args...)
	harness.Start(t, server.Command("sh", command...), harness.WithoutDeviceMemory("no GPU"))
}

// dying are the last words of servers that exit while they start: name to log.
var dying = map[string]string{
	"capacity--vllm-sequence":  "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (9.31 GiB). Try increasing `gpu_memory_utilization`",
	"capacity--jax":            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
	"capacity--ort":            "onnxruntime::BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 4294967296",
	"capacity--torch-visible":  "RuntimeError: CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously reported at some other API call",
	"capacity--ray":            "ValueError: Total number of attention GPUs required (8) exceeds the number of GPUs available in the cluster (2).",
	"capacity--mlock":          "warning: failed to mlock 4294967296-byte buffer (after previously locking 0 bytes): Cannot allocate memory\nllama_model_load: error loading model: unable to allocate CPU buffer",
	"infra--hf-gateway":        "huggingface_hub.errors.HfHubHTTPError: 504 Server Error: Gateway Time-out for url: https://huggingface.co/api/models/acme/tiny/tree/main",
	"infra--hf-connect":        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.",
	"infra--hf-cdn":            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='cdn-lfs.hf.co', port=443): Max retries exceeded with url: /repos/ab/cd (Caused by NameResolutionError(\"Failed to resolve 'cdn-lfs.hf.co'\"))",
	"infra--nccl":              "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
	"infra--port":              "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use",
	"infra--dist-port":         "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
	"infra--python-disk":       "OSError: [Errno 28] No space left on device: '/root/.cache/huggingface/hub/models--acme--tiny/blobs/0a1b.incomplete'",
	"infra--xid":               "NVRM: Xid (PCI:0000:3b:00): 79, pid=4121, name=python3, GPU has fallen off the bus.",
	"infra--old-driver":        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver",
	"infra--pip":               "ERROR: Could not install packages due to an OSError: HTTPSConnectionPool(host='files.pythonhosted.org', port=443): Read timed out.",
	"engine--vllm-arch":        "ValueError: Model architectures ['AcmeForCausalLM'] are not supported for now.",
	"engine--vllm-worker":      "ERROR [multiproc_executor.py:511] Worker proc VllmWorker-1 died unexpectedly, shutting down executor.\nRuntimeError: cancelled",
	"engine--python":           "  File \"/opt/venv/lib/python3.12/site-packages/vllm/v1/worker/gpu_model_runner.py\", line 1822, in execute_model\nIndexError: list index out of range",
	"engine--cuda-assert":      "../aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: [12,0,0], thread: [64,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\nRuntimeError: CUDA error: device-side assert triggered",
	"engine--rust":             "thread 'main' panicked at router/src/main.rs:212:14:\ncalled `Result::unwrap()` on an `Err` value: MissingTokenizer",
	"engine--sglang-scheduler": "[2026-01-01 00:00:00] Scheduler hit an exception: Traceback (most recent call last):\nKeyError: 'model.layers.0.mlp.experts.w13_weight'",
	"timeout--nccl-watchdog":   "[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.",
	"timeout--ollama-runner":   "Error: timed out waiting for llama runner to start - progress 0.00 - ",
	"timeout--shm-broadcast":   "TimeoutError: RPC call to execute_model timed out.",
	"infra--ollama-pull":       "Error: pull model manifest: Get \"https://registry.ollama.ai/v2/library/tiny/manifests/latest\": dial tcp: lookup registry.ollama.ai on 10.0.0.2:53: read udp 10.0.0.5:41222->10.0.0.2:53: i/o timeout",
	"infra--ollama-blob":       "Error: max retries exceeded: Get \"https://dd20bb891979d25aebc8bec07b2b3bbc.r2.cloudflarestorage.com/ollama/blobs\": net/http: TLS handshake timeout",
	"engine--ollama-unmarshal": "Error: unable to load model: /root/.ollama/models/blobs/sha256-4f9e",
	"engine--go-server-panic":  "panic: runtime error: index out of range [3] with length 3\n\ngoroutine 12 [running]:\nexample.com/ollama/runner.(*Server).processBatch(0xc000)\n\t/src/runner/runner.go:512 +0x1f",
}

// answers are what servers say to a request: name to status and body.
var answers = map[string]struct {
	status int
	body   string
}{
	"engine--ollama-cuda":     {500, `{"error":"an error was encountered while running the model: CUDA error: an illegal memory access was encountered\n  current device: 0, in function ggml_backend_cuda_synchronize"}`},
	"engine--ollama-eof":      {500, `{"error":"do load request: Post \"http://127.0.0.1:44121/load\": EOF"}`},
	"engine--ollama-runner":   {500, `{"error":"model runner has unexpectedly stopped, this may be due to resource limitations or an internal error, check ollama server logs for details"}`},
	"engine--vllm-dead":       {500, `{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","type":"InternalServerError","code":500}}`},
	"capacity--ollama-memory": {500, `{"error":"model requires more system memory (61.2 GiB) than is available (14.9 GiB)"}`},
	"capacity--ollama-busy":   {503, `{"error":"server busy, please try again.  maximum pending requests exceeded"}`},
	"capacity--cudart":        {500, `{"error":"cudaMalloc failed: out of memory\nggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 8589934592"}`},
	"test--ollama-model":      {404, `{"error":"model 'tiny:latest' not found"}`},
	"test--vllm-context":      {400, `{"error":{"message":"This model's maximum context length is 2048 tokens. However, you requested 4096 tokens.","type":"BadRequestError","code":400}}`},
	"test--unauthorized":      {401, `{"error":"Unauthorized"}`},
}

// ownFaults are the bundled engine's, and a suite's.
var ownFaults = map[string]func(t *testing.T){
	"engine--forward-error": func(t *testing.T) { bundled(t, fault.Error(llm.FaultForward, 1)) },
	"engine--forward-panic": func(t *testing.T) { bundled(t, fault.Panic(llm.FaultForward, 1)) },
	"engine--sample-error":  func(t *testing.T) { bundled(t, fault.Error(llm.FaultSample, 0)) },
	"engine--load-error":    func(t *testing.T) { bundled(t, fault.Error(llm.FaultLoad, 0)) },
	"engine--release-error": func(t *testing.T) { bundled(t, fault.Error(llm.FaultShutdown, 0)) },
	"capacity--allocate":    func(t *testing.T) { bundled(t, fault.OutOfMemory(llm.FaultAllocate, 2)) },
	"test--fault-unfired":   func(t *testing.T) { bundled(t, fault.Error(llm.FaultForward, 1_000_000)) },
	"timeout--forward-hang": func(t *testing.T) {
		r := runner.New(t, runner.Config{Model: fixtures.Bundled(), Device: "cpu", Faults: []llm.Fault{fault.Hang(llm.FaultForward, 1)}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r.WithContext(ctx).GenerateGreedy("2+3=", 8)
	},
	"infra--no-such-host": func(t *testing.T) {
		harness.Start(t, server.Attach("http://inference.invalid:8000"), harness.StartTimeout(5*time.Second))
	},
	"leak--request-goroutine": func(t *testing.T) {
		r := runner.New(t, runner.Config{Model: fixtures.Bundled(), Device: "cpu"})
		_ = r
		start(t, &fake{plant: func() { time.AfterFunc(time.Hour, func() {}); go func() { <-make(chan int) }() }})
	},
	"leak--temporary-file": func(t *testing.T) {
		dir := t.TempDir()
		harness.Start(t, func(context.Context) (*fake, error) {
			return &fake{}, os.WriteFile(filepath.Join(dir, "kv.spill"), []byte("x"), 0o600)
		}, harness.WithoutDeviceMemory("no GPU"), harness.WatchDirs(dir))
	},
	"leak--child-of-engine": func(t *testing.T) {
		start(t, &fake{plant: func() {
			cmd := exec.Command("sleep", "20")
			_ = cmd.Start()
		}})
	},
	"test--joined-errors": func(t *testing.T) {
		err := errors.Join(errors.New("request 3: got 7 tokens, want 8"), errors.New("request 5: got 6 tokens, want 8"))
		t.Fatal(err)
	},
	"test--golden": func(t *testing.T) {
		t.Fatalf("output differs from testdata/golden.txt:\n%s", "- timeout after 3 s\n+ no space left on device")
	},
}

func bundled(t *testing.T, f llm.Fault) {
	t.Helper()
	r := runner.New(t, runner.Config{Model: fixtures.Bundled(), Device: "cpu", Faults: []llm.Fault{f}})
	r.GenerateGreedy("2+3=", 8)
}

// heldOut fails as a fault says; false when there is none of that name.
func heldOut(t *testing.T, name string) bool {
	t.Helper()
	if f := llamaFaults[name]; f != nil {
		f(t)
		return true
	}
	if f := ownFaults[name]; f != nil {
		f(t)
		return true
	}
	if log, ok := dying[name]; ok {
		harness.Start(t, server.Command("sh", "-c", `printf '%s\n' "INFO loading" "$1" >&2; sleep 0.1; exit 1`, server.Port, log),
			harness.WithoutDeviceMemory("no GPU"))
		return true
	}
	if a, ok := answers[name]; ok {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if r.Method != http.MethodPost {
				if r.URL.Path != "/v1/models" && r.URL.Path != "/health" {
					http.NotFound(w, r)
					return
				}
				_, _ = fmt.Fprint(w, `{"object":"list","data":[{"id":"tiny","object":"model"}]}`)
				return
			}
			w.WriteHeader(a.status)
			_, _ = fmt.Fprint(w, a.body)
		}))
		t.Cleanup(s.Close)
		r := harness.Start(t, server.Attach(s.URL).With(server.Model("tiny"), server.Speaks(server.ProtocolOpenAI)), harness.WithoutDeviceMemory("no GPU"), harness.WithoutHost("an HTTP server in this process"))
		r.Generate(llm.Request{Prompt: "The lighthouse", Sampling: llm.SamplingParams{MaxTokens: 4}})
		return true
	}
	return false
}

// TestMakeHeldOut makes the logs of testdata/heldout that are missing, as text and as a program
// that reads verdicts sees them. It needs a llama-server: scripts/install-servers.
func TestMakeHeldOut(t *testing.T) {
	if os.Getenv("ENGINETEST_LONG") == "" {
		t.Skip("it runs some 130 children: ENGINETEST_LONG=1 runs it")
	}
	if _, err := exec.LookPath("llama-server"); err != nil {
		t.Skipf("%v: scripts/install-servers DIR", err)
	}
	dir, err := filepath.Abs("testdata/heldout")
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(dir, 0o777))
	clean := cleaner(t)
	for _, names := range [][]string{sorted(llamaFaults), sorted(dying), sorted(answers), sorted(ownFaults)} {
		for _, name := range names {
			for style, v := range map[string]string{"text": "true", "recorded": "test2json"} {
				file := filepath.Join(dir, name+"--"+style+".log")
				if _, err := os.Stat(file); err == nil {
					continue
				}
				require.NoError(t, os.WriteFile(file, []byte(clean.Replace(plant(t, name, "", v))), 0o666))
			}
		}
	}
}
