package server_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/internal/procfs"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

// realOllama starts Ollama with the bundled model.
func realOllama(t *testing.T) *server.Server {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts a real server")
	}
	i := slices.IndexFunc(reals, func(r real) bool { return r.protocol == server.ProtocolOllama })
	return started(t, reals[i].open(t))
}

// ollamaRunner returns the process in which Ollama runs its model.
func ollamaRunner(t *testing.T, s *server.Server) int {
	t.Helper()
	if _, err := s.Generate(within(t), llm.Request{Prompt: "2+3="}); err != nil {
		t.Fatal(err)
	}
	pids := s.PIDs()
	require.Len(t, pids, 2, "the server and the runner of its one model")
	require.Contains(t, procfs.CommandLine(pids[1]), "ollama runner")
	return pids[1]
}

func TestOllamaUnload(t *testing.T) {
	s := realOllama(t)
	runner := ollamaRunner(t, s)
	st, err := s.Stats(within(t))
	require.NoError(t, err)
	require.Len(t, st.Loaded, 1)
	require.Equal(t, s.Model()+":latest", st.Loaded[0].Name)
	require.Positive(t, st.Loaded[0].Bytes)
	require.GreaterOrEqual(t, st.Loaded[0].Bytes, st.Loaded[0].DeviceBytes)

	// A request that does not end keeps the model: the unload is not believed. One that the runner
	// has computed before it is stopped keeps nothing.
	for attempt := 0; !refusesUnload(t, s, runner); attempt++ {
		require.Less(t, attempt, 100, "no request was in flight when the runner stopped")
		runner = ollamaRunner(t, s)
	}

	require.NoError(t, s.Unload(within(t)))
	st2, alive := procfs.StatOf(runner)
	require.False(t, alive && !st2.Dead(), "the runner's process is gone when Unload returns")
	st, err = s.Stats(within(t))
	require.NoError(t, err)
	require.Empty(t, st.Loaded)
	require.Len(t, s.PIDs(), 1)
	require.NotEqual(t, runner, ollamaRunner(t, s), "the next request loads it again")
	require.NoError(t, s.Stop(within(t)).Err())
}

// refusesUnload stops the runner in a request and reports whether that keeps the model; it does not
// when the request was over before.
func refusesUnload(t *testing.T, s *server.Server, runner int) bool {
	t.Helper()
	answer := s.Stream(within(t), llm.Request{
		Prompt: story, Sampling: llm.SamplingParams{MaxTokens: 64, Temperature: 1.5},
	})
	next, stop := iter.Pull2(answer)
	defer stop()
	_, err, more := next()
	require.NoError(t, err)
	require.True(t, more)
	require.NoError(t, syscall.Kill(runner, syscall.SIGSTOP))
	for limit := 200 * time.Millisecond; ; limit *= 2 { // more, when the first answer took longer
		ctx, cancel := context.WithTimeout(within(t), limit)
		err := s.Unload(ctx)
		cancel()
		if err == nil {
			return false
		}
		if strings.Contains(err.Error(), "bundled:latest is still loaded, with ") {
			break
		}
		require.Less(t, limit, long, err.Error())
	}
	require.NoError(t, syscall.Kill(runner, syscall.SIGCONT))
	for more {
		_, err, more = next()
		require.NoError(t, err)
	}
	return true
}

// The runner outlives a server that is killed, and would hold the model for ever.
func TestOllamaRunnerSurvives(t *testing.T) {
	s := realOllama(t)
	runner := ollamaRunner(t, s)
	require.NoError(t, syscall.Kill(s.PIDs()[0], syscall.SIGKILL))
	<-s.Done()
	err := s.Stop(within(t)).Err()
	require.ErrorContains(t, err, "was killed by SIGKILL")
	require.ErrorContains(t, err, fmt.Sprintf("outlived the command, ended on the signal: process %d (ollama runner ", runner))
	st, alive := procfs.StatOf(runner)
	require.False(t, alive && !st.Dead())
}

