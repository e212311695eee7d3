package failures

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// errorCases fail with an error, which a style reports.
var errorCases = map[string]func(t *testing.T) error{
	// A full disk.
	"infra--disk-write": func(t *testing.T) error {
		return os.WriteFile(filepath.Join(tmpfs(t, "size=64k"), "kv.spill"), make([]byte, 1<<20), 0o600)
	},
	"infra--disk-inodes": func(t *testing.T) error {
		dir := tmpfs(t, "nr_inodes=4")
		for i := range 9 {
			if err := os.Mkdir(filepath.Join(dir, fmt.Sprint("slot", i)), 0o700); err != nil {
				return fmt.Errorf("prepare slots: %w", err)
			}
		}
		return nil
	},
	"infra--disk-cp":       onDisk("head -c 300000 /dev/urandom > /tmp/blob.$$; cp /tmp/blob.$$ $DISK/weights; e=$?; rm /tmp/blob.$$; exit $e"),
	"infra--disk-dd":       onDisk("dd if=/dev/zero of=$DISK/shard-00001 bs=4k count=100"),
	"infra--disk-tar":      onDisk("cd /usr/share/doc && tar cf $DISK/docs.tar bash"),
	"infra--disk-gzip":     onDisk("head -c 3000000 /dev/urandom | gzip -c > $DISK/a.gz"),
	"infra--disk-git":      onDisk("git init -q $DISK/repo && cd $DISK/repo && head -c 300000 /dev/urandom > a && git add a"),
	"infra--disk-go-build": onDisk(`cd $WORK && printf 'module m\ngo 1.26\n' > go.mod && printf 'package main\nimport "fmt"\nfunc main() { fmt.Println() }\n' > m.go && go build -o $DISK/m .`),
	"infra--disk-go-cache": onDisk(`cd $WORK && printf 'module m\ngo 1.26\n' > go.mod && printf 'package main\nimport "os"\nfunc main() { os.Exit(3) }\n' > m.go && GOFLAGS=-trimpath GOCACHE=$DISK/cache go build -o /dev/null .`),
	"infra--disk-gcc":      onDisk(`echo 'int main(){static char a[9]={1}; return a[0];}' > $WORK/m.c && gcc -static -o $DISK/m $WORK/m.c`),
	"infra--disk-python":   onDisk(python + ` -c 'open("'$DISK'/tokenizer.json", "w").write("x" * 1000000)'`),
	"infra--disk-sqlite":   onDisk(python + ` -c 'import sqlite3; c = sqlite3.connect("'$DISK'/cache.db"); c.execute("create table t (b blob)"); c.execute("insert into t values (zeroblob(500000))"); c.commit()'`),
	"infra--disk-node":     onDisk(`node -e 'require("fs").writeFileSync("'$DISK'/out.json", "x".repeat(1e6))'`),
	"infra--disk-java":     onDisk(`cd $WORK && echo 'class M { public static void main(String[] a) throws Exception { java.nio.file.Files.write(java.nio.file.Path.of(a[0]), new byte[1000000]); } }' > M.java && java M.java $DISK/out`),
	"infra--disk-rsync":    onDisk("cat /bin/bash | tee $DISK/bash > /dev/null"),

	// A file system that cannot be written or read.
	"infra--readonly-write": func(t *testing.T) error {
		_, err := os.Create(filepath.Join(tmpfs(t, "size=64k", "ro"), "manifest"))
		return fmt.Errorf("save manifest: %w", err)
	},
	"infra--readonly-mkdir":  onReadOnly("mkdir -p $DISK/models/tiny"),
	"infra--readonly-python": onReadOnly(python + ` -c 'import os; os.makedirs("'$DISK'/hub/models")'`),
	"infra--readonly-git":    onReadOnly("git init $DISK/repo"),
	"infra--readonly-node":   onReadOnly(`node -e 'require("fs").mkdirSync("'$DISK'/cache")'`),
	"infra--readonly-go":     onReadOnly(`GOCACHE=$DISK/cache go vet std`),
	"infra--readonly-touch":  onReadOnly("touch $DISK/ready"),
	"infra--io-error": func(*testing.T) error {
		_, err := os.ReadFile("/proc/self/mem")
		return fmt.Errorf("checksum of shard 3: %w", err)
	},
	"infra--io-python": shell(python + ` -c 'open("/proc/self/mem", "rb").read(8)'`),
	"infra--io-cat":    shell("cat /proc/self/mem"),

	// No network: a name space without one.
	"infra--net-curl":    offline("curl -sS https://models.example.com/tiny/config.json"),
	"infra--net-wget":    offline("wget -T 3 -t 1 https://models.example.com/tiny/model.safetensors"),
	"infra--net-git":     offline("git clone https://git.example.com/acme/models.git"),
	"infra--net-git-ssh": offline("git clone git@git.example.com:acme/models.git"),
	"infra--net-python":  offline(python + ` -c 'import urllib.request; urllib.request.urlopen("https://models.example.com/tiny")'`),
	"infra--net-socket":  offline(python + ` -c 'import socket; socket.create_connection(("10.20.30.40", 443))'`),
	"infra--net-node":    offline(`node -e 'require("https").get("https://models.example.com/tiny")'`),
	"infra--net-fetch":   offline(`node -e 'fetch("https://models.example.com/tiny")'`),
	"infra--net-npm":     offline("npm view tiny-model version --fetch-retries=0"),
	"infra--net-pip":     offline(python + " -m pip download --retries 0 --no-cache-dir -d $WORK tokenizers || " + "pip download --retries 0 --no-cache-dir -d $WORK tokenizers"),
	"infra--net-java":    offline(`cd $WORK && echo 'class M { public static void main(String[] a) throws Exception { new java.net.URL("https://models.example.com/").openStream(); } }' > M.java && java M.java`),
	"infra--net-go-mod":  offline(`cd $WORK && printf 'module m\ngo 1.26\n' > go.mod && GOPROXY=https://proxy.example.com GOFLAGS=-mod=mod GOMODCACHE=$WORK/cache go get rsc.io/quote@v1.5.2`),
	"infra--net-go-test": offline(`cd $WORK && printf 'module m\ngo 1.26\nrequire rsc.io/quote v1.5.2\n' > go.mod && printf 'package m\nimport _ "rsc.io/quote"\n' > m.go && GOPROXY=https://proxy.example.com GOFLAGS=-mod=mod GONOSUMDB=* GOMODCACHE=$WORK/cache go build ./...`),
	"infra--net-apt":     offline("apt-get -o Acquire::Retries=0 -o Dir::State::lists=$WORK -o Acquire::http::Timeout=2 update -qq -o APT::Update::Error-Mode=any"),
	"infra--net-ssh":     offline("ssh -o BatchMode=yes -o ConnectTimeout=2 gpu-node-3.example.com nvidia-smi"),
	"infra--net-docker":  offline("podman --root $WORK/r --runroot $WORK/rr pull registry.example.com/acme/engine:1.2"),
	"infra--net-go-get":  offlineSelf("get"),
	"infra--net-go-dial": offlineSelf("dial"),
	"infra--net-go-ping": offline("curl -sS --max-time 3 http://10.20.30.40:9000/bucket/model.gguf"),
	"infra--net-lookup":  func(*testing.T) error { _, err := net.LookupHost("inference-7.invalid"); return err },
	"infra--net-cluster": func(*testing.T) error { _, err := net.Dial("tcp", "etcd-0.etcd.default.svc.invalid:2379"); return err },

	// A service elsewhere that fails: mirror.example is this machine, by /etc/hosts of a name space.
	"infra--mirror-503-curl":   mirror(503, "curl -sS -f -o $WORK/model.gguf http://mirror.example.com:$PORT/tiny/model.gguf"),
	"infra--mirror-502-python": mirror(502, python+` -c 'import urllib.request, os; urllib.request.urlopen("http://mirror.example.com:" + os.environ["PORT"] + "/tiny")'`),
	"infra--mirror-504-wget":   mirror(504, "wget -t 1 http://mirror.example.com:$PORT/tiny/tokenizer.json"),
	"infra--mirror-429-git":    mirror(429, "git clone http://mirror.example.com:$PORT/acme/models.git"),
	"infra--mirror-500-go":     mirror(500, `cd $WORK && printf 'module m\ngo 1.26\n' > go.mod && GOPROXY=http://mirror.example.com:$PORT GONOSUMDB=* GOMODCACHE=$WORK/cache go get rsc.io/quote@v1.5.2`),
	"infra--mirror-503-npm":    mirror(503, "npm view tiny-model version --fetch-retries=0 --registry=http://mirror.example.com:$PORT"),
	"infra--mirror-503-pip":    mirror(503, "pip download --retries 0 --no-cache-dir -d $WORK --index-url http://mirror.example.com:$PORT/simple --trusted-host mirror.example.com tokenizers"),
	"infra--mirror-502-podman": mirror(502, "podman --root $WORK/r --runroot $WORK/rr pull --tls-verify=false mirror.example.com:$PORT/acme/engine:1.2"),
	"infra--tls-expired-curl":  mirrorTLS("curl -sS --cacert $CERT https://mirror.example.com:$PORT/tiny"),
	"infra--tls-expired-py":    mirrorTLS(python + ` -c 'import urllib.request, os, ssl; urllib.request.urlopen("https://mirror.example.com:" + os.environ["PORT"], context=ssl.create_default_context(cafile=os.environ["CERT"]))'`),
	"infra--tls-expired-go":    mirrorTLS("env SSL_CERT_FILE=$CERT FAILURES_SELF=https://mirror.example.com:$PORT $SELF"),
	"infra--tls-unknown-git":   mirrorTLS("git clone https://mirror.example.com:$PORT/acme/models.git"),
	"infra--tls-unknown-node":  mirrorTLS(`node -e 'fetch("https://mirror.example.com:" + process.env.PORT)'`),

	// A port that another program has.
	"infra--port-go":     func(t *testing.T) error { _, err := net.Listen("tcp", taken(t)); return err },
	"infra--port-http":   func(t *testing.T) error { return http.ListenAndServe(taken(t), nil) }, //nolint:gosec // it fails
	"infra--port-python": onPort(python + " -m http.server --bind 127.0.0.1 $PORT"),
	"infra--port-node":   onPort(`node -e 'require("http").createServer().listen(process.env.PORT, "127.0.0.1")'`),
	"infra--port-java":   onPort(`cd $WORK && echo 'class M { public static void main(String[] a) throws Exception { new java.net.ServerSocket(Integer.parseInt(a[0])); } }' > M.java && java M.java $PORT`),
	"infra--port-etcd":   onPort("etcd --data-dir $WORK/e --listen-client-urls http://127.0.0.1:$PORT --advertise-client-urls http://127.0.0.1:$PORT --listen-peer-urls http://127.0.0.1:0"),
	"infra--port-ollama": onPort("OLLAMA_MODELS=$WORK OLLAMA_HOST=127.0.0.1:$PORT HOME=$WORK ollama serve"),
	"infra--port-sshd":   onPort(python + ` -c 'import asyncio, os; asyncio.run(asyncio.start_server(lambda r, w: None, "127.0.0.1", int(os.environ["PORT"])))'`),
	"infra--port-udp": func(t *testing.T) error {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			return nil
		}
		t.Cleanup(func() { _ = c.Close() })
		_, err = net.ListenPacket("udp", c.LocalAddr().String())
		return fmt.Errorf("metrics: %w", err)
	},

	// Too little memory.
	"capacity--as-python":  shell("ulimit -v 400000; " + python + ` -c 'b = bytearray(1 << 30)'`),
	"capacity--as-numpy":   shell("ulimit -v 900000; " + python + ` -c 'import numpy; numpy.ones((40000, 40000))'`),
	"capacity--as-node":    shell(`node --max-old-space-size=24 -e 'a = []; while (true) a.push("x".repeat(999) + a.length)'`),
	"capacity--as-java":    shell(`cd $WORK && echo 'class M { public static void main(String[] a) { byte[][] b = new byte[1000][]; for (int i = 0; i < 1000; i++) b[i] = new byte[1 << 20]; } }' > M.java && java -Xmx24m M.java`),
	"capacity--as-jvm":     shell("ulimit -v 3000000; java -Xms8g -version"),
	"capacity--as-go":      shell("ulimit -v 500000; env FAILURES_SELF=grow $SELF"),
	"capacity--as-mmap":    shell("ulimit -v 2000000; env FAILURES_SELF=mmap $SELF"),
	"capacity--as-cc1plus": shell("ulimit -v 150000; printf '#include <regex>\\n#include <iostream>\\nint main(){std::regex r(\"a\");}' > $WORK/m.cc; g++ -c -o $WORK/m.o $WORK/m.cc"),
	"capacity--as-cpp": cpp("", `#include <vector>
int main() { std::vector<std::vector<char>> v; for (;;) v.emplace_back(64 << 20, 'x'); }`, "ulimit -v 600000; "),
	"capacity--as-new": cpp("", `#include <new>
#include <cstdio>
#include <cstdlib>
int main() { char *p = new (std::nothrow) char[16ul << 30]; if (!p) { fprintf(stderr, "error: failed to allocate 16 GiB for the KV cache\n"); exit(1); } }`, "ulimit -v 600000; "),
	"capacity--as-perror": cpp("", `#include <sys/mman.h>
#include <cstdio>
int main() { if (mmap(0, 8ul << 30, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) == MAP_FAILED) { perror("weights: mmap"); return 1; } }`, "ulimit -v 600000; "),
	"capacity--fork-python":   asNobody("ulimit -u 1; " + python + ` -c 'import subprocess; subprocess.run(["true"])'`),
	"capacity--fork-thread":   asNobody("ulimit -u 1; " + python + ` -c 'import threading; threading.Thread(target=print).start()'`),
	"capacity--fork-sh":       asNobody("ulimit -u 1; sh -c 'ls | cat'"),
	"capacity--cgroup-python": inCgroup(python + ` -c 'b = bytearray(400 << 20)'`),
	"capacity--cgroup-go":     inCgroup("env FAILURES_SELF=grow $SELF"),
	"capacity--cgroup-pids": func(t *testing.T) error {
		dir := "/sys/fs/cgroup/pids/failures-" + fmt.Sprint(os.Getpid())
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatalf("harmless: %v", err)
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		_ = os.WriteFile(dir+"/pids.max", []byte("2"), 0o600)
		return shell("echo $$ > " + dir + "/cgroup.procs; (sleep 0.1; true) & (sleep 0.1; true) & (sleep 0.1; true) & wait")(t)
	},
	"capacity--locked": shell("ulimit -l 64; " + python + ` -c 'import ctypes, os, mmap
libc = ctypes.CDLL(None, use_errno=True); m = mmap.mmap(-1, 1 << 22)
os.setuid(65534)
if libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(m))), 1 << 22): raise OSError(ctypes.get_errno(), "mlock of the pinned pool: " + os.strerror(ctypes.get_errno()))'`),

	// No GPU.
	"capacity--nvidia-smi": func(*testing.T) error {
		_, err := exec.Command("nvidia-smi", "--query-gpu=memory.used", "--format=csv").Output()
		return fmt.Errorf("memory of the GPUs: %w", err)
	},
	"capacity--libcuda": shell(python + ` -c 'import ctypes; ctypes.CDLL("libcuda.so.1")'`),
	"capacity--libnvml": shell(python + ` -c 'import ctypes; ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2()'`),
	"capacity--devfile": func(*testing.T) error { _, err := os.Open("/dev/nvidia0"); return err },

	// A library or a daemon that is not there.
	"infra--lib-server": cpp("-L$WORK -lkernels -Wl,-rpath,/opt/kernels", `extern "C" int kernels(); int main() { return kernels(); }`, "",
		`echo 'extern "C" int kernels() { return 0; }' | g++ -x c++ -shared -fPIC -o $WORK/libkernels.so -`),
	"infra--lib-python": shell(python + ` -c 'import ctypes; ctypes.CDLL("libnccl.so.2")'`),
	"infra--docker":     shell("docker ps || DOCKER_HOST=unix:///run/none.sock podman --remote --url unix:///run/none.sock ps"),

	// Time limits.
	"timeout--curl":       hanging("curl -sS --max-time 1 http://127.0.0.1:$PORT/v1/completions"),
	"timeout--wget":       hanging("wget -T 1 -t 1 http://127.0.0.1:$PORT/health"),
	"timeout--python":     hanging(python + ` -c 'import urllib.request, os; urllib.request.urlopen("http://127.0.0.1:" + os.environ["PORT"], timeout=1)'`),
	"timeout--socket":     hanging(python + ` -c 'import socket, os; s = socket.create_connection(("127.0.0.1", int(os.environ["PORT"])), 1); s.recv(1)'`),
	"timeout--node":       hanging(`node -e 'fetch("http://127.0.0.1:" + process.env.PORT, {signal: AbortSignal.timeout(500)})'`),
	"timeout--java":       hanging(`cd $WORK && echo 'class M { public static void main(String[] a) throws Exception { var c = new java.net.URL("http://127.0.0.1:" + a[0]).openConnection(); c.setReadTimeout(500); c.getInputStream(); } }' > M.java && java M.java $PORT`),
	"timeout--subprocess": shell(python + ` -c 'import subprocess; subprocess.run(["sleep", "9"], timeout=0.5)'`),
	"timeout--asyncio":    shell(python + ` -c 'import asyncio; asyncio.run(asyncio.wait_for(asyncio.sleep(9), 0.3))'`),
	"timeout--futures":    shell(python + ` -c 'import concurrent.futures as f, time; p = f.ThreadPoolExecutor(); p.submit(time.sleep, 2).result(0.2)'`),
	"timeout--coreutils":  shell("timeout 1 sleep 9 || { echo \"warm-up: exit status $?\" >&2; exit 124; }"),
	"timeout--flock":      shell("touch $WORK/l; flock $WORK/l sleep 3 & sleep 0.3; flock -w 1 $WORK/l true || { echo 'timed out while waiting to get lock' >&2; exit 1; }"),
	"timeout--go-client": func(t *testing.T) error {
		_, err := (&http.Client{Timeout: 300 * time.Millisecond}).Get("http://" + deaf(t))
		return err
	},
	"timeout--go-context": func(t *testing.T) error {
		r, _ := http.NewRequestWithContext(within(t, 300*time.Millisecond), http.MethodPost, "http://"+deaf(t)+"/v1/chat/completions", strings.NewReader("{}"))
		_, err := http.DefaultClient.Do(r)
		return fmt.Errorf("chat: %w", err)
	},
	"timeout--go-read": func(t *testing.T) error {
		c, err := net.Dial("tcp", deaf(t))
		if err != nil {
			return nil
		}
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err = c.Read(make([]byte, 1))
		return fmt.Errorf("handshake with rank 1: %w", err)
	},
	"timeout--go-cause": func(*testing.T) error {
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Millisecond, errors.New("drain took longer than 1ms"))
		defer cancel()
		<-ctx.Done()
		return fmt.Errorf("%w: %w", context.Cause(ctx), ctx.Err())
	},

	// What the engine's process does to those who talk to it.
	"engine--reset": func(t *testing.T) error { return talk(t, func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }) },
	"engine--eof":   func(t *testing.T) error { return talk(t, func(net.Conn) {}) },
	"engine--half": func(t *testing.T) error {
		return talk(t, func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\ndata: {\"id\":")
		})
	},
	"engine--garbage": func(t *testing.T) error {
		return talk(t, func(c net.Conn) { _, _ = io.WriteString(c, "\x00\x01\x02\x03\x04\x05\x06\r\n\r\n") })
	},
	"engine--500-go": answer(500, `{"error":{"message":"index 3 is out of bounds for dimension 0 with size 3","type":"InternalServerError"}}`),
	"engine--500-curl": func(t *testing.T) error {
		return withServer(t, 500, "step failed", "curl -sS -f http://127.0.0.1:$PORT/v1/completions")
	},
	"engine--refused": func(t *testing.T) error {
		return shell("PORT=" + port(unused(t)) + "; curl -sS http://127.0.0.1:$PORT/health")(t)
	},
	"engine--refused-py": func(t *testing.T) error {
		return shell("PORT=" + port(unused(t)) + " " + python + ` -c 'import os, urllib.request; urllib.request.urlopen("http://127.0.0.1:" + os.environ["PORT"] + "/health")'`)(t)
	},
	"engine--refused-node": func(t *testing.T) error {
		return shell("PORT=" + port(unused(t)) + ` node -e 'fetch("http://127.0.0.1:" + process.env.PORT)'`)(t)
	},
}

