package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/engine/openai"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/llm"
)

const (
	serveChild = "ENGINETEST_TEST_MAIN"  // the test binary is enginetest
	serveEarly = "ENGINETEST_TEST_EARLY" // a signal comes before main
	serveFault = "ENGINETEST_TEST_FAULT" // the test binary serves with a fault: JSON of an llm.Fault
)

// A signal before main: in an init, as if one came in the first moments of the process.
func init() {
	if os.Getenv(serveEarly) != "" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
	}
}

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(serveChild) != "":
		main()
	case os.Getenv(serveFault) != "":
		os.Exit(serveWithFault(os.Getenv(serveFault)))
	}
	os.Exit(m.Run())
}

func serveWithFault(text string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var f llm.Fault
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		panic(err)
	}
	o := serveOptions{
		engine: engine.Config{Model: fixtures.Bundled(), Faults: []llm.Fault{f}}, host: "127.0.0.1",
		api: openai.Options{Name: "faulty"}, timeout: time.Minute,
	}
	fmt.Fprintln(os.Stderr, "loading")
	if err := serve(ctx, o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
	return exitDone
}

// server is a process that serves.
type server struct {
	t      *testing.T
	cmd    *exec.Cmd
	url    string
	client *http.Client
	stdout *bufio.Reader
	stderr logFile
	exited chan struct{}
	code   int // when exited is closed
}

// logFile is what a process writes to standard error: a file, because all of it is there when the
// process has ended.
type logFile string

func (f logFile) String() string {
	text, _ := os.ReadFile(string(f))
	return string(text)
}

// spawn starts this test binary with an environment that makes it another program.
func spawn(t *testing.T, env string, args ...string) *server {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("no SIGTERM on windows")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	s := &server{
		t: t, cmd: exec.Command(exe, args...), stderr: logFile(filepath.Join(t.TempDir(), "stderr")),
		exited: make(chan struct{}), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	s.cmd.Env = append(os.Environ(), env)
	stderr, err := os.Create(string(s.stderr))
	require.NoError(t, err)
	defer stderr.Close()
	s.cmd.Stderr = stderr
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	s.stdout = bufio.NewReader(out)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		_ = s.cmd.Process.Kill()
		<-s.exited
	})
	go func() {
		state, err := s.cmd.Process.Wait()
		if s.code = -1; err == nil {
			s.code = state.ExitCode()
		}
		close(s.exited)
	}()
	return s
}

// start waits until the server is ready.
func start(t *testing.T, args ...string) *server {
	t.Helper()
	s := spawn(t, serveChild+"=1", append([]string{"serve", "--port", "0"}, args...)...)
	s.ready()
	return s
}

func (s *server) ready() {
	s.t.Helper()
	line, err := s.stdout.ReadString('\n')
	require.NoError(s.t, err, s.stderr.String())
	var a struct{ URL, Model string }
	require.NoError(s.t, json.Unmarshal([]byte(line), &a), line)
	s.url = a.URL
}

func (s *server) signal(sig os.Signal) {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(sig))
}

// exit waits for the process's end.
func (s *server) exit(code int) {
	s.t.Helper()
	const within = 2 * time.Minute
	select {
	case <-s.exited:
	case <-time.After(within):
		s.t.Fatalf("no exit within %s:\n%s", within, s.stderr)
	}
	assert.Equal(s.t, code, s.code, s.stderr.String())
}

func (s *server) status(path string) int {
	s.t.Helper()
	resp, err := s.client.Get(s.url + path)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// stream asks for tokens and reads them to the end: it gives the stream's last event.
func (s *server) stream(tokens int, first func()) (last string, err error) {
	body := fmt.Sprintf(`{"prompt": "The lighthouse", "max_tokens": %d, "ignore_eos": true, "stream": true}`, tokens)
	resp, err := s.client.Post(s.url+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return resp.Status, nil
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			if last == "" && first != nil {
				first()
			}
			last = data
		}
	}
	return last, lines.Err()
}

// streams starts clients and returns when each has an event; wait gives the last event of each.
func (s *server) streams(n, tokens int) (wait func() []string) {
	s.t.Helper()
	begun := make(chan struct{}, n)
	lasts := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			last, err := s.stream(tokens, func() { begun <- struct{}{} })
			assert.NoError(s.t, err)
			lasts[i] = last
		})
	}
	for range n {
		select {
		case <-begun:
		case <-time.After(2 * time.Minute):
			s.t.Fatal("a stream does not begin")
		}
	}
	return func() []string { wg.Wait(); return lasts }
}

func matching(list []string, want string) (n int) {
	for _, s := range list {
		if strings.Contains(s, want) {
			n++
		}
	}
	return n
}