func TestOllamaPull(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: starts a real server")
	}
	installed(t, "ollama")
	reg := newRegistry(t)
	t.Run("missing", func(t *testing.T) {
		require.ErrorContains(t, emptyOllama(t, long).Pull(within(t), reg.model()+"-missing"), "pull model manifest")
	})
	t.Run("stalled", func(t *testing.T) {
		reg.stall.Store(true)
		defer reg.stall.Store(false)
		for stall := 500 * time.Millisecond; ; stall *= 2 { // more, when the first bytes took longer
			s := emptyOllama(t, stall)
			err := s.Pull(within(t), reg.model())
			require.ErrorContains(t, err, "has stalled: its last news for "+stall.String())
			require.NoError(t, s.Stop(within(t)).Err())
			if strings.Contains(err.Error(), fmt.Sprintf("%d of %d bytes", len(reg.gguf)/2, len(reg.gguf))) {
				break
			}
			require.Less(t, stall, long, err.Error())
		}
	})
	t.Run("slow", func(t *testing.T) {
		for stall := 500 * time.Millisecond; ; stall *= 2 { // more, when the machine paused for longer
			s := emptyOllama(t, stall)
			reg.pause.Store(int64(stall / 10)) // 25 times
			if err := s.Pull(within(t), reg.model()); err != nil {
				require.Less(t, stall, long, err.Error())
				continue
			}
			require.Greater(t, reg.took.Load(), int64(stall), "it took longer than the stall timeout, and was only slow")
			a, err := server.Attach(s.URL()).With(server.Speaks(server.ProtocolOllama), server.Model(reg.name())).
				Start(within(t))
			require.NoError(t, err)
			require.Equal(t, "5", ask(t, a, "2+3="), "the model that was pulled")
			require.NoError(t, a.Stop(within(t)).Err())
			require.NoError(t, s.Stop(within(t)).Err())
			return
		}
	})
}

// emptyOllama starts Ollama without a model.
func emptyOllama(t *testing.T, stall time.Duration) *server.Server {
	t.Helper()
	return started(t, server.Ollama("none").With(server.Env("OLLAMA_MODELS="+t.TempDir(), "HOME="+t.TempDir()),
		server.StallTimeout(stall)))
}

// registry serves one model of Ollama's, as slowly as it is told to.
type registry struct {
	*httptest.Server
	gguf, config []byte
	stall        atomic.Bool  // after half of the model
	pause        atomic.Int64 // between two of 25 parts
	took         atomic.Int64
}

func newRegistry(t *testing.T) *registry {
	t.Helper()
	gguf, err := os.ReadFile(bundledGGUF(t))
	require.NoError(t, err)
	reg := &registry{gguf: gguf, config: []byte(`{"model_format":"gguf","model_family":"llama"}`)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/library/m/manifests/latest", func(w http.ResponseWriter, _ *http.Request) {
		layer := func(kind string, b []byte) map[string]any {
			return map[string]any{"mediaType": "application/vnd." + kind, "digest": digest(b), "size": len(b)}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"schemaVersion": 2, "config": layer("docker.container.image.v1+json", reg.config),
			"layers": []any{layer("ollama.image.model", reg.gguf)},
		})
	})
	mux.HandleFunc("HEAD /v2/library/m/blobs/{digest}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(reg.blob(r.PathValue("digest")))))
	})
	mux.HandleFunc("GET /v2/library/m/blobs/{digest}", func(w http.ResponseWriter, r *http.Request) {
		elsewhere := strings.Replace(reg.URL, "127.0.0.1", "localhost", 1) // it follows redirects itself only to others
		http.Redirect(w, r, elsewhere+"/data/"+r.PathValue("digest"), http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("GET /data/{digest}", reg.data)
	reg.Server = httptest.NewServer(mux)
	t.Cleanup(reg.Close)
	t.Cleanup(reg.CloseClientConnections)
	return reg
}

func (r *registry) name() string {
	return path.Join(strings.TrimPrefix(r.URL, "http://"), "library", "m")
}
func (r *registry) model() string { return "http://" + r.name() }

func (r *registry) blob(d string) []byte {
	if d == digest(r.gguf) {
		return r.gguf
	}
	return r.config
}

func (r *registry) data(w http.ResponseWriter, req *http.Request) {
	b := r.blob(req.PathValue("digest"))
	from, to := 0, len(b)-1
	_, _ = fmt.Sscanf(req.Header.Get("Range"), "bytes=%d-%d", &from, &to)
	w.Header().Set("Content-Length", strconv.Itoa(to+1-from))
	w.WriteHeader(http.StatusPartialContent)
	began, flush := time.Now(), http.NewResponseController(w)
	if len(b) == len(r.gguf) && r.stall.Load() {
		if from < len(b)/2 {
			_, _ = w.Write(b[from : len(b)/2])
			_ = flush.Flush()
		}
		<-req.Context().Done()
		return
	}
	for part := range slices.Chunk(b[from:to+1], max(1, len(b)/25)) {
		select {
		case <-time.After(time.Duration(r.pause.Load())):
		case <-req.Context().Done():
			return
		}
		_, _ = w.Write(part)
		_ = flush.Flush()
	}
	if len(b) == len(r.gguf) {
		r.took.Store(int64(time.Since(began)))
	}
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
