package failures

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/server"
)

// crashes are programs that end by a defect of their own: the command that runs each.
var crashes = map[string]func(t *testing.T) error{
	"engine--cpp-segv":      cpp("", "int main() { volatile int *p = 0; return *p; }", ""),
	"engine--cpp-assert":    cpp("", "#include <cassert>\nint main(int c, char**) { assert(c == 7 && \"rows are aligned\"); }", ""),
	"engine--cpp-range":     cpp("", "#include <vector>\nint main() { std::vector<int> v(3); return v.at(9); }", ""),
	"engine--cpp-runtime":   cpp("", "#include <stdexcept>\nint main() { throw std::runtime_error(\"tensor 'output.weight' has wrong shape; expected 64, 512, got 64, 500\"); }", ""),
	"engine--cpp-overflow":  cpp("", "int f(volatile int *p) { volatile char b[9000]; b[0] = *p; return f(p) + b[0]; }\nint main(int c, char**) { return f(&c); }", ""),
	"engine--cpp-free":      cpp("", "#include <cstdlib>\nint main() { char *volatile p = (char*)malloc(9); free(p); free(p); }", ""),
	"engine--cpp-heap":      cpp("", "#include <cstdlib>\n#include <cstring>\nint main() { char *volatile p = (char*)malloc(20); memset(p, 65, 90); char *volatile q = (char*)malloc(2000); free(p); free(q); char *volatile r = (char*)malloc(90000); free(r); }", ""),
	"engine--cpp-fpe":       cpp("", "int main(int c, char**) { volatile int z = 0; return c / z; }", ""),
	"engine--cpp-trap":      cpp("", "int main() { __builtin_trap(); }", ""),
	"engine--cpp-virtual":   cpp("", "struct A { A() { g(); } void g() { f(); } virtual void f() = 0; };\nstruct B : A { void f() {} };\nint main() { B b; }", ""),
	"engine--cpp-thread":    cpp("-pthread", "#include <thread>\nint main() { std::thread t([] { for (;;); }); }", ""),
	"engine--cpp-asan":      cpp("-fsanitize=address -g", "int main() { int *p = new int[4]; delete[] p; return p[1]; }", ""),
	"engine--cpp-asan-over": cpp("-fsanitize=address -g", "int main(int c, char**) { int b[4] = {}; return b[c + 4]; }", ""),
	"engine--cpp-ubsan":     cpp("-fsanitize=undefined -fno-sanitize-recover=all -g", "int main(int c, char**) { int x = 2147483647; x += c; return x; }", ""),
	"engine--cpp-tsan":      cpp("-fsanitize=thread -g", "#include <thread>\nint n;\nint main() { std::thread t([] { n++; }); n++; t.join(); return 0; }", "setarch -R "),
	"engine--cpp-exit":      cpp("", "#include <cstdio>\nint main() { fprintf(stderr, \"error: unknown quantization type 42 in blk.3.ffn_up\\n\"); return 3; }", ""),
	"leak--cpp-lsan":        cpp("-fsanitize=address -g", "int *volatile p; int main() { p = new int[400]; p = 0; }", ""),

	"engine--py-key":       shell(python + ` -c 'layers = {"model.layers.0": 1}; layers["model.layers.1.mlp.gate_proj.weight"]'`),
	"engine--py-dtype":     shell(python + ` -c 'import numpy; numpy.dtype("bfloat13")'`),
	"engine--py-shape":     shell(python + ` -c 'import numpy; numpy.ones((3, 4)) @ numpy.ones((3, 4))'`),
	"engine--py-assert":    shell(python + ` -c 'num_blocks = 0; assert num_blocks > 0, "no blocks left after profiling"'`),
	"engine--py-segv":      shell(python + ` -X faulthandler -c 'import ctypes; ctypes.string_at(0)'`),
	"engine--py-recursion": shell(python + ` -c 'f = lambda n: f(n + 1); f(0)'`),
	"engine--py-abort":     shell(python + ` -c 'import os; os.abort()'`),
	"engine--py-json":      shell("echo '{\"hidden_size\": 64,' > $WORK/config.json; " + python + ` -c 'import json; json.load(open("config.json"))'`),
	"engine--py-struct":    shell(python + ` -c 'import struct; struct.unpack("<Q", b"GGU")'`),
	"engine--py-unicode":   shell(python + ` -c 'b"\xff\xfe".decode()'`),
	"engine--py-pool":      shell(python + ` -c 'import concurrent.futures as f, os; p = f.ProcessPoolExecutor(1); p.submit(os._exit, 1).result()'`),
	"engine--py-attr":      shell(python + ` -c 'None.forward()'`),
	"engine--py-type":      shell(python + ` -c 'len(3)'`),
	"engine--py-zero":      shell(python + ` -c 'print(1 / 0)'`),
	"engine--py-exit":      shell(python + ` -c 'import sys; sys.exit("unsupported model architecture: acme")'`),
	"engine--py-chained": shell(python + ` -c 'try: {}["lm_head"]
except KeyError as e: raise RuntimeError("Engine failed to load tiny") from e'`),

	"engine--node-type":   shell(`node -e 'const m = undefined; m.forward()'`),
	"engine--node-reject": shell(`node -e 'Promise.reject(new Error("logits are NaN"))'`),
	"engine--node-range":  shell(`node -e 'new Array(-1)'`),
	"engine--java-npe":    shell(`cd $WORK && echo 'class M { public static void main(String[] a) { String s = null; s.length(); } }' > M.java && java M.java`),
	"engine--java-stack":  shell(`cd $WORK && echo 'class M { static int f(int n) { return f(n + 1) + 1; } public static void main(String[] a) { f(0); } }' > M.java && java M.java`),
	"engine--java-state":  shell(`cd $WORK && echo 'class M { public static void main(String[] a) { throw new IllegalStateException("scheduler has 3 sequences for 2 slots"); } }' > M.java && java M.java`),

	"engine--go-nil":      goProgram("", "type m struct{ w []float32 }\nfunc main() { var x *m; println(x.w[0]) }"),
	"engine--go-index":    goProgram("", "import \"os\"\nfunc main() { b := []int{1, 2}; println(b[len(os.Args)+4]) }"),
	"engine--go-map":      goProgram("", "func main() { m := map[int]int{}; for i := range 8 { go func() { for { m[i]++ } }() }; select {} }"),
	"engine--go-deadlock": goProgram("", "func main() { c := make(chan int); c <- 1 }"),
	"engine--go-closed":   goProgram("", "func main() { c := make(chan int); close(c); c <- 1 }"),
	"engine--go-stack":    goProgram("", "func f(n int) int { return f(n+1) + 1 }\nfunc main() { println(f(0)) }"),
	"engine--go-race":     goProgram("-race", "import \"time\"\nvar n int\nfunc main() { go func() { n++ }(); n++; time.Sleep(50 * time.Millisecond) }"),
	"engine--go-fatal":    goProgram("", "import \"log\"\nfunc main() { log.Fatal(\"unknown architecture: acme\") }"),
	"engine--go-custom":   goProgram("", "import \"fmt\"\nfunc main() { panic(fmt.Errorf(\"block table of request 7: block 12 is free and in use\")) }"),
	"engine--go-unlock":   goProgram("", "import \"sync\"\nfunc main() { var m sync.Mutex; m.Unlock() }"),
	"engine--go-negative": goProgram("", "import \"sync\"\nfunc main() { var g sync.WaitGroup; g.Done() }"),

	"engine--sig-term-self": shell("kill -TERM $$"),
	"engine--sig-segv":      shell("kill -SEGV $$"),
	"engine--sig-bus":       shell("kill -BUS $$"),
	"engine--status":        shell("echo 'loading tiny'; exit 70"),
}

