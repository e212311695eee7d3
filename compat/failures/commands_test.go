package failures

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A project is a folder of files and the command that tests it; out is a file with the results in
// place of the command's output.
type project struct {
	files   map[string]string
	command string
	out     string
}

const gomod = "module example.com/llm\n\ngo 1.26\n"

func goTest(flags string, files map[string]string) project {
	files["go.mod"] = gomod
	return project{files, "go test " + flags + " ./...", ""}
}

func pytest(body string) project {
	return project{map[string]string{"test_engine.py": body}, python + " -m pytest -q -p no:cacheprovider --junitxml=out.xml", "out.xml"}
}

func gtest(flags, body string) project {
	return project{
		map[string]string{"t.cc": "#include <gtest/gtest.h>\n" + body},
		"g++ -w -g " + flags + " -o t t.cc -lgtest -lgtest_main -pthread && ./t --gtest_output=xml:out.xml", "out.xml",
	}
}

const passing = "package llm\n\nimport \"testing\"\n\nfunc TestOK(*testing.T) {}\n"

// projects are whole runs of test commands.
var projects = map[string]project{
	"test--build-undefined": goTest("", map[string]string{"a_test.go": "package llm\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) { Generate(t) }\n"}),
	"test--build-types":     goTest("-json", map[string]string{"a.go": "package llm\n\nfunc N() int { return \"out of memory\" }\n", "a_test.go": passing}),
	"test--build-import":    goTest("-json", map[string]string{"a.go": "package llm\n\nimport _ \"example.com/llm/none\"\n", "a_test.go": passing}),
	"test--build-cycle":     goTest("", map[string]string{"a/a.go": "package a\n\nimport _ \"example.com/llm/b\"\n", "b/b.go": "package b\n\nimport _ \"example.com/llm/a\"\n", "a/a_test.go": "package a\n"}),
	"test--build-syntax":    goTest("-json", map[string]string{"a.go": "package llm\n\nfunc N( int { }\n", "a_test.go": passing}),
	"test--build-unused":    goTest("-v", map[string]string{"a_test.go": "package llm\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestA(t *testing.T) { x := 1 }\n"}),
	"test--vet-printf":      goTest("-json", map[string]string{"a_test.go": "package llm\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) { t.Errorf(\"%d\", \"no space left on device\") }\n"}),
	"test--build-embed":     goTest("", map[string]string{"a.go": "package llm\n\nimport _ \"embed\"\n\n//go:embed weights.bin\nvar W []byte\n", "a_test.go": passing}),
	"test--build-cgo":       goTest("-json", map[string]string{"a.go": "package llm\n\n// #include \"kernels.h\"\nimport \"C\"\n\nvar N = C.N\n", "a_test.go": passing}),
	"test--build-link":      goTest("-json", map[string]string{"a.go": "package llm\n\n// int launch(void);\nimport \"C\"\n\nfunc L() { C.launch() }\n", "a_test.go": "package llm\n\nimport \"testing\"\n\nfunc TestL(*testing.T) { L() }\n"}),
	"test--example":         goTest("-json", map[string]string{"a_test.go": "package llm\n\nimport \"fmt\"\n\nfunc ExampleN() {\n\tfmt.Println(\"timed out\")\n\t// Output: no such host\n}\n"}),
	"test--fuzz":            goTest("-json", map[string]string{"a_test.go": "package llm\n\nimport \"testing\"\n\nfunc FuzzN(f *testing.F) {\n\tf.Add(\"EOF\")\n\tf.Fuzz(func(t *testing.T, s string) {\n\t\tif s == \"EOF\" {\n\t\t\tt.Errorf(\"Decode(%q): 0 tokens\", s)\n\t\t}\n\t})\n}\n"}),
	"engine--race":          goTest("-race -json", map[string]string{"a.go": "package llm\n\nvar n int\n\nfunc Inc() { n++ }\n", "a_test.go": "package llm\n\nimport \"testing\"\n\nfunc TestA(*testing.T) { done := make(chan bool); go func() { Inc(); close(done) }(); Inc(); <-done }\n"}),
	"test--race":            goTest("-race -json", map[string]string{"a_test.go": "package llm\n\nimport \"testing\"\n\nfunc TestA(*testing.T) { n := 0; done := make(chan bool); go func() { n++; close(done) }(); n++; <-done }\n"}),
	"engine--deadlock":      goTest("-json", map[string]string{"a.go": "package llm\n\nfunc Wait() { <-make(chan int) }\n", "a_test.go": "package llm\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestMain(m *testing.M) { Wait(); os.Exit(m.Run()) }\n"}),
	"engine--nil":           goTest("-json", map[string]string{"a.go": "package llm\n\ntype E struct{ w []int }\n\nfunc (e *E) N() int { return len(e.w) }\n", "a_test.go": "package llm\n\nimport \"testing\"\n\nfunc TestA(*testing.T) { var e *E; e.N() }\n"}),
	"engine--maps":          goTest("-json", map[string]string{"a.go": "package llm\n\nvar m = map[int]int{}\n\nfunc Set(i int) { m[i%7]++ }\n", "a_test.go": "package llm\n\nimport \"testing\"\n\nfunc TestA(*testing.T) { for range 8 { go func() { for i := range 1 << 30 { Set(i) } }() }; select {} }\n"}),
	"engine--stack":         goTest("", map[string]string{"a.go": "package llm\n\nfunc F(n int) int { return F(n+1) + 1 }\n", "a_test.go": "package llm\n\nimport \"testing\"\n\nfunc TestA(*testing.T) { F(0) }\n"}),
	"engine--cgo-segv":      goTest("-json", map[string]string{"a.go": "package llm\n\n// static int launch(void) { volatile int *p = 0; return *p; }\nimport \"C\"\n\nfunc L() { C.launch() }\n", "a_test.go": "package llm\n\nimport \"testing\"\n\nfunc TestL(*testing.T) { L() }\n"}),
	"engine--cgo-abort":     goTest("-json", map[string]string{"a.go": "package llm\n\n// #include <stdlib.h>\nimport \"C\"\n\nfunc L() { C.abort() }\n", "a_test.go": "package llm\n\nimport \"testing\"\n\nfunc TestL(*testing.T) { L() }\n"}),
	"engine--cgo-exit":      goTest("-json", map[string]string{"a.go": "package llm\n\n// #include <stdlib.h>\nimport \"C\"\n\nfunc L() { C._Exit(5) }\n", "a_test.go": "package llm\n\nimport \"testing\"\n\nfunc TestL(*testing.T) { L() }\n"}),
	"timeout--go-test":      goTest("-json -timeout 1s", map[string]string{"a_test.go": "package llm\n\nimport (\n\t\"testing\"\n\t\"time\"\n)\n\nfunc TestA(*testing.T) { time.Sleep(time.Hour) }\n"}),
	"timeout--go-test-sub":  goTest("-v -timeout 1s", map[string]string{"a_test.go": "package llm\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) { t.Run(\"drain\", func(*testing.T) { for { } }) }\n"}),
	"leak--goleak-main":     {files: map[string]string{"go.mod": "module example.com/llm\n\ngo 1.26\n\nrequire go.uber.org/goleak v1.3.0\n", "a_test.go": "package llm\n\nimport (\n\t\"testing\"\n\n\t\"go.uber.org/goleak\"\n)\n\nfunc TestMain(m *testing.M) { goleak.VerifyTestMain(m) }\n\nfunc TestA(*testing.T) { go func() { select {} }() }\n"}, command: "GOFLAGS=-mod=mod GONOSUMDB=* GONOSUMCHECK=1 go test -json ./..."},
	"leak--go-test-io":      goTest("-json -timeout 2s", map[string]string{"a_test.go": "package llm\n\nimport (\n\t\"os\"\n\t\"os/exec\"\n\t\"testing\"\n)\n\nfunc TestA(t *testing.T) { c := exec.Command(\"sleep\", \"8\"); c.Stdout = os.Stdout; if err := c.Start(); err != nil { t.Fatal(err) } }\n"}),
	"infra--build-disk":     {files: map[string]string{"go.mod": gomod, "a_test.go": passing}, command: "GOTMPDIR=$DISK go test -json ./..."},
	"infra--build-proxy":    {files: map[string]string{"go.mod": "module example.com/llm\n\ngo 1.26\n\nrequire rsc.io/quote v1.5.2\n", "a_test.go": "package llm\n\nimport (\n\t\"testing\"\n\n\t\"rsc.io/quote\"\n)\n\nfunc TestA(*testing.T) { quote.Go() }\n"}, command: "GOFLAGS=-mod=mod GOPROXY=https://proxy.example.com GONOSUMDB=* GOMODCACHE=$PWD/mod unshare -n go test -json ./..."},
	"infra--cancelled":      {files: map[string]string{"go.mod": gomod, "a_test.go": "package llm\n\nimport (\n\t\"os\"\n\t\"syscall\"\n\t\"testing\"\n)\n\nfunc TestA(*testing.T) { syscall.Kill(os.Getpid(), syscall.SIGTERM); select {} }\n"}, command: "go test -json ./..."},
	"capacity--oom-test":    {files: map[string]string{"go.mod": gomod, "a_test.go": "package llm\n\nimport \"testing\"\n\nvar k [][]byte\n\nfunc TestA(*testing.T) { for { b := make([]byte, 16<<20); for i := range b { b[i] = 1 }; k = append(k, b) } }\n"}, command: "go test -c -o llm.test && d=/sys/fs/cgroup/memory/failures-p$$ && mkdir $d && echo 67108864 > $d/memory.limit_in_bytes && go test -json -exec \"sh -c 'echo \\$\\$ > $d/cgroup.procs; exec \\\"\\$@\\\"' sh\" ."},
	"capacity--as-test":     {files: map[string]string{"go.mod": gomod, "a_test.go": "package llm\n\nimport \"testing\"\n\nvar k [][]byte\n\nfunc TestA(*testing.T) { for { k = append(k, make([]byte, 64<<20)) } }\n"}, command: "go test -json -exec \"sh -c 'ulimit -v 900000; exec \\\"\\$@\\\"' sh\" ."},
	"capacity--compile":     {files: map[string]string{"go.mod": gomod, "a_test.go": passing}, command: "go clean -testcache; GOCACHE=$PWD/c GOGC=off sh -c 'ulimit -v 120000; go test -json ./...'"},

	"test--pytest-assert":    pytest("def test_len():\n    assert len([1, 2]) == 3\n"),
	"test--pytest-raises":    pytest("import pytest\ndef test_raises():\n    with pytest.raises(OSError, match='No space left'):\n        pass\n"),
	"test--pytest-text":      pytest("def test_text():\n    assert 'CUDA out of memory' in 'no such host'\n"),
	"engine--pytest-key":     {map[string]string{"engine.py": "def load():\n    return {}['lm_head.weight']\n", "test_engine.py": "import engine\ndef test_load():\n    engine.load()\n"}, python + " -m pytest -q -p no:cacheprovider --junitxml=out.xml", "out.xml"},
	"engine--pytest-fixture": {map[string]string{"engine.py": "def load():\n    raise RuntimeError('weights have shape (3, 4), want (4, 4)')\n", "test_engine.py": "import engine, pytest\n@pytest.fixture\ndef e(): return engine.load()\ndef test_load(e): pass\n"}, python + " -m pytest -q -p no:cacheprovider --junitxml=out.xml", "out.xml"},
	"infra--pytest-disk":     pytest("import os\ndef test_save():\n    open(os.environ['DISK'] + '/w', 'wb').write(b'x' * 1000000)\n"),
	"infra--pytest-dns":      pytest("import urllib.request\ndef test_hub():\n    urllib.request.urlopen('http://models.invalid/tiny')\n"),
	"infra--pytest-port":     pytest("import socket, os\ndef test_serve():\n    s = socket.socket(); s.bind(('127.0.0.1', int(os.environ['TAKEN'])))\n"),
	"capacity--pytest-mem":   pytest("import resource\ndef test_batch():\n    resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))\n    b = bytearray(1 << 31)\n"),
	"timeout--pytest":        pytest("import socket\ndef test_wait():\n    a, b = socket.socketpair(); a.settimeout(0.2); a.recv(1)\n"),
	"engine--pytest-refused": pytest("import urllib.request, os\ndef test_health():\n    urllib.request.urlopen('http://127.0.0.1:' + os.environ['FREE'] + '/health')\n"),

	"test--gtest-eq":        gtest("", "TEST(Tokens, Count) { EXPECT_EQ(3, 4) << \"timed out\"; }"),
	"test--gtest-str":       gtest("", "TEST(Errors, Text) { ASSERT_STREQ(\"no space left on device\", \"\"); }"),
	"test--gtest-near":      gtest("", "TEST(Logits, Near) { EXPECT_NEAR(1.0, 1.5, 1e-3); }"),
	"engine--gtest-throw":   gtest("", "#include <stdexcept>\nTEST(Model, Load) { throw std::out_of_range(\"layer 12 of 12\"); }"),
	"capacity--gtest-alloc": gtest("", "#include <new>\nTEST(Cache, Alloc) { delete[] new char[1ul << 46]; }"),
	"infra--gtest-disk":     gtest("", "#include <fstream>\n#include <system_error>\n#include <cerrno>\nTEST(Spill, Write) { FILE *f = fopen((std::string(getenv(\"DISK\")) + \"/w\").c_str(), \"w\"); std::string b(1 << 20, 'x'); size_t n = fwrite(b.data(), 1, b.size(), f); int e = errno; fclose(f); ASSERT_EQ(n, b.size()) << std::system_category().message(e); }"),
}

// runProject runs a project's command and returns what it says.
func runProject(t *testing.T, p project) []byte {
	dir := t.TempDir()
	for name, text := range p.files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", p.command)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DISK="+tmpfs(t, "size=64k"), "TAKEN="+port(taken(t)), "FREE="+port(unused(t)))
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("%s passes", p.command)
	}
	if p.out == "" {
		return out
	}
	if result, err := os.ReadFile(filepath.Join(dir, p.out)); err == nil {
		return result
	}
	return []byte(strings.TrimSpace(string(out)) + "\n")
}
