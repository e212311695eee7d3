package failures

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gotest "gotest.tools/v3/assert"

	"github.com/enginetest/enginetest/forkproc"
	"github.com/enginetest/enginetest/leakcheck"
)

// thirdErrors and thirdTests are the cases of set 3, written after the rules were mended with the
// other two.
var thirdErrors = map[string]func(t *testing.T) error{
	"infra--3-disk-truncate": onDisk("head -c 500000 /dev/zero | split -b 40000 - $DISK/part"),
	"infra--3-disk-unzip":    onDisk(python + ` -c 'import zipfile; z = zipfile.ZipFile("'$WORK'/a.zip", "w"); z.writestr("w", "x" * 900000); z.close(); zipfile.ZipFile("'$WORK'/a.zip").extractall("'$DISK'")'`),
	"infra--3-disk-shutil":   onDisk(python + ` -c 'import shutil; shutil.copy("/bin/bash", "'$DISK'/bash")'`),
	"infra--3-disk-go": func(t *testing.T) error {
		return os.CopyFS(filepath.Join(tmpfs(t, "size=64k"), "m"), os.DirFS("/usr/share/doc/bash"))
	},
	"infra--3-disk-mktemp": func(t *testing.T) error {
		dir := tmpfs(t, "nr_inodes=1")
		_, err := os.MkdirTemp(dir, "engine-")
		return err
	},
	"infra--3-readonly-mv":    onReadOnly("echo x > $WORK/a; mv $WORK/a $DISK/a"),
	"infra--3-readonly-npm":   onReadOnly("cd $DISK && npm init -y"),
	"infra--3-readonly-log":   onReadOnly(python + ` -c 'import logging; logging.basicConfig(filename="'$DISK'/engine.log")'`),
	"infra--3-net-go-clone":   offline("go version; GOPROXY=direct GONOSUMDB=* GOFLAGS=-mod=mod GOMODCACHE=$WORK/c go install rsc.io/hello@latest"),
	"infra--3-net-smtp":       offline(python + ` -c 'import smtplib; smtplib.SMTP("mail.example.com", 25)'`),
	"infra--3-net-http":       offline(python + ` -c 'import http.client; http.client.HTTPSConnection("hub.example.com").request("GET", "/")'`),
	"infra--3-net-dns":        offline(`node -e 'require("dns").promises.lookup("hub.example.com")'`),
	"infra--3-net-ping":       offline(`node -e 'require("net").connect(443, "10.20.30.40")'`),
	"infra--3-net-java":       offline(`cd $WORK && echo 'class M { public static void main(String[] a) throws Exception { new java.net.Socket("hub.example.com", 443); } }' > M.java && java M.java`),
	"infra--3-mirror-wget":    mirror(503, "wget -t 1 http://mirror.example.com:$PORT/tiny/model.gguf"),
	"infra--3-mirror-node":    mirror(502, `node -e 'fetch("http://mirror.example.com:" + process.env.PORT).then(r => { if (!r.ok) throw new Error("GET " + r.url + ": " + r.status + " " + r.statusText) })'`),
	"infra--3-mirror-go":      mirror(504, `cd $WORK && GOPROXY=http://mirror.example.com:$PORT GONOSUMDB=* GOFLAGS=-mod=mod GOMODCACHE=$WORK/c go install rsc.io/hello@v1.0.0`),
	"infra--3-mirror-git":     mirror(500, "git ls-remote http://mirror.example.com:$PORT/acme/models.git"),
	"infra--3-tls-wget":       mirrorTLS("wget -t 1 https://mirror.example.com:$PORT/tiny"),
	"infra--3-tls-java":       mirrorTLS(`cd $WORK && echo 'class M { public static void main(String[] a) throws Exception { new java.net.URL("https://mirror.example.com:" + a[0]).openStream(); } }' > M.java && java M.java $PORT`),
	"infra--3-tls-pyselfsign": mirrorTLS(python + ` -c 'import urllib.request, os; urllib.request.urlopen("https://mirror.example.com:" + os.environ["PORT"])'`),
	"infra--3-port-py-udp": func(t *testing.T) error {
		c, _ := net.ListenPacket("udp", "127.0.0.1:0")
		t.Cleanup(func() { _ = c.Close() })
		return shell(python+` -c 'import socket, os; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("127.0.0.1", int(os.environ["P"])))'`, "P="+port(c.LocalAddr().String()))(t)
	},
	"infra--3-port-jsimple": onPort(`cd $WORK && echo 'class M { public static void main(String[] a) throws Exception { com.sun.net.httpserver.HttpServer.create(new java.net.InetSocketAddress("127.0.0.1", Integer.parseInt(a[0])), 0); } }' > M.java && java M.java $PORT`),
	"infra--3-lib-ldd":      shell("cp /bin/ls $WORK/ls && cd $WORK && python3 -c \"b=open('ls','rb').read(); open('ls','wb').write(b.replace(b'libselinux.so.1', b'libzzlinux.so.1'))\" && ./ls"),

	"capacity--3-py-list":    shell("ulimit -v 300000; " + python + ` -c 'a = [0] * (1 << 30)'`),
	"capacity--3-py-mmap":    shell("ulimit -v 300000; " + python + ` -c 'import mmap; mmap.mmap(-1, 1 << 33)'`),
	"capacity--3-np-empty":   shell("ulimit -v 900000; " + python + ` -c 'import numpy; numpy.empty(1 << 35, dtype="f4")'`),
	"capacity--3-node-buf":   shell(`node --max-old-space-size=30 -e 'm = new Map(); for (i = 0; ; i++) m.set(i, {i, s: "k" + i})'`),
	"capacity--3-java-array": shell(`cd $WORK && echo 'class M { public static void main(String[] a) { var l = new java.util.ArrayList<int[]>(); for (;;) l.add(new int[1 << 18]); } }' > M.java && java -Xmx20m M.java`),
	"capacity--3-calloc":     cpp("", "#include <cstdlib>\n#include <cstdio>\n#include <cerrno>\n#include <cstring>\nint main() { if (!calloc(1ul << 34, 1)) { fprintf(stderr, \"engine: calloc: %s\\n\", strerror(errno)); return 2; } }", "ulimit -v 500000; "),
	"capacity--3-map":        cpp("", "#include <map>\n#include <string>\nint main() { std::map<int, std::string> m; for (int i = 0;; i++) m[i] = std::string(100000, 'x'); }", "ulimit -v 400000; "),
	"capacity--3-cgroup-cpp": inCgroup("sh -c '" + python + ` -c "a = [b\"x\" * 1000000 for _ in range(900)]"'`),
	"capacity--3-gpu-torch":  shell(python + ` -c 'import ctypes.util, sys; ctypes.util.find_library("cuda") or sys.exit("RuntimeError: No CUDA GPUs are available")'`),
	"capacity--3-nvidia-smi": shell("nvidia-smi -L"),
	"capacity--3-fork-node":  asNobody(`ulimit -u 1; node -e 'require("child_process").execSync("true")'`),

	"timeout--3-http-client": func(t *testing.T) error {
		c := http.Client{Transport: &http.Transport{ResponseHeaderTimeout: 200 * time.Millisecond}}
		_, err := c.Get("http://" + deaf(t) + "/v1/models")
		return err
	},
	"timeout--3-pyselect": hanging(python + ` -c 'import socket, os; socket.setdefaulttimeout(0.4); s = socket.create_connection(("127.0.0.1", int(os.environ["PORT"]))); s.sendall(b"GET / HTTP/1.0\r\n\r\n"); s.recv(10)'`),
	"timeout--3-curl-low": hanging("curl -sS --speed-limit 10 --speed-time 1 http://127.0.0.1:$PORT/"),
	"timeout--3-py-queue": shell(python + ` -c 'import asyncio
async def main():
    async with asyncio.timeout(0.2): await asyncio.Event().wait()
asyncio.run(main())'`),
	"timeout--3-node-exec": shell(`node -e 'require("child_process").execSync("sleep 5", {timeout: 300})'`),
	"timeout--3-java":      shell(`cd $WORK && echo 'class M { public static void main(String[] a) throws Exception { new java.util.concurrent.CompletableFuture<String>().get(200, java.util.concurrent.TimeUnit.MILLISECONDS); } }' > M.java && java M.java`),

	"engine--3-py-import":   shell(python + ` -c 'raise ImportError("cannot import name PagedAttention")'`),
	"engine--3-py-overflow": shell(python + ` -c 'import struct; struct.pack("B", 300)'`),
	"engine--3-py-stop":     shell(python + ` -c 'next(iter([]))'`),
	"engine--3-node-json":   shell(`node -e 'JSON.parse("{\"a\": ")'`),
	"engine--3-node-custom": shell(`node -e 'class KVCacheError extends Error {}; throw new KVCacheError("block 9 is freed twice")'`),
	"engine--3-java-cast":   shell(`cd $WORK && echo 'class M { public static void main(String[] a) { Object o = "x"; Integer i = (Integer) o; } }' > M.java && java M.java`),
	"engine--3-cpp-what":    cpp("", "#include <string>\n#include <stdexcept>\nint main() { throw std::invalid_argument(\"rope scaling type 'yarnn'\"); }", ""),
	"engine--3-cpp-filter":  cpp("-fsanitize=address -g", "#include <cstring>\nint main() { char b[8]; volatile int n = 30; memset(b, 1, n); return b[2]; }", ""),
	"engine--3-cpp-abort":   cpp("", "#include <cstdlib>\n#include <cstdio>\nint main() { fprintf(stderr, \"FATAL: scheduler invariant violated\\n\"); abort(); }", ""),
	"engine--3-go-slice":    goProgram("", "import \"os\"\nfunc main() { b := make([]byte, 3); println(len(b[len(os.Args)+7:])) }"),
	"engine--3-go-conv":     goProgram("", "func main() { var v any = 3; println(v.(string)) }"),
	"engine--3-go-log":      goProgram("", "import (\n\"log/slog\"\n\"os\"\n)\nfunc main() { slog.Error(\"step failed\", \"err\", \"request 9 has no blocks\"); os.Exit(1) }"),
	"engine--3-go-chan":     goProgram("", "import \"sync\"\nfunc main() { var w sync.WaitGroup; w.Add(1); w.Wait() }"),
	"engine--3-sh-status":   shell("echo 'loading shard 2 of 4' >&2; exit 9"),
	"engine--3-reset": func(t *testing.T) error {
		return talk(t, func(c net.Conn) {
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\n\r\n{"))
			_ = c.(*net.TCPConn).SetLinger(0)
		})
	},
	"engine--3-500-body": answer(500, `{"error":"runner process no longer running: exit status 2"}`),
}

var thirdTests = map[string]func(t *testing.T){
	"test--3-eq":         func(t *testing.T) { t.Errorf("finish reason = %q, want %q", "length", "timed out") },
	"test--3-sentence":   func(t *testing.T) { t.Error("the second request should have waited: connection refused was expected") },
	"test--3-hex":        func(t *testing.T) { t.Fatalf("checksum 0x%x != 0x%x", 0xbeef, 0xfeed) },
	"test--3-order":      func(t *testing.T) { t.Error("request 4 finished before request 2") },
	"test--3-count":      func(t *testing.T) { t.Errorf("%d retries after 'no space left on device', at most 3 are allowed", 5) },
	"test--3-nodiff":     func(t *testing.T) { assert.NotEqual(t, "no such host", "no such host") },
	"test--3-notcontain": func(t *testing.T) { assert.NotContains(t, "err: device lost", "device lost") },
	"test--3-errorIs":    func(t *testing.T) { require.ErrorIs(t, os.ErrDeadlineExceeded, os.ErrNotExist) },
	"test--3-zero":       func(t *testing.T) { assert.Zero(t, errors.New("i/o timeout").Error()) },
	"test--3-json":       func(t *testing.T) { assert.JSONEq(t, `{"e":"EOF"}`, `{"e":"broken pipe"}`) },
	"test--3-golden":     func(t *testing.T) { gotest.Equal(t, "a\nno route to host\n", "a\ntimed out\n") },
	"test--3-cmp":        func(t *testing.T) { gotest.Assert(t, cmp.Equal([]string{"out of memory"}, nil)) },
	"test--3-diff": func(t *testing.T) {
		if d := cmp.Diff(map[string]string{"e": "CUDA out of memory"}, map[string]string{"e": "xid 79"}); d != "" {
			t.Errorf("Stats() returned a diff:\n%s", d)
		}
	},
	"test--3-panic":  func(*testing.T) { panic("TestFault: the table has no row for tp=3") },
	"test--3-nilmap": func(*testing.T) { var m map[string]int; m["address already in use"] = 1 },
	"test--3-parallel": func(t *testing.T) {
		t.Run("a", func(t *testing.T) { t.Parallel(); t.Error("2 tokens, want 3") })
		t.Run("b", func(t *testing.T) { t.Parallel() })
	},
	"leak--3-waitgroup": func(t *testing.T) { leakcheck.Guard(t); go func() { <-t.Context().Done(); select {} }() },
	"leak--3-file":      func(t *testing.T) { plantIn(t, func() { f, _ := os.CreateTemp("", "kv"); keep = append(keep, f) }) },
	"leak--3-conn":      func(t *testing.T) { plantIn(t, func() { c, _ := net.Dial("tcp", deaf(t)); keep = append(keep, c) }) },
	"leak--3-child": func(t *testing.T) {
		plantIn(t, func() { c := exec.Command("sh", "-c", "sleep 25"); _ = c.Start(); keep = append(keep, c) })
	},
	"leak--3-ref": func(t *testing.T) { g := leakcheck.Guard(t); e := &toy{}; g.Track("engine", e); held = e },
	"leak--3-fork": func(t *testing.T) {
		forkproc.Run(t, func(*testing.T) { _ = exec.Command("setsid", "-f", "sleep", "33").Run() })
	},
	"engine--3-fork": func(t *testing.T) { forkproc.Run(t, func(*testing.T) { os.Exit(12) }) },
	"engine--3-lib":  func(t *testing.T) { t.Run("batch=8", func(*testing.T) { strike() }) },
	"timeout--3-fork": func(t *testing.T) {
		forkproc.Run(t, func(*testing.T) { select {} }, forkproc.Timeout(300*time.Millisecond))
	},
	"timeout--3-wait": func(t *testing.T) {
		require.Eventually(t, func() bool { fmt.Println("still 1 waiting"); return false }, 200*time.Millisecond, 20*time.Millisecond)
	},
}

var held *toy

func init() {
	maps.Copy(errorCases, thirdErrors)
	maps.Copy(testCases, thirdTests)
}
