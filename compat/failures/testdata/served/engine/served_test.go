package engine_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	gotest "gotest.tools/v3/assert"

	"example.com/served/engine"
)

func TestFirstToken(t *testing.T) {
	if _, err := ask(t.Context(), start(t, "nil")); err != nil {
		t.Fatalf("completion: %v", err)
	}
}

func TestHealthStays(t *testing.T) {
	addr := start(t, "nil")
	_, _ = ask(t.Context(), addr)
	r, err := http.Get("http://" + addr + "/health")
	require.NoError(t, err)
	_ = r.Body.Close()
}

func TestSecondModel(t *testing.T) {
	_, err := ask(t.Context(), start(t, "telemetry"))
	gotest.NilError(t, err)
}

func TestRowThree(t *testing.T) {
	_, err := ask(t.Context(), start(t, "nan"))
	assert.NoError(t, err, "greedy")
}

func TestRetry(t *testing.T) {
	addr := start(t, "exit")
	var err error
	for i := range 3 {
		if _, err = ask(t.Context(), addr); err == nil {
			return
		}
		t.Logf("attempt %d: %v", i+1, err)
		time.Sleep(30 * time.Millisecond)
	}
	t.Fatalf("no answer after 3 attempts: %v", err)
}

func TestBatchFour(t *testing.T) {
	_, err := ask(t.Context(), start(t, "retry-oom"))
	require.NoError(t, err)
}

func TestManyRequests(t *testing.T) {
	addr := start(t, "fds", "SERVED_FEW_FILES=1")
	for i := range 3 {
		if _, err := ask(t.Context(), addr); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
}

func TestPoolDrains(t *testing.T) {
	_, err := ask(t.Context(), start(t, "pool"))
	require.NoError(t, err)
}

func TestUpstream(t *testing.T) {
	if _, err := ask(t.Context(), start(t, "upstream")); err != nil {
		t.Error(err)
	}
}

func TestStream(t *testing.T) {
	_, err := ask(t.Context(), start(t, "cut"))
	gotest.NilError(t, err, "stream=true")
}

func TestRanks(t *testing.T) {
	_, err := ask(t.Context(), start(t, "worker"))
	assert.NoError(t, err)
}

func TestReady(t *testing.T)       { start(t, "other-port") }
func TestLoads(t *testing.T)       { start(t, "config", "SERVED_SPILL="+t.TempDir()) }
func TestTensorSplit(t *testing.T) { start(t, "heads") }
func TestWarmUp(t *testing.T)      { start(t, "silent") }

func TestModels(t *testing.T) {
	host, port, _ := net.SplitHostPort(start(t, ""))
	_, err := http.Get(engine.URL(strings.Replace(host, "127.0.0.1", "localhost", 1), port, "/v1/models")) //nolint:bodyclose // there is none
	require.NoError(t, err)
}

func TestVersion(t *testing.T) {
	_, err := http.Get(engine.Endpoint(start(t, ""), "/version")) //nolint:bodyclose // there is none
	if err != nil {
		t.Fatal("version:", err)
	}
}

func TestWorkerStarts(t *testing.T) {
	if err := engine.Worker(t.TempDir()); err != nil {
		t.Fatalf("Worker: %v", err)
	}
}

func TestMapEmpty(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "weights"))
	require.NoError(t, err)
	defer f.Close()
	_, err = engine.Map(f)
	assert.NoError(t, err)
}

func TestLongPrompt(t *testing.T) { assert.NotEmpty(t, engine.Batch(46341)) }

func TestSteps(t *testing.T)   { gotest.NilError(t, engine.Pipe()) }
func TestSlots(t *testing.T)   { require.NoError(t, engine.Watch()) }
func TestStopped(t *testing.T) { require.NoError(t, engine.Close()) }

func TestReload(t *testing.T) {
	if err := engine.Reload(full(t)); err != nil {
		t.Errorf("Reload: %v", err)
	}
}

func TestPortRange(t *testing.T) {
	_, err := http.Get("http://127.0.0.1:99999/health") //nolint:bodyclose // there is none
	require.NoError(t, err)
}

func TestSteal(*testing.T) { engine.NewPool(1).Steal() }

func TestCount(t *testing.T) {
	p := engine.NewPool(4)
	done := make(chan bool)
	go func() {
		for i := range 100 {
			p.Mark(i)
		}
		close(done)
	}()
	for range 100 {
		p.Count()
	}
	<-done
}

func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	_, err = net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the engine's control socket: %v", err)
	}
}