func init() { maps.Copy(errorCases, crashes) }

// cpp compiles a program and runs it.
func cpp(flags, source, prefix string, before ...string) func(t *testing.T) error {
	return func(t *testing.T) error {
		work := t.TempDir()
		if err := os.WriteFile(filepath.Join(work, "engine.cc"), []byte(source), 0o600); err != nil {
			panic("harmless: " + err.Error())
		}
		build := strings.Join(append(before, "g++ -O0 -w -o "+work+"/engine "+work+"/engine.cc "+flags), " && ")
		if err := shell(build, "LIBRARY_PATH="+work)(t); err != nil {
			panic("harmless: " + err.Error())
		}
		return shell(prefix + work + "/engine")(t)
	}
}

// goProgram builds a program and runs it.
func goProgram(flags, source string) func(t *testing.T) error {
	return func(t *testing.T) error {
		work := t.TempDir()
		_ = os.WriteFile(filepath.Join(work, "go.mod"), []byte("module example.com/serve\n\ngo 1.26\n"), 0o600)
		_ = os.WriteFile(filepath.Join(work, "main.go"), []byte("package main\n\n"+source+"\n"), 0o600)
		if err := shell("cd " + work + " && go build " + flags + " -o serve .")(t); err != nil {
			panic("harmless: " + err.Error())
		}
		return shell(work + "/serve")(t)
	}
}