func TestServeIdle(t *testing.T) {
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		s := start(t)
		code := s.status("/health")
		assert.Equal(t, http.StatusOK, code)
		s.signal(sig)
		s.exit(exitDone)
		assert.Contains(t, s.stderr.String(), "draining for at most 30s: 0 sequences run, 0 wait")
		assert.Contains(t, s.stderr.String(), "release", "the engine's report")
	}
}

// TestServeSignalWhileLoading: the load hangs until it is cancelled.
func TestServeSignalWhileLoading(t *testing.T) {
	fault, err := json.Marshal(llm.Fault{Point: llm.FaultLoad, Action: llm.ActHang})
	require.NoError(t, err)
	s := spawn(t, serveFault+"="+string(fault))
	require.Eventually(t, func() bool {
		return strings.Contains(s.stderr.String(), "loading")
	}, time.Minute, time.Millisecond)
	time.Sleep(50 * time.Millisecond) // into the hang, most often: before it is as good
	s.signal(syscall.SIGTERM)
	s.exit(exitDone)
	assert.Contains(t, s.stderr.String(), "the load is cancelled")
	_, err = s.stdout.ReadString('\n')
	assert.ErrorIs(t, err, io.EOF, "no address was announced")
}

// TestServeDrains: ten streams run when the signal comes, and take long enough for a look at the
// server. All of them finish, and new work is refused meanwhile.
func TestServeDrains(t *testing.T) {
	for _, args := range [][]string{nil, {"--device", "cpu", "--tensor-parallel", "2"}} {
		testDrain(t, start(t, append(args, "--inter-token-latency", "5ms", "--shutdown-timeout", "5m")...))
	}
}

func testDrain(t *testing.T, s *server) {
	t.Helper()
	wait := s.streams(10, 500)
	s.signal(syscall.SIGTERM)
	require.Eventually(t, func() bool {
		return strings.Contains(s.stderr.String(), "draining")
	}, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool {
		code := s.status("/health")
		return code == http.StatusServiceUnavailable
	}, time.Minute, time.Millisecond)
	resp, err := s.client.Post(s.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt": "a"}`))
	require.NoError(t, err)
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	assert.Equal(t, "1", resp.Header.Get("Retry-After"))
	assert.Contains(t, string(body), `"code":"draining"`)
	assert.Equal(t, 10, matching(wait(), "[DONE]"), "every stream finishes")
	s.exit(exitDone)
	assert.Contains(t, s.stderr.String(), "requests finished")
}

// TestServeDrainsPaced: answers that a latency profile holds back finish, too.
func TestServeDrainsPaced(t *testing.T) {
	s := start(t, "--time-to-first-token", "10ms", "--inter-token-latency", "30ms", "--latency-jitter", "0.2")
	wait := s.streams(3, 12)
	s.signal(syscall.SIGTERM)
	assert.Equal(t, 3, matching(wait(), "[DONE]"), "every stream finishes")
	s.exit(exitDone)
}

// TestServeFaults: a fault is injected only when the flag allows it.
func TestServeFaults(t *testing.T) {
	for flag, want := range map[string]int{"--enable-faults=true": 418, "--enable-faults=false": 400} {
		s := start(t, flag, "--lora-modules", "a,b=/b")
		req, err := http.NewRequest(http.MethodGet, s.url+"/v1/models", nil)
		require.NoError(t, err)
		req.Header.Set(openai.FaultHeader, "status=418")
		resp, err := s.client.Do(req)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, want, resp.StatusCode)
		assert.Equal(t, 200, s.status("/v1/models/b"))
		s.signal(syscall.SIGTERM)
		s.exit(exitDone)
	}
}

// TestServeDrainDeadline: what does not finish in time is aborted, and its client is told.
func TestServeDrainDeadline(t *testing.T) {
	inFlight(t, func() bool {
		s := start(t, "--shutdown-timeout", "100ms")
		wait := s.streams(10, 1000)
		s.signal(syscall.SIGTERM)
		lasts := wait()
		if matching(lasts, "[DONE]") > 0 {
			return false
		}
		assert.Equal(t, 10, matching(lasts, `"error"`), "%q", lasts)
		s.exit(exitFailed)
		assert.Contains(t, s.stderr.String(), "10 of 10 requests aborted")
		assert.Contains(t, s.stderr.String(), "--shutdown-timeout 100ms is over")
		return true
	})
}

// inFlight repeats a test until no stream was over before its signals came.
func inFlight(t *testing.T, test func() bool) {
	t.Helper()
	for attempt := 0; !test(); attempt++ {
		require.Less(t, attempt, 20, "streams end too early")
	}
}

