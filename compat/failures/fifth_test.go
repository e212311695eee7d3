package failures

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// rpcs are tests of the module testdata/rpc, an engine that speaks gRPC.
var rpcs = map[string]string{
	"engine--5-grpc-internal": "TestGenerate",
	"engine--5-grpc-closed":   "TestClosed",
	"engine--5-grpc-blocks":   "TestBlocks",
	"engine--5-grpc-worker":   "TestRanks",
	"engine--5-grpc-batch":    "TestBatch",
	"engine--5-grpc-panic":    "TestRow",
	"engine--5-grpc-exit":     "TestStep",
	"engine--5-grpc-refused":  "TestAfterStep",
	"capacity--5-grpc-memory": "TestBigBatch",
	"test--5-grpc-invalid":    "TestArguments",
	"test--5-grpc-code":       "TestCode",
	"timeout--5-grpc-slow":    "TestSlow",
	"infra--5-grpc-dns":       "TestModelServer",
	"infra--5-grpc-remote":    "TestStorage",
}

// rust compiles a program and runs it.
func rust(prefix, flags, source string, env ...string) func(t *testing.T) error {
	return func(t *testing.T) error {
		work := t.TempDir()
		_ = os.WriteFile(filepath.Join(work, "engine.rs"), []byte(source), 0o600)
		if err := shell("cd " + work + " && rustc -g -A warnings " + flags + " -o engine engine.rs")(t); err != nil {
			panic("harmless: " + err.Error())
		}
		return shell(prefix+"RUST_BACKTRACE=0 "+work+"/engine", env...)(t)
	}
}

// javaMain runs the body of a main function.
func javaMain(flags, body string) func(t *testing.T) error {
	return shell("cd $WORK && cat > M.java <<'EOF'\nimport java.io.*; import java.net.*; import java.net.http.*; import java.nio.file.*; import java.util.*; import java.util.concurrent.*;\nclass M { public static void main(String[] a) throws Exception { " +
		body + " } }\nEOF\njava " + flags + " M.java")
}

// daemon answers the docker client with one error.
func daemon(status, message, command string) func(t *testing.T) error {
	return shell(`cat > $WORK/d.py <<'EOF'
import http.server, json, os, socketserver, sys
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, code, body):
        self.send_response(code); self.send_header("Content-Type", "application/json"); self.send_header("Api-Version", "1.47"); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
    def address_string(self): return "unix"
    def do_HEAD(self): self.answer(200, b"")
    def do_GET(self): self.answer(200, b"OK" if "_ping" in self.path else b"{}")
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "/containers/create" in self.path and "start" in os.environ["WHEN"]: return self.answer(201, b'{"Id": "c0ffee", "Warnings": []}')
        self.answer(int(os.environ["STATUS"]), json.dumps({"message": os.environ["MESSAGE"]}).encode())
class S(socketserver.ThreadingMixIn, socketserver.UnixStreamServer): pass
S(os.environ["SOCK"], H).serve_forever()
EOF
export SOCK=$WORK/docker.sock WHEN=`+command+`
`+python+` $WORK/d.py & d=$!
until test -S $SOCK; do sleep 0.1; done
export DOCKER_HOST=unix://$SOCK
case $WHEN in pull) docker pull acme/engine:2;; *) docker run --rm -d acme/engine:2;; esac
e=$?; kill $d; exit $e`, "STATUS="+status, "MESSAGE="+message)
}

// api answers kubectl with one status.
func api(code, reason, message string) func(t *testing.T) error {
	return shell(`cat > $WORK/a.py <<'EOF'
import http.server, json, os
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": int(os.environ["CODE"]), "reason": os.environ["REASON"], "message": os.environ["MESSAGE"]}).encode()
        self.send_response(int(os.environ["CODE"])); self.send_header("Content-Type", "application/json"); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), H); open("port", "w").write(str(s.server_port)); s.serve_forever()
EOF
cd $WORK; `+python+` a.py & d=$!
until test -s port; do sleep 0.1; done
export HOME=$WORK; kubectl --server=http://127.0.0.1:$(cat port) get --raw /api/v1/namespaces/ci/pods/engine-0; e=$?; kill $d; exit $e`, "CODE="+code, "REASON="+reason, "MESSAGE="+message)
}