// hosted are programs under the fixture for servers; they die while they start.
var hosted = map[string]string{
	"engine--hosted-py-key":    python + ` -c 'import time; print("loading"); time.sleep(0.1); {}["lm_head.weight"]'`,
	"engine--hosted-py-value":  python + ` -c 'raise ValueError("head_dim 65 is not supported by this attention backend")'`,
	"engine--hosted-segv":      python + ` -c 'import os, signal; os.kill(os.getpid(), signal.SIGSEGV)'`,
	"engine--hosted-abort":     python + ` -c 'import os; print("free(): invalid pointer", flush=True); os.abort()'`,
	"engine--hosted-clean":     "echo served 0 requests, bye",
	"engine--hosted-node":      `node -e 'console.log("listening soon"); undefined.listen()'`,
	"engine--hosted-java":      `cd $DIR && echo 'class M { public static void main(String[] a) { throw new IllegalArgumentException("rope_theta is missing"); } }' > M.java && java M.java`,
	"engine--hosted-go":        `cd $DIR && printf 'module m\ngo 1.26\n' > go.mod && printf 'package main\nfunc main() { var p *struct{ n int }; println(p.n) }\n' > m.go && go build -o m . && ./m`,
	"engine--hosted-child":     python + ` -c 'import multiprocessing as m, os, sys; p = m.Process(target=os.abort); p.start(); p.join(); sys.exit("worker 0 died with %s" % p.exitcode)'`,
	"infra--hosted-port":       python + " -m http.server --bind 127.0.0.1 $TAKEN",
	"infra--hosted-disk":       python + ` -c 'open("'$DISK'/kv.bin", "wb").write(b"x" * 1000000)'`,
	"infra--hosted-readonly":   python + ` -c 'import os; os.mkdir("'$READONLY'/cache")'`,
	"infra--hosted-dns":        "unshare -n " + python + ` -c 'import urllib.request; urllib.request.urlopen("https://models.example.com/tiny/config.json")'`,
	"infra--hosted-curl":       "unshare -n curl -sS -o $DIR/m.gguf https://models.example.com/tiny.gguf",
	"infra--hosted-lib":        `cd $DIR && echo 'extern "C" int k() { return 0; }' | g++ -x c++ -shared -fPIC -o libkern.so - && echo 'extern "C" int k(); int main() { return k(); }' | g++ -x c++ -o engine - -L. -lkern && rm libkern.so && ./engine`,
	"infra--hosted-node-dns":   `unshare -n node -e 'fetch("https://models.example.com/tiny")'`,
	"capacity--hosted-memory":  "ulimit -v 300000; " + python + ` -c 'b"x" * (1 << 30)'`,
	"capacity--hosted-numpy":   "ulimit -v 900000; " + python + ` -c 'import numpy; numpy.zeros(1 << 34)'`,
	"capacity--hosted-node":    `node --max-old-space-size=24 -e 'a = []; while (true) a.push("x".repeat(999) + a.length)'`,
	"capacity--hosted-java":    `cd $DIR && echo 'class M { public static void main(String[] a) { long[] b = new long[1 << 28]; } }' > M.java && java -Xmx24m M.java`,
	"capacity--hosted-cgroup":  `d=/sys/fs/cgroup/memory/failures-h$$; mkdir $d; echo 67108864 > $d/memory.limit_in_bytes; echo $$ > $d/cgroup.procs; exec ` + python + ` -c 'x = bytearray(400 << 20)'`,
	"capacity--hosted-libcuda": python + ` -c 'import ctypes; ctypes.CDLL("libcuda.so.1")'`,
	"capacity--hosted-cpp-alloc": `cd $DIR && echo '#include <vector>
int main() { std::vector<std::vector<char>> v; for (;;) v.emplace_back(64 << 20, 1); }' | g++ -x c++ -o e - && ulimit -v 600000 && ./e`,
	"timeout--hosted-silent": "echo loading; exec sleep 60",
	"timeout--hosted-loop": python + ` -c 'import time
for i in range(900): print("compiling graph", i, flush=True); time.sleep(0.1)'`,
}

