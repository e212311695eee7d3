package failures

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/internal/gguf"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

var request = llm.Request{Prompt: "The lighthouse", Sampling: llm.SamplingParams{MaxTokens: 400}}

// realServers are faults of a real llama-server and a real Ollama: scripts/install-servers.
var realServers = map[string]func(t *testing.T){
	"engine--llama-zero-head": func(t *testing.T) { llama(t, change(t, func(b []byte) []byte { clear(b[:64]); return b })) },
	"engine--llama-empty":     func(t *testing.T) { llama(t, change(t, func([]byte) []byte { return nil })) },
	"engine--llama-metadata":  func(t *testing.T) { llama(t, change(t, func(b []byte) []byte { return b[:700] })) },
	"engine--llama-arch": func(t *testing.T) {
		llama(t, replaced(t, "general.architecture\x08\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00llama", "general.architecture\x08\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00llamx"))
	},
	"engine--llama-tensors":   func(t *testing.T) { llama(t, replaced(t, "blk.0.attn_q.weight", "blk.0.attn_x.weight")) },
	"engine--llama-tokenizer": func(t *testing.T) { llama(t, replaced(t, "tokenizer.ggml.tokens", "tokenizer.ggml.tokenz")) },
	"engine--llama-layers":    func(t *testing.T) { llama(t, replaced(t, "llama.block_count", "llama.block_coint")) },
	"engine--llama-missing":   func(t *testing.T) { llama(t, filepath.Join(t.TempDir(), "none.gguf")) },
	"engine--llama-folder":    func(t *testing.T) { llama(t, t.TempDir()) },
	"engine--llama-lora": func(t *testing.T) {
		llama(t, change(t, nil), "--lora", change(t, func(b []byte) []byte { return b[:100] }))
	},
	"engine--llama-sigfpe":   func(t *testing.T) { struck(t, llama(t, change(t, nil)), syscall.SIGFPE, 0) },
	"engine--llama-sigill":   func(t *testing.T) { struck(t, llama(t, change(t, nil)), syscall.SIGILL, 0) },
	"engine--llama-sigbus":   func(t *testing.T) { struck(t, llama(t, change(t, nil)), syscall.SIGBUS, 0) },
	"engine--llama-sigtrap":  func(t *testing.T) { struck(t, llama(t, change(t, nil)), syscall.SIGTRAP, 0) },
	"timeout--llama-stopped": func(t *testing.T) { stopped(t, llama(t, change(t, nil)), 0) },
	"timeout--llama-stop-late": func(t *testing.T) {
		r := llama(t, change(t, nil))
		r.GenerateGreedy("2+3=", 3)
		stopped(t, r, 0)
	},
	"infra--llama-port": func(t *testing.T) {
		host := taken(t)
		script := "exec llama-server --model " + change(t, nil) + " --host 127.0.0.1 --port " + port(host)
		harness.Start(t, server.Command("sh", "-c", script, server.Port),
			harness.WithoutDeviceMemory("no GPU"), harness.StartTimeout(15*time.Second))
	},
	"infra--llama-download": func(t *testing.T) {
		script := "unset GGML_BACKEND_PATH; exec unshare -n llama-server --host 127.0.0.1 --port $0 --model-url https://models.example.com/tiny.gguf"
		harness.Start(t, server.Command("sh", "-c", script, server.Port).With(server.Env("HOME="+t.TempDir())), harness.WithoutDeviceMemory("no GPU"), harness.StartTimeout(20*time.Second))
	},
	"capacity--llama-as-small": func(t *testing.T) { limit(t, "ulimit -v 160000") },
	"capacity--llama-as-model": func(t *testing.T) {
		limit(t, "ulimit -v 800000", "--ctx-size", "900000", "--parallel", "1", "--fit", "off")
	},
	"capacity--llama-cgroup": func(t *testing.T) {
		limit(t, "d=/sys/fs/cgroup/memory/failures-l$$; mkdir $d; echo 12000000 > $d/memory.limit_in_bytes; echo $$ > $d/cgroup.procs")
	},
	"capacity--llama-threads": func(t *testing.T) {
		limit(t, "d=/sys/fs/cgroup/pids/failures-t$$; mkdir $d; echo 2 > $d/pids.max; echo $$ > $d/cgroup.procs", "--threads", "8")
	},
	"test--llama-bad-grammar": func(t *testing.T) {
		r := llama(t, change(t, nil))
		q := request
		q.Prompt = strings.Repeat("the sea ", 9000)
		r.Generate(q)
	},
	"test--llama-logits": func(t *testing.T) {
		r := llama(t, change(t, nil))
		assert.Len(t, r.GenerateGreedy("The lighthouse", 12).TokenIDs, 13)
	},
	"test--llama-text": func(t *testing.T) {
		r := llama(t, change(t, nil))
		require.Equal(t, "no space left on device", r.GenerateGreedy("The lighthouse", 6).Text)
	},
	"leak--llama-listener": func(t *testing.T) {
		script := fmt.Sprintf("setsid %s -m http.server --bind 127.0.0.1 0 & exec llama-server --model %s --host 127.0.0.1 --port $0", python, change(t, nil))
		harness.Start(t, server.Command("sh", "-c", script, server.Port).With(server.Dir(t.TempDir())), harness.WithoutDeviceMemory("no GPU"))
	},

	"engine--ollama-gguf":  func(t *testing.T) { warm(t, ollama(t, change(t, func(b []byte) []byte { return b[:len(b)/2] }))) },
	"engine--ollama-noise": func(t *testing.T) { ollama(t, change(t, func([]byte) []byte { return []byte("GGUF and no more") })) },
	"engine--ollama-arch": func(t *testing.T) {
		r := ollama(t, replaced(t, "general.architecture\x08\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00llama", "general.architecture\x08\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00llamx"))
		r.GenerateGreedy("2+3=", 3)
	},
	"engine--ollama-tensors": func(t *testing.T) {
		r := ollama(t, replaced(t, "blk.0.attn_q.weight", "blk.0.attn_x.weight"))
		r.GenerateGreedy("2+3=", 3)
	},
	"engine--ollama-segv":     func(t *testing.T) { struck(t, warm(t, ollama(t, change(t, nil))), syscall.SIGSEGV, 0) },
	"engine--ollama-runner":   func(t *testing.T) { struck(t, warm(t, ollama(t, change(t, nil))), syscall.SIGSEGV, 1) },
	"engine--ollama-abort":    func(t *testing.T) { struck(t, warm(t, ollama(t, change(t, nil))), syscall.SIGABRT, 1) },
	"timeout--ollama-stopped": func(t *testing.T) { stopped(t, warm(t, ollama(t, change(t, nil))), 1) },
	"timeout--ollama-server":  func(t *testing.T) { stopped(t, ollama(t, change(t, nil)), 0) },
	"infra--ollama-pull":      shellTest("export HOME=$WORK OLLAMA_HOST=127.0.0.1:$PORT; unshare -n sh -c 'ip link set lo up; ollama serve > serve.log 2>&1 & sleep 2; ollama pull tiny; e=$?; kill $!; cat serve.log; exit $e'"),
	"infra--ollama-disk":      shellTest("export HOME=$WORK OLLAMA_MODELS=$DISK/models OLLAMA_HOST=127.0.0.1:$PORT; ollama serve > serve.log 2>&1 & sleep 2; printf 'FROM %s\n' $MODEL > Modelfile; ollama create tiny -f Modelfile; e=$?; kill $!; exit $e"),
	"infra--ollama-readonly":  shellTest("export HOME=$WORK OLLAMA_MODELS=$READONLY/models OLLAMA_HOST=127.0.0.1:$PORT; exec ollama serve"),
	"test--ollama-unknown":    shellTest("export HOME=$WORK OLLAMA_HOST=127.0.0.1:$PORT; ollama serve > serve.log 2>&1 & sleep 2; curl -sS -w '%{http_code}' http://127.0.0.1:$PORT/api/generate -d '{\"model\": \"tinier\"}'; kill $!; exit 1"),
	"capacity--ollama-as":     shellTest("export HOME=$WORK OLLAMA_HOST=127.0.0.1:$PORT; ulimit -v 300000; exec ollama serve"),
	"test--ollama-options": func(t *testing.T) {
		r := warm(t, ollama(t, change(t, nil)))
		require.Len(t, r.GenerateGreedy("2+3=", 3).Text, 7, "length of the answer")
	},
}