func TestServeSecondSignalAborts(t *testing.T) {
	inFlight(t, func() bool {
		s := start(t, "--shutdown-timeout", "10m")
		wait := s.streams(3, 1000)
		s.signal(syscall.SIGTERM)
		require.Eventually(t, func() bool {
			return strings.Contains(s.stderr.String(), "draining")
		}, time.Minute, time.Millisecond)
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		lasts := wait()
		if matching(lasts, "[DONE]") > 0 {
			return false
		}
		s.exit(exitFailed)
		assert.Equal(t, 3, matching(lasts, `"error"`))
		assert.Contains(t, s.stderr.String(), "a second signal (terminated)")
		return true
	})
}

// TestServeEngineFails: the server ends by itself, with the cause.
func TestServeEngineFails(t *testing.T) {
	fault, err := json.Marshal(llm.Fault{
		Point: llm.FaultForward, Action: llm.ActError, After: 5,
		Text: "as planned",
	})
	require.NoError(t, err)
	s := spawn(t, serveFault+"="+string(fault))
	s.ready()
	last, err := s.stream(100, nil)
	require.NoError(t, err)
	assert.Contains(t, last, `"code":"engine_dead"`)
	s.exit(exitFailed)
	assert.Contains(t, s.stderr.String(), "as planned")
}

func TestServeUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	left, err := net.Listen("unix", path)
	require.NoError(t, err)
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, left.Close(), "a socket that a dead server left")
	s := spawn(t, serveChild+"=1", "serve", "--uds", path)
	s.ready()
	s.url = "http://unix"
	s.client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}
	code := s.status("/v1/models")
	assert.Equal(t, http.StatusOK, code)
	exit, _, stderr := command("", "serve", "--uds", path)
	assert.Equal(t, exitFailed, exit)
	assert.Contains(t, stderr, "a server answers there")
	s.signal(syscall.SIGTERM)
	s.exit(exitDone)
	assert.NoFileExists(t, path)

	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	exit, _, stderr = command("", "serve", "--uds", path)
	assert.Equal(t, exitUsage, exit)
	assert.Contains(t, stderr, "something else is there (-rw-------)")
	kept, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "precious", string(kept), "what is no socket is not replaced")
}

func TestServeWrongUse(t *testing.T) {
	for args, want := range map[string]string{
		"serve --uds a --port 1":                  "not both",
		"serve --port 70000":                      "[0, 65535]",
		"serve --uds " + strings.Repeat("x", 200): "--uds has 200 bytes",
		"serve --shutdown-timeout -1s":            "at least 0",
		"serve --port 0 --block-size -1":          "BlockSize is -1",
		"serve stray":                             "stray",
		"serve --latency-jitter 2":                "Jitter is 2",
		"serve --lora-modules a,a":                `"a"`,
		"serve --port 0 --max-model-len 99999999": "MaxModelLen",
	} {
		code, stdout, stderr := command("", strings.Fields(args)...)
		assert.Equal(t, exitUsage, code, args)
		assert.Contains(t, stderr, want)
		assert.Empty(t, stdout)
	}
	code, _, stderr := command("", "serve", "--port", "0", "--model", "/no/such/folder")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr, "/no/such/folder")
}

// TestServeCurl: the examples of docs/serving.md.
func TestServeCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl here")
	}
	s := start(t)
	for _, c := range []struct{ path, body, want string }{
		{"/v1/completions", `{"prompt": "2+3=", "temperature": 0}`, `"text":"5"`},
		{
			"/v1/chat/completions",
			`{"messages": [{"role": "user", "content": "What is 12+30?"}], "temperature": 0, "stream": true}`,
			"data: [DONE]",
		},
		{
			"/v1/chat/completions", `{"messages": [{"role": "user", "content": "What is 12+30?"}], "temperature": 0}`,
			`"content":" 42"`,
		},
	} {
		out, err := exec.Command(curl, "-sS", "--max-time", "20", s.url+c.path, "-H", "Content-Type: application/json",
			"-d", c.body).CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), c.want)
	}
	s.signal(syscall.SIGTERM)
	s.exit(exitDone)
}

// TestServeSignalBeforeMain: a signal is handled from the start of the process, not from that of
// main.
func TestServeSignalBeforeMain(t *testing.T) {
	t.Setenv(serveEarly, "1")
	s := spawn(t, serveChild+"=1", "serve", "--port", "0")
	<-s.exited
	assert.Zero(t, s.code, s.stderr)
	assert.Contains(t, s.stderr.String(), "signal while loading")
}

// TestServeFlags: what would open the server to the network by accident is refused.
func TestServeFlags(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--host=", "0.0.0.0 or :: is every interface"},
		{"--tls-cert=x", "--tls-cert and --tls-key go together"},
	} {
		s := spawn(t, serveChild+"=1", "serve", "--port", "0", c.args)
		<-s.exited
		assert.Equal(t, exitUsage, s.code)
		assert.Contains(t, s.stderr.String(), c.want)
	}
}
