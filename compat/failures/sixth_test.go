package failures

import (
	"maps"
	"testing"
)

// traced prints a traceback of Python that ends in an exception of a library.
func traced(exception string) func(t *testing.T) error {
	return says("Traceback (most recent call last):\n  File \"/app/client.py\", line 88, in main\n    run(args)\n  File \"/app/client.py\", line 31, in run\n    return self._send(request)\n"+exception, "exit 1")
}

// wrapped is how an engine that runs in processes of its own reports the exception of one.
func wrapped(exception string) func(t *testing.T) error {
	return traced("(EngineCore pid=812) ERROR core.py:710] Traceback (most recent call last):\n(EngineCore pid=812) ERROR core.py:710]   File \"core.py\", line 701, in run\n(EngineCore pid=812) ERROR core.py:710] " +
		exception + "\nRuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}")
}

var sixthErrors = map[string]func(t *testing.T) error{
	"engine--6-openai-connection": traced("openai.APIConnectionError: Connection error."),
	"engine--6-openai-500":        traced("openai.InternalServerError: Error code: 500 - {'error': {'message': 'list index out of range', 'type': 'InternalServerError', 'param': None, 'code': 500}}"),
	"test--6-openai-400":          traced(`openai.BadRequestError: Error code: 400 - {'error': {'message': "This model's maximum context length is 2048 tokens, the request has 3000", 'type': 'BadRequestError', 'code': 400}}`),
	"capacity--6-openai-429":      traced("openai.RateLimitError: Error code: 429 - {'error': {'message': 'the server is at capacity: 64 requests wait', 'code': 429}}"),
	"timeout--6-openai":           traced("openai.APITimeoutError: Request timed out."),
	"engine--6-requests-refused":  traced("requests.exceptions.ConnectionError: HTTPConnectionPool(host='127.0.0.1', port=8000): Max retries exceeded with url: /v1/completions (Caused by NewConnectionError('<urllib3.connection.HTTPConnection object at 0x7f01>: Failed to establish a new connection: [Errno 111] Connection refused'))"),
	"engine--6-requests-local":    traced("requests.exceptions.ConnectionError: HTTPConnectionPool(host='localhost', port=8000): Read timed out after the server closed the connection: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))"),
	"infra--6-requests-ssl":       traced("requests.exceptions.SSLError: HTTPSConnectionPool(host='hub.example.com', port=443): Max retries exceeded with url: /acme/tiny (Caused by SSLError(SSLEOFError(8, '[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol (_ssl.c:1006)')))"),
	"infra--6-requests-read":      traced("requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='hub.example.com', port=443): Read timed out. (read timeout=10)"),
	"test--6-hub-404":             traced("huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: Root=1-1)\n\nRepository Not Found for url: https://hub.example.com/api/models/acme/tinny.\nPlease make sure you specified the correct repo_id and repo_type."),
	"engine--6-httpx":             traced("httpx.RemoteProtocolError: Server disconnected without sending a response."),
	"engine--6-aiohttp":           traced("aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host localhost:8000 ssl:default [Connect call failed ('127.0.0.1', 8000)]"),
	"infra--6-aiohttp":            traced("aiohttp.client_exceptions.ClientConnectorDNSError: Cannot connect to host hub.example.com:443 ssl:default [Name or service not known]"),
	"engine--6-ray-actor":         traced("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\n\tactor_id: 4f\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file."),
	"capacity--6-ray-memory":      traced("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."),
	"capacity--6-core-free":       wrapped("ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB)."),
	"capacity--6-core-oom":        wrapped("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 120.00 MiB is free."),
	"engine--6-core-key":          wrapped("KeyError: 'model.layers.0.mlp.experts.w13_weight'"),
	"engine--6-core-shape":        wrapped("AssertionError: Attempted to load weight (torch.Size([32000, 4096])) into parameter (torch.Size([32064, 4096]))"),
	"infra--6-core-disk":          wrapped("OSError: [Errno 28] No space left on device: '/root/.cache/vllm/torch_compile_cache/1f'"),
	"engine--6-dead":              traced("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."),
	"engine--6-sub-status":        shell(python + ` -c 'import subprocess; subprocess.run(["sh", "-c", "exit 4"], check=True)'`),
	"engine--6-sub-signal":        shell(python + ` -c 'import subprocess; subprocess.run(["sh", "-c", "kill -SEGV $$"], check=True)'`),
	"timeout--6-queue":            shell(python + ` -c 'import queue; queue.Queue().get(timeout=0.1)'`),
	"engine--6-sglang":            says("[2026-01-01 00:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File \"scheduler.py\", line 2500, in run_scheduler_process\n    scheduler.event_loop_overlap()\nRuntimeError: req_pool_indices has 9 rows for 8 requests\n[2026-01-01 00:00:01] Received sigquit from a child process. It usually means the child failed.", "kill -KILL $$"),
	"timeout--6-sglang":           says("[2026-01-01 00:05:00 TP0] Watchdog timeout (self.watchdog_timeout=300)", "kill -KILL $$"),

	"engine--6-llama-arch":    says("llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'acme'\nllama_model_load_from_file_impl: failed to load model\nsrv    load_model: failed to load model, 'acme.gguf'\nmain: exiting due to model loading error", "exit 1"),
	"capacity--6-llama-vk":    says("ggml_vulkan: Device memory allocation of size 1073741824 failed.\nggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory\nmain: exiting due to model loading error", "exit 1"),
	"infra--6-llama-get":      says("common_download_file_single: trying to download model from https://hub.example.com/acme/tiny/resolve/main/tiny.gguf to /models/tiny.gguf...\ncurl_perform_with_retry: curl_easy_perform() failed after 3 attempts\nerror: failed to download https://hub.example.com/acme/tiny/resolve/main/tiny.gguf: HTTP status code: 503", "exit 1"),
	"engine--6-ollama-runner": says("Error: 500 Internal Server Error: llama runner process has terminated: exit status 2", "exit 1"),
	"capacity--6-ollama":      says("Error: model requires more system memory (9.3 GiB) than is available (3.1 GiB)", "exit 1"),
	"infra--6-ollama-pull":    says(`Error: pull model manifest: Get "https://registry.example.com/v2/library/tiny/manifests/latest": dial tcp: lookup registry.example.com: i/o timeout`, "exit 1"),
	"test--6-ollama-name":     says("Error: pull model manifest: file does not exist", "exit 1"),
	"engine--6-trt-assert":    says("[TensorRT-LLM][ERROR] Assertion failed: Invalid tensor shape (/src/cpp/runtime/gptJson.cpp:88)", "exit 1"),
	"capacity--6-trt-memory":  says("[TRT] [E] Requested amount of GPU memory (1073741824 bytes) could not be allocated. There may not be enough free memory for allocation to succeed.", "exit 1"),

	"capacity--6-dmesg":       says("kernel: Out of memory: Killed process 812 (llama-server) total-vm:41231232kB, anon-rss:30210012kB", "exit 137"),
	"capacity--6-systemd-oom": says("systemd[1]: engine.service: A process of this unit has been killed by the OOM killer.\nsystemd[1]: engine.service: Failed with result 'oom-kill'.", "exit 1"),
	"engine--6-systemd-segv":  says("systemd[1]: engine.service: Main process exited, code=dumped, status=11/SEGV\nsystemd[1]: engine.service: Failed with result 'core-dump'.", "exit 1"),
	"timeout--6-systemd":      says("systemd[1]: engine.service: start operation timed out. Terminating.\nsystemd[1]: engine.service: Failed with result 'timeout'.", "exit 1"),
	"infra--6-nfs":            says("cp: error reading '/mnt/models/tiny.gguf': Input/output error\nnfs: server nas.example.com not responding, timed out", "exit 1"),
	"infra--6-runner-lost":    says("The hosted runner lost communication with the server. Anything in your workflow that terminates the runner process, starves it for CPU/Memory, or blocks its network access can cause this error.", "exit 1"),
	"infra--6-lfs-quota":      says("batch response: This repository exceeded its LFS budget. The account responsible for the budget should increase it to restore access.\nerror: failed to fetch some objects from 'https://git.example.com/acme/models.git/info/lfs'", "exit 2"),
	"infra--6-apt":            says("E: Failed to fetch http://deb.example.com/debian/pool/main/c/curl/curl_8.deb  503  Service Unavailable [IP: 203.0.113.9 80]\nE: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?", "exit 100"),
	"infra--6-ssh":            says("ssh: connect to host gpu-3.example.com port 22: Connection timed out", "exit 255"),
	"engine--6-ssh-remote":    says("gpu-3: loading tiny\ngpu-3: thread 'main' panicked at src/scheduler.rs:88:9:\ngpu-3: index out of bounds: the len is 3 but the index is 3\nConnection to gpu-3.example.com closed.", "exit 101"),
	"engine--6-nginx-log":     says(`[error] 31#31: *1 connect() failed (111: Connection refused) while connecting to upstream, client: 127.0.0.1, server: , request: "POST /v1/completions HTTP/1.1", upstream: "http://127.0.0.1:8001/v1/completions", host: "localhost:8000"`, "exit 1"),

	"test--6-make":        shell("cd $WORK && printf 'all:\\n\\ttrue\\n' > Makefile && make tset"),
	"test--6-diff":        shell("cd $WORK && echo 'error: connection refused' > want && echo 'error: timed out' > got && diff -u want got"),
	"test--6-tap":         says("1..3\nok 1 lists models\nok 2 streams\nnot ok 3 says connection refused when the engine is down\n# (in test file api.bats, line 31)", "exit 1"),
	"test--6-node":        shell("cd $WORK && cat > a.test.js <<'EOF'\nconst test = require('node:test'), assert = require('node:assert');\ntest('message', () => assert.strictEqual('ECONNREFUSED', 'ENOTFOUND'));\nEOF\nnode --test a.test.js"),
	"test--6-unittest":    shell("cd $WORK && cat > t.py <<'EOF'\nimport unittest\nclass T(unittest.TestCase):\n    def test_message(self): self.assertEqual('Connection refused', 'No space left on device')\nunittest.main()\nEOF\n" + python + " t.py"),
	"test--6-perl":        shell(`perl -e 'use Test::More tests => 1; is("network is unreachable", "no route to host", "message")'`),
	"engine--6-unittest":  shell("cd $WORK && printf 'def load():\\n    return [][4]\\n' > engine.py && cat > t.py <<'EOF'\nimport unittest, engine\nclass T(unittest.TestCase):\n    def test_load(self): engine.load()\nunittest.main()\nEOF\n" + python + " t.py"),
	"engine--6-node-test": shell("cd $WORK && echo 'exports.step = () => { throw new Error(\"slot 3 has no tokens\") }' > engine.js && cat > a.test.js <<'EOF'\nconst test = require('node:test'), engine = require('./engine.js');\ntest('step', () => engine.step());\nEOF\nnode --test a.test.js"),
	"engine--6-rs-chain":  rust("", "", `use std::fmt; #[derive(Debug)] struct E(std::num::ParseFloatError); impl fmt::Display for E { fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result { write!(f, "bad rope_theta") } } impl std::error::Error for E {} fn main() -> Result<(), Box<dyn std::error::Error>> { let v: f32 = "1e6f".parse().map_err(E)?; println!("{v}"); Ok(()) }`),
	"infra--6-rs-io":      onDiskRust(`use std::io::Write; fn main() -> std::io::Result<()> { let mut f = std::fs::File::create(std::env::var("DISK").unwrap() + "/kv")?; f.write_all(&vec![0u8; 1 << 20])?; Ok(()) }`, false),
	"engine--6-java-npe":  javaMain("", `Map<String, int[]> m = new HashMap<>(); System.err.println("WARN: Connection refused by metrics.example.com, metrics are off"); m.get("lm_head").clone();`),
	"engine--6-cpp-throw": cpp("", "#include <stdexcept>\n#include <cstdio>\nint main() { fprintf(stderr, \"[warn] could not open /dev/nvidia-caps: No such file or directory\\n\"); throw std::out_of_range(\"slot 9 of 8\"); }", ""),
	"engine--6-py-errno":  shell(python + ` -c 'import os; os.write(99, b"x")'`),
	"engine--6-py-pickle": shell(python + ` -c 'import pickle; pickle.loads(b"\x80\x05no")'`),
	"engine--6-py-unpack": shell(python + ` -c 'a, b = (1, 2, 3)'`),
	"engine--6-go-select": goProgram("", "import \"errors\"\nfunc main() { panic(errors.New(\"router: all 4 workers are marked dead: connection refused\")) }"),
}

var sixthServed = map[string]string{
	"engine--6-http-panic":   "engine TestBeam",
	"engine--6-http-500":     "engine TestBeamStatus",
	"engine--6-json":         "engine TestParse",
	"engine--6-cancelled":    "engine TestStops",
	"engine--6-removed":      "engine TestSpillBack",
	"engine--6-own-tls":      "engine TestOwnTLS",
	"engine--6-same-port":    "engine TestWorkers",
	"engine--6-compose":      "engine TestCompose",
	"engine--6-container":    "engine TestContainer",
	"engine--6-server-close": "engine TestServerCloses",
	"engine--6-two":          "engine TestTwoErrors",
	"test--6-setenv":         "engine TestParallel",
	"test--6-sentinel":       "engine TestSentinel",
	"test--6-two":            "engine TestTwoCauses",
	"leak--6-goroutines":     "engine TestClose",
	"timeout--6-command":     "engine TestWarmUpCommand",
	"infra--6-scratch":       "engine TestScratch",
}

func init() {
	maps.Copy(errorCases, sixthErrors)
	maps.Copy(served, sixthServed)
}