// python is Debian's, which has numpy and pytest.
const python = "/usr/bin/python3"

// shell returns what a script of the shell fails with: its output and its status.
func shell(script string, env ...string) func(t *testing.T) error {
	return func(t *testing.T) error {
		work := t.TempDir()
		self, _ := os.Executable()
		cmd := exec.CommandContext(within(t, 50*time.Second), "sh", "-c", script)
		cmd.Dir = work
		cmd.Env = append(os.Environ(), append(env, "WORK="+work, "SELF="+self)...)
		cmd.WaitDelay = time.Second
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.CombinedOutput()
		if err == nil {
			return nil
		}
		name, _, _ := strings.Cut(strings.TrimSpace(script), " ")
		return fmt.Errorf("%s: %w\n%s", name, err, bytes.TrimSpace(out))
	}
}

// tmpfs mounts a small file system.
func tmpfs(t *testing.T, options ...string) string {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, options[0]); err != nil {
		panic("harmless: mount: " + err.Error())
	}
	if len(options) > 1 {
		_ = syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, options[0])
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

func onDisk(script string) func(t *testing.T) error {
	return func(t *testing.T) error { return shell(script, "DISK="+tmpfs(t, "size=128k"))(t) }
}

func onReadOnly(script string) func(t *testing.T) error {
	return func(t *testing.T) error { return shell(script, "DISK="+tmpfs(t, "size=128k", "ro"))(t) }
}