var fifthErrors = map[string]func(t *testing.T) error{
	"engine--5-rs-none":     rust("", "", `fn main() { let v: Option<u32> = None; v.unwrap(); }`),
	"engine--5-rs-index":    rust("", "", `fn main() { let v = vec![1, 2]; let i = std::env::args().count() + 6; println!("{}", v[i]); }`),
	"engine--5-rs-refcell":  rust("", "", `use std::cell::RefCell; fn main() { let c = RefCell::new(1); let _a = c.borrow_mut(); let _b = c.borrow_mut(); }`),
	"engine--5-rs-parse":    rust("", "", `fn main() { "1e6x".parse::<u32>().expect("rope_theta of config.json"); }`),
	"engine--5-rs-refused":  rust("", "", `fn main() { std::net::TcpStream::connect("127.0.0.1:1").expect("worker 0"); }`),
	"engine--5-rs-result":   rust("", "", `fn main() -> Result<(), String> { Err("head dim 96 is not supported".into()) }`),
	"engine--5-rs-overflow": rust("", "", `fn main() { let n = usize::MAX; let v: Vec<u64> = Vec::with_capacity(n); println!("{}", v.len()); }`),
	"engine--5-rs-warn":     rust("", "", `fn main() { eprintln!("2026-01-01T00:00:00Z  WARN hub: failed to lookup address information for hub.example.com, the cache is used"); panic!("tokenizer has no token <eos>"); }`),
	"engine--5-rs-join":     rust("", "", `fn main() { std::thread::spawn(|| { let z: usize = std::env::args().count() - 1; println!("{}", 7 / z) }).join().unwrap(); }`),
	"engine--5-rs-poison":   rust("", "", `use std::sync::*; fn main() { let m = Arc::new(Mutex::new(0)); let n = m.clone(); let _ = std::thread::spawn(move || { let _g = n.lock().unwrap(); panic!("step 4: batch is empty") }).join(); let _g = m.lock().unwrap(); }`),
	"infra--5-rs-disk":      onDiskRust(`fn main() { std::fs::write(std::env::var("DISK").unwrap() + "/kv", vec![1u8; 1 << 20]).unwrap(); }`, false),
	"infra--5-rs-readonly":  onDiskRust(`fn main() { std::fs::create_dir(std::env::var("DISK").unwrap() + "/cache").expect("create the cache"); }`, true),
	"infra--5-rs-dns":       rust("unshare -n env ", "", `fn main() { std::net::TcpStream::connect("hub.example.com:443").expect("download of acme/tiny"); }`),
	"infra--5-rs-port": func(t *testing.T) error {
		return rust("", "", `fn main() { std::net::TcpListener::bind("127.0.0.1:`+port(taken(t))+`").unwrap(); }`)(t)
	},
	"capacity--5-rs-alloc":    rust("ulimit -v 400000; ", "", `fn main() { let v = vec![1u8; 1 << 33]; println!("{}", v.len()); }`),
	"timeout--5-rs-recv":      rust("", "", `fn main() { let (_tx, rx) = std::sync::mpsc::channel::<u8>(); rx.recv_timeout(std::time::Duration::from_millis(100)).expect("first token"); }`),
	"test--5-rs-test":         rust("", "--test", `#[test] fn text() { assert_eq!("no space left on device", "No space left on device (os error 28)"); }`),
	"test--5-rs-assert":       rust("", "--test", `#[test] fn count() { let n = 3; assert!(n == 4, "4 blocks after connection reset by peer, not {n}"); }`),
	"infra--5-cargo":          offline("cd $WORK && mkdir src && echo 'fn main() {}' > src/main.rs && printf '[package]\\nname = \"m\"\\nversion = \"0.1.0\"\\n[dependencies]\\nzz-none = \"1\"\\n' > Cargo.toml && CARGO_NET_RETRY=0 CARGO_HOME=$WORK/c cargo build"),
	"engine--5-java-assert":   javaMain("-ea", `int blocks = 0; assert blocks > 0 : "no blocks after profiling";`),
	"engine--5-java-cause":    javaMain("", `try { int[] b = new int[2]; b[a.length + 5]++; } catch (RuntimeException e) { throw new RuntimeException("step 3 failed", e); }`),
	"engine--5-java-future":   javaMain("", `CompletableFuture.supplyAsync(() -> { throw new IllegalStateException("sequence 4 is not running"); }).get();`),
	"engine--5-java-refused":  javaMain("", `HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create("http://127.0.0.1:1/health")).build(), HttpResponse.BodyHandlers.ofString());`),
	"engine--5-java-concur":   javaMain("", `var l = new ArrayList<>(List.of(1, 2, 3)); for (int x : l) l.remove(0);`),
	"engine--5-java-number":   javaMain("", `Integer.parseInt("4096.0");`),
	"infra--5-java-disk":      onDisk("cd $WORK && cat > M.java <<'EOF'\nimport java.io.*; import java.nio.file.*; class M { public static void main(String[] a) { try { Files.write(Path.of(a[0]), new byte[1000000]); } catch (IOException e) { throw new UncheckedIOException(\"cannot store block 3\", e); } } }\nEOF\njava M.java $DISK/b"),
	"infra--5-java-host":      offline("cd $WORK && cat > M.java <<'EOF'\nclass M { public static void main(String[] a) { try { new java.net.Socket(\"hub.example.com\", 443); } catch (java.io.IOException e) { throw new RuntimeException(\"cannot load acme/tiny\", e); } } }\nEOF\njava M.java"),
	"timeout--5-java-http":    hanging("cd $WORK && cat > M.java <<'EOF'\nimport java.net.*; import java.net.http.*; class M { public static void main(String[] a) throws Exception { HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(\"http://127.0.0.1:\" + a[0])).timeout(java.time.Duration.ofMillis(400)).build(), HttpResponse.BodyHandlers.ofString()); } }\nEOF\njava M.java $PORT"),
	"engine--5-cpp-ggml":      cpp("", "#include <cstdio>\n#include <cstdlib>\n#define GGML_ASSERT(x) if (!(x)) { fprintf(stderr, \"%s:%d: GGML_ASSERT(%s) failed\\n\", \"/src/ggml/src/ggml.c\", __LINE__, #x); abort(); }\nint main(int c, char**) { GGML_ASSERT(c % 32 == 0 && \"no space left in the graph\"); }", ""),
	"engine--5-cpp-stoi":      cpp("", "#include <string>\nint main() { return std::stoi(\"n_ctx\"); }", ""),
	"engine--5-cpp-null":      cpp("", "#include <string>\nint main() { const char *volatile p = 0; std::string s(p); return s.size(); }", ""),
	"engine--5-cpp-mlock":     cpp("", "#include <cstdio>\nint main() { fprintf(stderr, \"warning: failed to mlock 8589934592-byte buffer (after previously locking 0 bytes): Cannot allocate memory\\nTry increasing RLIMIT_MEMLOCK ('ulimit -l' as root).\\nllama_model_load: error loading model: tensor 'blk.3.ffn_down.weight' data is not within the file bounds, model is corrupted or incomplete\\n\"); return 1; }", ""),
	"engine--5-cpp-shutdown":  cpp("", "#include <cstdio>\n#include <cstdlib>\nint main() { fprintf(stderr, \"srv  update_slots: slot 3: n_past = 17 > n_ctx = 16\\nlibc++abi: terminating\\n\"); abort(); }", ""),
	"infra--5-cpp-copy":       onDisk("printf '#include <filesystem>\\nint main(int, char **a) { std::filesystem::copy_file(\"/bin/bash\", a[1]); }' > $WORK/m.cc && g++ -std=c++17 -o $WORK/m $WORK/m.cc && $WORK/m $DISK/bash"),
	"infra--5-cpp-bind":       onPort("printf '#include <sys/socket.h>\\n#include <netinet/in.h>\\n#include <cstdio>\\n#include <cstdlib>\\nint main(int, char **a) { int s = socket(AF_INET, SOCK_STREAM, 0); sockaddr_in i{}; i.sin_family = AF_INET; i.sin_port = htons(atoi(a[1])); i.sin_addr.s_addr = htonl(INADDR_LOOPBACK); if (bind(s, (sockaddr*)&i, sizeof i)) { perror(\"srv: bind\"); return 1; } }' > $WORK/m.cc && g++ -o $WORK/m $WORK/m.cc && $WORK/m $PORT"),
	"capacity--5-cpp-thread":  asNobody("ulimit -u 1; printf 'import threading\\nthreading.Thread(target=print).start()' | " + python),
	"leak--5-valgrind":        cpp("-g", "#include <cstdlib>\nint *volatile p; int main() { p = (int*)malloc(400); p = 0; }", "valgrind -q --leak-check=full --error-exitcode=9 "),
	"engine--5-valgrind-read": cpp("-g", "#include <cstdlib>\nint main() { int *p = (int*)malloc(8); int n = p[4]; free(p); return n != n; }", "valgrind -q --error-exitcode=9 "),
	"leak--5-py-shm":          shell(python + ` -c 'from multiprocessing import shared_memory as m; s = m.SharedMemory(create=True, size=4096); s.close()'; exit 1`),

	"engine--5-py-handling": onDisk(python + ` -c 'try: open("'$DISK'/a", "w").write("x" * 999999)
except OSError as e: print("cannot spill: " + e)'`),
	"infra--5-py-from": onDisk(python + ` -c 'try:
    with open("'$DISK'/a", "w") as f: f.write("x" * 999999)
except OSError as e: raise RuntimeError("engine core: cannot spill block 3") from e'`),
	"engine--5-py-refused": shell(python + ` -c 'import http.client; http.client.HTTPConnection("127.0.0.1", 1).request("GET", "/health")'`),
	"engine--5-py-remote": shell(python + ` -c 'import http.client, socket, threading
s = socket.create_server(("127.0.0.1", 0)); threading.Thread(target=lambda: s.accept()[0].close(), daemon=True).start()
c = http.client.HTTPConnection(*s.getsockname()); c.request("GET", "/v1/models"); c.getresponse()'`),
	"engine--5-py-mode":   shell(python + ` -c 'open("/dev/null").write("x")'`),
	"engine--5-py-closed": shell(python + ` -c 'import io; f = io.BytesIO(); f.close(); f.read()'`),
	"engine--5-py-nan":    shell(python + ` -c 'int(float("nan"))'`),
	"engine--5-py-worker": shell(python + ` -c 'import multiprocessing as m
def f(q): raise ValueError("rank 1: hidden size 4097 is odd")
if __name__ == "__main__":
    q = m.Queue(); p = m.Process(target=f, args=(q,)); p.start(); p.join()
    raise ConnectionResetError("worker 1 hung up")'`),
	"engine--5-py-group":       shell(python + ` -c 'raise ExceptionGroup("2 ranks failed", [KeyError("lm_head"), OSError("no space left in the arena")])'`),
	"engine--5-py-http":        shell(python + ` -c 'import urllib.error; raise urllib.error.HTTPError("http://127.0.0.1:8000/v1/completions", 502, "Bad Gateway", None, None)'`),
	"infra--5-py-hub":          shell(python + ` -c 'import urllib.error; raise urllib.error.HTTPError("https://hub.example.com/acme/tiny/resolve/main/model.safetensors", 504, "Gateway Time-out", None, None)'`),
	"capacity--5-py-cuda":      raises("class AcceleratorError(RuntimeError): pass", `raise AcceleratorError("CUDA error: out of memory")`),
	"capacity--5-py-context":   raises("", `raise ValueError("To serve at least one request with the model's max seq len (131072), 16.00 GiB KV cache is needed, which is larger than the available KV cache memory (3.20 GiB).")`),
	"capacity--5-hip":          raises("class OutOfMemoryError(RuntimeError): pass", `raise OutOfMemoryError("HIP out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 63.98 GiB of which 512.00 MiB is free.")`),
	"engine--5-hip-fault":      says("Memory access fault by GPU node-1 (Agent handle: 0x55d1) on address 0x7f0000000000. Reason: Page not present or supervisor privilege.", "kill -ABRT $$"),
	"engine--5-xid-31":         says("NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=engine, MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f_12340000", "exit 1"),
	"infra--5-xid-48":          says("NVRM: Xid (PCI:0000:3b:00): 48, pid=4711, An uncorrectable double bit error (DBE) has been detected on GPU", "exit 1"),
	"infra--5-fabric":          raises("", `raise RuntimeError("CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized")`),
	"infra--5-mig":             says("Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error", "exit 255"),
	"engine--5-nccl-peer":      raises("class DistBackendError(RuntimeError): pass", `raise DistBackendError("NCCL error: remote process exited or there was a network error, ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.")`),
	"timeout--5-store":         raises("class DistStoreError(RuntimeError): pass", `raise DistStoreError("Timed out after 301 seconds waiting for clients. 3/4 clients joined.")`),
	"engine--5-node-unhandled": shell(`node -e 'process.on("exit", () => console.error("shutdown: 2 slots are busy")); setTimeout(() => { throw new Error("slot 2: unexpected token <unk>") }, 20)'`),
	"engine--5-node-refused":   shell(`node -e 'require("http").get("http://127.0.0.1:1/v1/models")'`),
	"engine--5-node-hangup":    shell(`node -e 's = require("net").createServer(c => c.end()).listen(0, "127.0.0.1", () => require("http").get({host: "127.0.0.1", port: s.address().port}))'`),
	"infra--5-node-space":      onDisk(`node -e 'require("fs").createWriteStream("'$DISK'/a").write(Buffer.alloc(1e6))'`),
	"infra--5-perl":            onDisk(`perl -e 'open(F, ">", $ARGV[0]) or die; print F "x" x 999999; close(F) or die "close: $!"' $DISK/a`),
	"infra--5-psql":            offline("psql -h db.example.com -c 'select 1'"),
	"infra--5-scp":             offline("scp -o BatchMode=yes host.example.com:/models/tiny.gguf $WORK/"),

	"infra--5-docker-down":    shell("DOCKER_HOST=unix:///run/none/docker.sock docker ps"),
	"infra--5-docker-rate":    daemon("500", "toomanyrequests: You have reached your unauthenticated pull rate limit.", "pull"),
	"infra--5-docker-disk":    daemon("500", "write /var/lib/docker/tmp/GetImageBlob1: no space left on device", "pull"),
	"infra--5-docker-tls":     daemon("500", `Get "https://registry.example.com/v2/": net/http: TLS handshake timeout`, "pull"),
	"infra--5-docker-port":    daemon("500", "driver failed programming external connectivity on endpoint engine: Bind for 0.0.0.0:8000 failed: port is already allocated", "start"),
	"test--5-docker-tag":      daemon("404", "manifest for acme/engine:2 not found: manifest unknown: manifest unknown", "pull"),
	"engine--5-docker-entry":  daemon("400", `failed to create task for container: OCI runtime create failed: runc create failed: unable to start container process: exec: "/usr/bin/enginee": stat /usr/bin/enginee: no such file or directory`, "start"),
	"capacity--5-docker-gpu":  daemon("500", `could not select device driver "nvidia" with capabilities: [[gpu]]`, "start"),
	"engine--5-docker-exit":   says("engine-1  | KeyError: 'rope_scaling'\nengine-1 exited with code 1\ndependency failed to start: container engine-1 exited (1)", "exit 1"),
	"engine--5-docker-health": says("Container ci-engine-1  Starting\nContainer ci-engine-1  Error\ndependency failed to start: container ci-engine-1 is unhealthy", "exit 1"),

	"infra--5-kube-down":     shell("HOME=$WORK kubectl --token=t --server=https://127.0.0.1:1 get pods"),
	"infra--5-kube-dns":      offline("HOME=$WORK kubectl --token=t --server=https://kube.example.com:6443 get pods"),
	"infra--5-kube-503":      api("503", "ServiceUnavailable", "the server is currently unable to handle the request"),
	"infra--5-kube-etcd":     api("500", "InternalError", "etcdserver: leader changed"),
	"test--5-kube-404":       api("404", "NotFound", `pods "engine-0" not found`),
	"capacity--5-kube-gpus":  says("Warning  FailedScheduling  default-scheduler  0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod.", "exit 1"),
	"capacity--5-kube-quota": says(`Error from server (Forbidden): pods "engine-0" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=4, used: requests.nvidia.com/gpu=6, limited: requests.nvidia.com/gpu=8`, "exit 1"),
	"capacity--5-kube-oom":   says("    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137", "exit 1"),
	"infra--5-kube-pull":     says(`Failed to pull image "registry.example.com/acme/engine:1": failed to do request: Head "https://registry.example.com/v2/acme/engine/manifests/1": dial tcp: lookup registry.example.com: no such host`+"\nError: ImagePullBackOff", "exit 1"),
	"test--5-kube-image":     says(`Failed to pull image "registry.example.com/acme/enginee:1": rpc error: code = NotFound desc = failed to resolve reference "registry.example.com/acme/enginee:1": not found`+"\nError: ImagePullBackOff", "exit 1"),
	"engine--5-kube-crash":   says("Back-off restarting failed container engine in pod engine-0_ci\n    Last State:     Terminated\n      Reason:       Error\n      Exit Code:    139", "exit 1"),
	"engine--5-kube-probe":   says(`Readiness probe failed: Get "http://10.42.0.9:8000/health": dial tcp 10.42.0.9:8000: connect: connection refused`, "exit 1"),
	"infra--5-kube-evicted":  says("The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 900Mi.", "exit 1"),
	"infra--5-kube-node":     says("pod engine-0 was deleted: TaintManagerEviction: node gpu-3 has the taint node.kubernetes.io/unreachable", "exit 1"),
	"timeout--5-kube-wait":   says("error: timed out waiting for the condition on pods/engine-0", "exit 1"),

	"engine--5-http-worker": answer(503, `{"error":"no healthy upstream: worker 0 ended with signal 11"}`),
	"engine--5-http-nginx":  answer(502, "<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1></center></body></html>"),
	"engine--5-http-json":   answer(500, `{"detail":"OSError: [Errno 24] Too many open files: '/proc/self/maps'"}`),
	"capacity--5-http-full": answer(503, `{"error":"the queue is full: 128 of 128 requests wait"}`),
	"test--5-http-415":      answer(415, `{"error":"content type text/plain is not supported"}`),
	"test--5-http-422":      answer(422, `{"detail":[{"loc":["body","n"],"msg":"value is not a valid integer"}]}`),
}

