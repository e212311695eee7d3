package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gotest "gotest.tools/v3/assert"

	"example.com/served/engine"
)

func TestBeam(t *testing.T) {
	s := httptest.NewServer(&engine.Handler{})
	defer s.Close()
	r, err := http.Get(s.URL + "/v1/beam")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
}

func TestBeamStatus(t *testing.T) {
	s := httptest.NewServer(&engine.Handler{Recover: true})
	defer s.Close()
	r, err := http.Get(s.URL + "/v1/beam")
	require.NoError(t, err)
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		t.Fatalf("unexpected status: %s", r.Status)
	}
}

func TestParse(t *testing.T) {
	s := httptest.NewServer(&engine.Handler{})
	defer s.Close()
	r, err := http.Get(s.URL + "/v1/models")
	require.NoError(t, err)
	defer r.Body.Close()
	var v map[string]any
	require.NoError(t, json.NewDecoder(r.Body).Decode(&v))
}

func TestStops(t *testing.T) {
	_, err := engine.Generate(t.Context())
	gotest.NilError(t, err)
}

func TestSpillBack(t *testing.T) {
	if err := engine.Restore(t.TempDir()); err != nil {
		t.Fatalf("restore block 3: %v", err)
	}
}

func TestParallel(t *testing.T) {
	t.Parallel()
	t.Setenv("ENGINE_OFFLINE", "1")
}

func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 3 {
		engine.Background()
	}
	time.Sleep(20 * time.Millisecond)
	if n := runtime.NumGoroutine() - before; n > 0 {
		t.Errorf("%d goroutines still running after Close", n)
	}
}

func TestWarmUpCommand(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := exec.CommandContext(ctx, "sleep", "20").Run(); err != nil {
		t.Fatalf("warm-up: %v", err)
	}
}

func TestOwnTLS(t *testing.T) {
	s := httptest.NewTLSServer(&engine.Handler{})
	defer s.Close()
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	_, err := s.Client().Get("https://127.0.0.2:" + port + "/health") //nolint:bodyclose // there is none
	require.NoError(t, err)
}

func TestWorkers(t *testing.T) {
	if err := engine.Workers(2, unused(t)); err != nil {
		t.Fatalf("start 2 workers: %v", err)
	}
}

func TestCompose(t *testing.T) {
	_, err := http.Get("http://engine:8000/v1/models") //nolint:bodyclose // there is none
	require.NoError(t, err)
}

func TestContainer(t *testing.T) {
	_, err := http.Get("http://172.18.0.3:8000/v1/models") //nolint:bodyclose // there is none
	assert.NoError(t, err)
}

func TestSentinel(t *testing.T) {
	_, err := engine.Generate(t.Context())
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Generate() = %v, want %v", err, context.DeadlineExceeded)
	}
}

func TestServerCloses(t *testing.T) {
	s := &http.Server{Addr: "127.0.0.1:0"}
	_ = s.Close()
	if err := s.ListenAndServe(); err != nil {
		t.Fatal("serve:", err)
	}
}

func TestTwoCauses(t *testing.T) {
	_, err := net.Dial("tcp", "203.0.113.8:443")
	assert.NoError(t, err, "push metrics")
	assert.Equal(t, []int{1, 2}, []int{1, 3}, "tokens")
}

func TestTwoErrors(t *testing.T) {
	assert.NoError(t, os.WriteFile(filepath.Join(full(t), "trace"), make([]byte, 1<<20), 0o600))
	_, err := ask(t.Context(), start(t, "nan"))
	assert.NoError(t, err)
}

func TestScratch(t *testing.T) {
	t.Setenv("TMPDIR", full(t))
	dir, err := os.MkdirTemp("", "engine-")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "weights"), make([]byte, 1<<20), 0o600))
}