func offline(script string) func(t *testing.T) error {
	return shell("exec unshare -n sh -c '" + strings.ReplaceAll(script, "'", `'\''`) + "'")
}

// offlineSelf runs this binary without a network; see self.
func offlineSelf(what string) func(t *testing.T) error {
	return shell("exec env FAILURES_SELF=" + what + " unshare -n $SELF")
}

func asNobody(script string) func(t *testing.T) error {
	return shell("chmod 777 $WORK; exec setpriv --reuid=65534 --clear-groups bash -c '" + strings.ReplaceAll(script, "'", `'\''`) + "'")
}

// inCgroup runs a script in a group with 64 MiB of memory.
func inCgroup(script string) func(t *testing.T) error {
	return func(t *testing.T) error {
		dir := fmt.Sprintf("/sys/fs/cgroup/memory/failures-%d", os.Getpid())
		if err := os.Mkdir(dir, 0o755); err != nil {
			panic("harmless: " + err.Error())
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		_ = os.WriteFile(dir+"/memory.limit_in_bytes", []byte("67108864"), 0o600)
		return shell("echo $$ > " + dir + "/cgroup.procs; " + script)(t)
	}
}

// taken returns an address on which another listens.
func taken(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic("harmless: " + err.Error())
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func unused(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic("harmless: " + err.Error())
	}
	defer l.Close()
	return l.Addr().String()
}

func port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

func onPort(script string) func(t *testing.T) error {
	return func(t *testing.T) error { return shell(script, "PORT="+port(taken(t)))(t) }
}

// deaf returns the address of a server that never answers.
func deaf(t *testing.T) string {
	return listen(t, func(net.Conn) { <-t.Context().Done() })
}

// listen returns the address of a server that does something with each connection, then hangs up.
func listen(t *testing.T, do func(net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic("harmless: " + err.Error())
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				do(c)
			}()
		}
	}()
	return l.Addr().String()
}