var fifthProjects = map[string]project{
	"test--5-pytest-status":   pytest("def test_status():\n    status, body = 200, 'ok'\n    assert status == 503, 'the server must be unavailable'\n"),
	"test--5-pytest-message":  pytest("import pytest\ndef test_message():\n    with pytest.raises(RuntimeError, match='timed out'):\n        raise RuntimeError('Connection refused')\n"),
	"engine--5-pytest-async":  {map[string]string{"engine.py": "import asyncio\nasync def step():\n    raise RuntimeError('sequence 3 has no slot')\n", "test_engine.py": "import asyncio, engine\ndef test_step():\n    asyncio.run(engine.step())\n"}, python + " -m pytest -q -p no:cacheprovider --junitxml=out.xml", "out.xml"},
	"engine--5-pytest-import": {map[string]string{"engine.py": "import math\nN = math.log(-1)\n", "test_engine.py": "import engine\ndef test_n():\n    assert engine.N\n"}, python + " -m pytest -q -p no:cacheprovider --junitxml=out.xml", "out.xml"},
	"test--5-pytest-fixture":  pytest("import json\ndef test_golden():\n    json.load(open('testdata/golden.json'))\n"),
	"test--5-gtest-true":      gtest("", "TEST(Retry, Gives) { bool up = false; EXPECT_TRUE(up) << \"connection refused after 3 attempts must not end the client\"; }"),
	"engine--5-gtest-segv":    gtest("", "TEST(Cache, Free) { int *volatile p = nullptr; *p = 1; }"),
	"infra--5-gtest-dns":      gtest("", "#include <netdb.h>\nTEST(Hub, Lookup) { addrinfo *r; int e = getaddrinfo(\"models.invalid\", \"443\", nullptr, &r); ASSERT_FALSE(e) << gai_strerror(e); }"),
}