func TestHang(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	_, err := ask(ctx, start(t, "hang"))
	require.NoError(t, err)
}

func TestTokenSoon(t *testing.T) {
	addr := start(t, "hang")
	got := make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { s, _ := ask(ctx, addr); got <- s }()
	select {
	case <-got:
	case <-time.After(300 * time.Millisecond):
		t.Fatal("timed out waiting for the first token")
	}
}

func TestDrain(t *testing.T) {
	require.Eventually(t, func() bool { return engine.NewPool(3).Count() == 1 }, 200*time.Millisecond, 20*time.Millisecond, "the pool drains")
}

func TestLatency(t *testing.T) {
	addr := start(t, "")
	begin := time.Now()
	if _, err := ask(t.Context(), addr); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > time.Microsecond {
		t.Errorf("the request took %v, the limit is 1µs", d)
	}
}

func TestTokens(t *testing.T) {
	_, err := ask(t.Context(), start(t, ""))
	require.NoError(t, err)
	require.Equal(t, []int{5, 9, 12}, []int{5, 9, 11}, "tokens of 'The lighthouse'")
}

func TestLogprobs(t *testing.T) { assert.InDelta(t, -1.25, -1.31, 0.01, "logprob of token 3") }

func TestTiny(t *testing.T) {
	b, err := os.ReadFile("testdata/tiny.gguf")
	if err != nil {
		t.Fatal(err)
	}
	assert.NotEmpty(t, b)
}

func TestGolden(t *testing.T) {
	f, err := os.Open(filepath.Join("testdata", "golden", "greedy.json"))
	require.NoError(t, err)
	_ = f.Close()
}

func TestAnswer(t *testing.T) {
	_, err := net.Dial("tcp", "pushgateway.example.org:9091")
	t.Logf("metrics are not pushed: %v", err)
	text, err := ask(t.Context(), start(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	if text != "The lighthouse keeper" {
		t.Errorf("text %q, wanted %q", text, "The lighthouse keeper")
	}
}

func TestMessage(t *testing.T) {
	_, err := net.Dial("tcp", "203.0.113.8:443")
	if err == nil || !strings.Contains(err.Error(), "no route") {
		t.Errorf("Dial error = %q, want one that contains %q", err, "no route")
	}
}

func TestListModels(t *testing.T) {
	r, err := http.Get("http://" + start(t, "") + "/v2/models")
	require.NoError(t, err)
	_ = r.Body.Close()
	if r.StatusCode != http.StatusNotFound {
		t.Errorf("GET /v2/models: status = %d, want %d", r.StatusCode, http.StatusNotFound)
	}
}

func TestErrorText(t *testing.T) {
	_, err := net.Dial("tcp", "203.0.113.8:443")
	gotest.ErrorContains(t, err, "registry.example.com")
}

func TestTable(*testing.T) {
	want := []string{"a", "b"}
	for i := range 3 {
		_ = want[i]
	}
}

func TestBackground(t *testing.T) {
	defer goleak.VerifyNone(t)
	engine.Background()
}

func TestRestart(t *testing.T) {
	addr := unused(t)
	s := &engine.Server{}
	go func() { _ = s.Serve(addr) }()
	time.Sleep(100 * time.Millisecond)
	s.Stop()
	t.Log("the server has stopped")
	errc := make(chan error, 1)
	go func() { errc <- s.Serve(addr) }()
	select {
	case err := <-errc:
		t.Fatalf("restart: %v", err)
	case <-time.After(time.Second):
	}
}

func TestDescriptors(t *testing.T) {
	before, _ := os.ReadDir("/proc/self/fd")
	for range 4 {
		f, _ := os.Open("/proc/self/maps")
		t.Cleanup(func() { _ = f.Close() })
	}
	after, _ := os.ReadDir("/proc/self/fd")
	if n := len(after) - len(before); n > 0 {
		t.Errorf("%d file descriptors leaked", n)
	}
}

func TestSpill(t *testing.T) {
	_, err := ask(t.Context(), start(t, "spill", "SERVED_SPILL="+full(t)))
	require.NoError(t, err)
}

func TestTrace(t *testing.T) {
	if err := os.WriteFile(filepath.Join(full(t), "trace.json"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatalf("write the trace: %v", err)
	}
}

func TestFixedPort(t *testing.T) { startAt(t, "127.0.0.1:8741", "") }

func TestMetricsPort(t *testing.T) {
	_, err := net.Listen("tcp", "127.0.0.1:8741")
	require.NoError(t, err, "metrics")
}