// host starts a program as a server.
func host(t *testing.T, name string) {
	d := 20 * time.Second
	if strings.HasPrefix(name, "timeout--") {
		d = 1500 * time.Millisecond
	}
	env := []string{"DIR=" + t.TempDir(), "DISK=" + tmpfs(t, "size=64k"), "READONLY=" + tmpfs(t, "size=64k", "ro"), "TAKEN=" + port(taken(t))}
	harness.Start(t, server.Command("sh", "-c", hosted[name], server.Port).With(server.Env(env...)),
		harness.WithoutDeviceMemory("no GPU"), harness.WithoutHost("mounts come and go here"), harness.StartTimeout(d))
}

// serving are programs that answer as a server until something happens in a request.
var serving = map[string]string{
	"engine--serve-raise":   `raise KeyError("seq_id 7")`,
	"engine--serve-segv":    `os.kill(os.getpid(), 11)`,
	"engine--serve-abort":   `os.abort()`,
	"engine--serve-exit":    `os._exit(4)`,
	"engine--serve-500":     `self.send_error(500, "CUDA kernel launch failed")`,
	"engine--serve-json":    `self.answer('{"choices": [{"text": "abc')`,
	"engine--serve-empty":   `self.answer('')`,
	"engine--serve-cut":     `self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: 500\r\n\r\n{"); self.wfile.flush()`,
	"engine--serve-choices": `self.answer('{"choices": []}')`,
	"timeout--serve-hang":   `time.sleep(60)`,
	"timeout--serve-504":    `self.send_error(504, "the request has timed out in the queue")`,
	"capacity--serve-oom":   `self.answer('{"error": {"message": "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.6 GiB of which 1.1 GiB is free.", "code": 500}}', 500)`,
	"capacity--serve-full":  `self.answer('{"error": "server overloaded: 512 requests are waiting, try again later"}', 503)`,
	"capacity--serve-429":   `self.answer('{"error": {"message": "all 4 slots are in use", "type": "unavailable_error", "code": 429}}', 429)`,
	"test--serve-400":       `self.answer('{"error": {"message": "temperature must be non-negative, got -1.0", "type": "BadRequestError", "code": 400}}', 400)`,
	"test--serve-404":       `self.answer('{"error": {"message": "The model tinier does not exist.", "type": "NotFoundError", "code": 404}}', 404)`,
}

const serveScript = `import http.server, os, sys, time
class H(http.server.BaseHTTPRequestHandler):
    def answer(self, body, code=200):
        self.send_response(code); self.send_header("Content-Type", "application/json"); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body.encode())
    def do_GET(self): self.answer('{"object": "list", "data": [{"id": "tiny", "object": "model"}]}')
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        %s
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
`

func serve(t *testing.T, name string) {
	file := filepath.Join(t.TempDir(), "serve.py")
	if err := os.WriteFile(file, fmt.Appendf(nil, serveScript, serving[name]), 0o600); err != nil {
		panic("harmless: " + err.Error())
	}
	open := server.Command(python, file, server.Port).With(server.Model("tiny"), server.Speaks(server.ProtocolOpenAI), server.ReadyTCP(), server.ExitCode(-1, 143))
	r := harness.Start(t, open, harness.WithoutDeviceMemory("no GPU"))
	r.WithContext(within(t, 3*time.Second)).Generate(request)
}

func init() {
	for name := range hosted {
		testCases[name] = func(t *testing.T) { host(t, name) }
	}
	for name := range serving {
		testCases[name] = func(t *testing.T) { serve(t, name) }
	}
}