func onDiskRust(source string, readOnly bool) func(t *testing.T) error {
	return func(t *testing.T) error {
		options := []string{"size=64k"}
		if readOnly {
			options = append(options, "ro")
		}
		return rust("", "", source, "DISK="+tmpfs(t, options...))(t)
	}
}

func init() {
	maps.Copy(errorCases, fifthErrors)
	maps.Copy(projects, fifthProjects)
	maps.Copy(served, rpcServed())
	hosted["engine--5-hosted-warn"] = `echo 'WARNING: cannot reach https://hub.example.com (Temporary failure in name resolution), local files are used' >&2; ` + python + ` -c 'raise ValueError("num_key_value_heads is 0")'`
	hosted["engine--5-hosted-log"] = `echo '{"level":"warn","msg":"metrics: no space left on device"}'; echo '{"level":"fatal","msg":"expert 9 of 8"}'; exit 2`
	hosted["infra--5-hosted-log"] = `echo '{"level":"info","msg":"loading"}'; echo '{"level":"fatal","msg":"open log: mkdir /models/cache: read-only file system"}'; exit 2`
	serving["engine--5-serve-warn"] = `print("WARN: no space left on device, the prefix cache is off", flush=True); os._exit(9)`
	serving["engine--5-serve-null"] = `self.answer('null')`
	for _, name := range []string{"engine--5-hosted-warn", "engine--5-hosted-log", "infra--5-hosted-log"} {
		testCases[name] = func(t *testing.T) { host(t, name) }
	}
	for _, name := range []string{"engine--5-serve-warn", "engine--5-serve-null"} {
		testCases[name] = func(t *testing.T) { serve(t, name) }
	}
}

func rpcServed() map[string]string {
	all := map[string]string{}
	for name, test := range rpcs {
		all[name] = "../rpc " + test
	}
	return all
}