func hanging(script string) func(t *testing.T) error {
	return func(t *testing.T) error { return shell(script, "PORT="+port(deaf(t)))(t) }
}

// talk asks a server that reads the request, does something and hangs up.
func talk(t *testing.T, do func(net.Conn)) error {
	addr := listen(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		do(c)
	})
	r, err := http.Post("http://"+addr+"/v1/completions", "application/json", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	defer r.Body.Close()
	_, err = io.ReadAll(r.Body)
	return fmt.Errorf("stream: %w", err)
}

func answer(code int, body string) func(t *testing.T) error {
	return func(t *testing.T) error {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, code) }))
		t.Cleanup(s.Close)
		r, err := http.Post(s.URL+"/v1/completions", "application/json", strings.NewReader("{}"))
		if err != nil {
			return nil
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return fmt.Errorf("POST %s: %s: %s", r.Request.URL, r.Status, b)
	}
}

func withServer(t *testing.T, code int, body, script string) error {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, code) }))
	t.Cleanup(s.Close)
	return shell(script, "PORT="+port(s.Listener.Addr().String()))(t)
}

const hosts = `unshare -m sh -c 'printf "127.0.0.1 localhost mirror.example.com\n" > $WORK/hosts; mount --bind $WORK/hosts /etc/hosts; `

// mirror runs a script for which mirror.example.com answers everything with one status.
func mirror(code int, script string) func(t *testing.T) error {
	return func(t *testing.T) error {
		return withServer(t, code, http.StatusText(code), hosts+strings.ReplaceAll(script, "'", `'\''`)+"'")
	}
}

// mirrorTLS runs a script for which the certificate of mirror.example.com has expired.
func mirrorTLS(script string) func(t *testing.T) error {
	return func(t *testing.T) error {
		key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		c := &x509.Certificate{
			SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "mirror.example.com"}, DNSNames: []string{"mirror.example.com"},
			NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		}
		der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
		if err != nil {
			panic("harmless: " + err.Error())
		}
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}} //nolint:gosec // a test
		s.Config.ErrorLog = nil
		s.StartTLS()
		t.Cleanup(s.Close)
		file := filepath.Join(t.TempDir(), "ca.pem")
		_ = os.WriteFile(file, pemOf(der), 0o600)
		return shell(hosts+strings.ReplaceAll(script, "'", `'\''`)+"'", "PORT="+port(s.Listener.Addr().String()), "CERT="+file)(t)
	}
}