// shellTest fails with what a script says, which has a port, a full disk and a model.
func shellTest(script string) func(t *testing.T) {
	return func(t *testing.T) {
		err := shell(script, "PORT="+port(unused(t)), "DISK="+tmpfs(t, "size=900k"), "READONLY="+tmpfs(t, "size=64k", "ro"), "MODEL="+change(t, nil))(t)
		require.NoError(t, err)
		panic("harmless")
	}
}

// change writes the bundled model as GGUF, changed by a function.
func change(t *testing.T, f func([]byte) []byte) string {
	path := filepath.Join(t.TempDir(), "bundled.gguf")
	require.NoError(t, gguf.Write(path, fixtures.Bundled()))
	if f != nil {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, f(b), 0o600))
	}
	return path
}

// replaced replaces a text in the model by one of the same length.
func replaced(t *testing.T, from, to string) string {
	return change(t, func(b []byte) []byte {
		if !strings.Contains(string(b), from) {
			panic("harmless: the model has no " + from)
		}
		return []byte(strings.ReplaceAll(string(b), from, to))
	})
}

func llama(t *testing.T, model string, args ...string) *harness.Runner {
	return harness.Start(t, server.LlamaCpp(model, append([]string{"--threads", "1", "--cache-ram", "0"}, args...)...),
		harness.WithoutDeviceMemory("no GPU"), harness.StartTimeout(time.Minute))
}

func ollama(t *testing.T, model string) *harness.Runner {
	return harness.Start(t, server.Ollama(model), harness.WithoutDeviceMemory("no GPU"), harness.StartTimeout(time.Minute))
}

func warm(_ *testing.T, r *harness.Runner) *harness.Runner {
	r.GenerateGreedy("2+3=", 3)
	return r
}

// struck sends a signal to a process of the server while it generates.
func struck(t *testing.T, r *harness.Runner, sig syscall.Signal, process int) {
	pids := harness.EngineOf[*server.Server](r).PIDs()
	require.Greater(t, len(pids), process)
	time.AfterFunc(80*time.Millisecond, func() { _ = syscall.Kill(pids[process], sig) })
	for range 2000 {
		r.Generate(request)
	}
}

// stopped asks a server that does not run.
func stopped(t *testing.T, r *harness.Runner, process int) {
	pids := harness.EngineOf[*server.Server](r).PIDs()
	require.Greater(t, len(pids), process)
	require.NoError(t, syscall.Kill(pids[process], syscall.SIGSTOP))
	r.WithContext(within(t, 2*time.Second)).Generate(request)
}

func limit(t *testing.T, command string, args ...string) {
	script := command + `; port=$0; model=$1; shift; exec llama-server --model "$model" --host 127.0.0.1 --port "$port" "$@"`
	harness.Start(t, server.Command("sh", append([]string{"-c", script, server.Port, change(t, nil)}, args...)...),
		harness.WithoutDeviceMemory("no GPU"), harness.StartTimeout(40*time.Second))
}

func init() {
	for name, f := range realServers {
		testCases[name] = f
	}
}
