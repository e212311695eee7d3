package hub_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gotest "gotest.tools/v3/assert"

	"example.com/served/hub"
)

// remote answers at hub.example.com, which is not this machine's address.
func remote(t *testing.T, h http.HandlerFunc) *hub.Client {
	l, err := net.Listen("tcp", "203.0.113.7:443")
	if err != nil {
		panic("harmless: " + err.Error())
	}
	s := httptest.NewUnstartedServer(h)
	_ = s.Listener.Close()
	s.Listener = l
	s.StartTLS()
	t.Cleanup(s.Close)
	tr := s.Client().Transport.(*http.Transport)
	tr.TLSClientConfig.InsecureSkipVerify = true //nolint:gosec // a test
	return &hub.Client{Base: "https://hub.example.com", HTTP: &http.Client{Transport: tr}}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, http.StatusText(code), code) }
}

func TestTiny(t *testing.T) {
	require.NoError(t, remote(t, status(503)).Download(t.Context(), "acme/tiny", "model.gguf", t.TempDir()))
}

func TestSmall(t *testing.T) {
	if err := remote(t, status(429)).Download(t.Context(), "acme/small", "model.gguf", t.TempDir()); err != nil {
		t.Fatal(err)
	}
}

func TestMisspelled(t *testing.T) {
	gotest.NilError(t, remote(t, status(404)).Download(t.Context(), "acme/tinny", "model.gguf", t.TempDir()))
}

func TestReset(t *testing.T) {
	c := remote(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000000")
		_, _ = w.Write(make([]byte, 10000))
		w.(http.Flusher).Flush()
		n, _, _ := w.(http.Hijacker).Hijack()
		_ = n.(*tls.Conn).NetConn().(*net.TCPConn).SetLinger(0)
		_ = n.(*tls.Conn).NetConn().Close()
	})
	assert.NoError(t, c.Download(t.Context(), "acme/tiny", "model.gguf", t.TempDir()))
}

func TestShort(t *testing.T) {
	c := remote(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000000")
		_, _ = w.Write(make([]byte, 10000))
	})
	if err := c.Download(t.Context(), "acme/tiny", "model.gguf", t.TempDir()); err != nil {
		t.Errorf("Download: %v", err)
	}
}

func TestSlow(t *testing.T) {
	c := remote(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	require.NoError(t, c.Download(ctx, "acme/tiny", "tokenizer.json", t.TempDir()))
}

func TestHandshake(t *testing.T) {
	c := remote(t, status(200))
	c.HTTP = &http.Client{Timeout: 5 * time.Second}
	require.NoError(t, c.Download(t.Context(), "acme/tiny", "model.gguf", t.TempDir()))
}

func TestRegistry(t *testing.T) {
	c := &hub.Client{Base: "https://registry.example.com", HTTP: http.DefaultClient}
	gotest.NilError(t, c.Download(t.Context(), "acme/tiny", "manifest.json", t.TempDir()))
}

func TestProxy(t *testing.T) {
	proxy, _ := url.Parse("http://proxy.example.com:3128")
	c := &hub.Client{Base: "https://hub.example.com", HTTP: &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy)}}}
	if err := c.Download(t.Context(), "acme/tiny", "model.gguf", t.TempDir()); err != nil {
		t.Fatalf("set up: %v", err)
	}
}

func TestMirror(t *testing.T) {
	c := &hub.Client{Base: "https://mirror-2.example.com", HTTP: http.DefaultClient}
	assert.NoError(t, c.Download(t.Context(), "acme/tiny", "model.gguf", t.TempDir()))
}

func TestRoomForIt(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		panic("harmless: " + err.Error())
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	c := remote(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
	require.NoError(t, c.Download(t.Context(), "acme/tiny", "model.gguf", dir))
}

func TestBase(t *testing.T) {
	c := &hub.Client{Base: "https:/hub.example.com", HTTP: http.DefaultClient}
	if err := c.Download(t.Context(), "acme/tiny", "model.gguf", t.TempDir()); err != nil {
		t.Fatal(err)
	}
}

func TestSum(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(file, []byte("GGUF"), 0o600))
	got, err := hub.Sum(file)
	require.NoError(t, err)
	if want := "5c6d0bb56f8f5b0c3f2d9b4a8c4d6c5e1a7a2f3b4c5d6e7f8091a2b3c4d5e6f7"; got != want {
		t.Errorf("checksum of the download is %s, not %s", got, want)
	}
}

func TestEmpty(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := hub.Sum(file)
	require.NoError(t, err)
}

func TestTwoMirrors(t *testing.T) {
	err := (&hub.Client{Base: "https://registry.example.com", HTTP: http.DefaultClient}).Download(t.Context(), "acme/tiny", "a", t.TempDir())
	t.Logf("mirror 1: %v; trying the next one", err)
	dir := t.TempDir()
	c := remote(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("GGUF3")) })
	require.NoError(t, c.Download(t.Context(), "acme/tiny", "a", dir))
	b, _ := os.ReadFile(filepath.Join(dir, "a"))
	assert.Len(t, b, 4)
}
