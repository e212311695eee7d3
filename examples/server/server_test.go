// Package server_test holds somebody else's engine to the same proof: any server with OpenAI's API,
// in a process of its own. [Server] has the two methods that a fixture needs, and one more, so that
// the process is looked for in the end.
//
//	go test ./examples/server -v
//	SERVER='llama-server -m model.gguf --port 8080' URL=http://127.0.0.1:8080 go test ./examples/server -v
package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/runner"
)

// Server is an engine that runs elsewhere.
type Server struct {
	cmd  *exec.Cmd
	stop context.CancelFunc
	http http.Client
	url  string
}

// start runs a command and waits until it is ready. A server that came to nothing is returned with
// the error: the fixture shuts it down.
func start(ctx context.Context, command []string, url string) (*Server, error) {
	s := &Server{url: url, http: http.Client{Transport: &http.Transport{}}}
	var life context.Context
	life, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.cmd = exec.CommandContext(life, command[0], command[1:]...)
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(syscall.SIGTERM) }
	s.cmd.WaitDelay = 10 * time.Second // from SIGTERM to SIGKILL
	if err := s.cmd.Start(); err != nil {
		s.stop()
		return nil, err
	}
	for ctx.Err() == nil {
		if res, err := s.http.Get(url + "/health"); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return s, nil
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return s, fmt.Errorf("%s is not ready: %w", command[0], context.Cause(ctx))
}

// Generate sends one request after the other.
func (s *Server) Generate(ctx context.Context, reqs ...engine.Request) ([]engine.Output, error) {
	outs := make([]engine.Output, len(reqs))
	for i, r := range reqs {
		body, err := json.Marshal(map[string]any{"prompt": r.Prompt, "max_tokens": r.Sampling.MaxTokens, "temperature": r.Sampling.Temperature})
		if err != nil {
			return nil, err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/completions", bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := s.http.Do(req)
		if err != nil {
			return nil, err
		}
		var answer struct {
			Choices []struct {
				Text   string
				Reason engine.FinishReason `json:"finish_reason"`
			}
		}
		err = json.NewDecoder(res.Body).Decode(&answer)
		res.Body.Close()
		if err != nil || len(answer.Choices) != 1 {
			return nil, errors.Join(fmt.Errorf("request %d: %s with %d choices", i, res.Status, len(answer.Choices)), err)
		}
		c := answer.Choices[0]
		outs[i] = engine.Output{Prompt: r.Prompt, Completions: []engine.Completion{{Text: c.Text, FinishReason: c.Reason}}}
	}
	return outs, nil
}

// Shutdown asks the server to end, and waits until it has.
func (s *Server) Shutdown(context.Context) error {
	s.stop()
	s.http.CloseIdleConnections()
	if err := s.cmd.Wait(); s.cmd.ProcessState == nil || !s.cmd.ProcessState.Success() {
		return err
	}
	return nil
}

// PIDs makes it a [harness.ProcessLister].
func (s *Server) PIDs() []int { return []int{s.cmd.Process.Pid} }

// server starts $SERVER, or the bundled engine behind `enginetest serve`.
func server(t *testing.T) func(context.Context) (*Server, error) {
	t.Helper()
	command, url := strings.Fields(os.Getenv("SERVER")), os.Getenv("URL")
	if len(command) == 0 {
		if _, err := os.Stat("../../cmd/enginetest/main.go"); err != nil {
			t.Skipf("SERVER names no command, and there are no sources to build one from: %v", err)
		}
		exe := filepath.Join(t.TempDir(), "enginetest")
		out, err := exec.Command("go", "build", "-o", exe, "github.com/enginetest/enginetest/cmd/enginetest").CombinedOutput()
		require.NoError(t, err, "%s", out)
		free, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		addr := free.Addr().(*net.TCPAddr)
		require.NoError(t, free.Close())
		command, url = []string{exe, "serve", "--port", strconv.Itoa(addr.Port)}, "http://"+addr.String()
	}
	return func(ctx context.Context) (*Server, error) { return start(ctx, command, url) }
}

func TestServer(t *testing.T) {
	open := server(t)

	t.Run("greedy is deterministic", func(t *testing.T) {
		r := runner.Start(t, open)
		a := r.GenerateGreedy("The lighthouse", 16)
		b := r.GenerateGreedy("The lighthouse", 16)
		require.Equal(t, a, b)
	}) // SIGTERM; then no process, no connection, and the GPUs as they were, or the test fails

	t.Run("a forgotten one is named", func(t *testing.T) {
		var s *Server
		fixture, err := runner.Open(t.Context(), func(ctx context.Context) (_ *forgetful, err error) {
			s, err = open(ctx)
			return &forgetful{s}, err
		}, runner.TeardownTimeout(4*time.Second))
		require.NoError(t, err)
		left := fixture.Close(t.Context()).Err()
		t.Logf("what a developer sees:\n%v", left)
		require.ErrorContains(t, left, "is still there; it was killed")
		require.Error(t, s.Shutdown(t.Context()), "it was killed")
	})
}

// forgetful is an engine that ends without its server.
type forgetful struct{ *Server }

func (forgetful) Shutdown(context.Context) error { return nil }
