// Package server_test shows servers as engines: a server of one's own in a fixture, one server for
// a whole package, for a testify suite, for a benchmark and for a fuzz test.
//
//	go test ./examples/server -v
//	SERVER='llama-server -m model.gguf --port {port}' go test ./examples/server -v
package server_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

// open is all that a server of one's own needs: its command, and when it is ready.
func open() server.Opener {
	command := []string{"enginetest", "serve", "--port", server.Port}
	if own := os.Getenv("SERVER"); own != "" {
		command = strings.Fields(own)
	}
	return server.Command(command[0], command[1:]...).With(server.ReadyHTTP("/health"))
}

// shared is one server for the whole package; nil when there is none to start.
var shared *server.Server

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) (code int) {
	ctx := context.Background()
	remove, err := install()
	if errors.Is(err, os.ErrNotExist) {
		fmt.Println("examples/server: nothing to start:", err)
		return m.Run()
	}
	defer remove()
	if shared, err = open().Start(ctx); err != nil {
		fmt.Println(err)
		return 1
	}
	code = m.Run()
	if err := shared.Stop(ctx).Err(); err != nil {
		fmt.Println(err)
		return 1
	}
	return code
}

// install builds enginetest into a folder in PATH, unless SERVER names another server.
func install() (remove func(), err error) {
	if os.Getenv("SERVER") != "" {
		return func() {}, nil
	}
	if _, err := os.Stat("../../cmd/enginetest/main.go"); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return nil, err
	}
	if out, err := exec.Command("go", "build", "-o", dir,
		"github.com/enginetest/enginetest/cmd/enginetest").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return func() { _ = os.RemoveAll(dir) }, os.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

func needsServer(tb testing.TB) {
	tb.Helper()
	if shared == nil {
		tb.Skip("SERVER names no command, and there are no sources to build one from")
	}
}

// TestServer has a server of its own: in the end no process, no connection, no file of it is left,
// or the test fails.
func TestServer(t *testing.T) {
	needsServer(t)
	r := harness.Start(t, open().With(server.For(t)))
	a := r.GenerateGreedy("The lighthouse", 16)
	b := r.GenerateGreedy("The lighthouse", 16)
	require.Equal(t, a, b)
}

// TestShared uses the package's server. Nothing of it is owned here, so the proof is that it is as
// idle as before.
func TestShared(t *testing.T) {
	needsServer(t)
	r := harness.Start(t, server.Attach(shared.URL()))
	require.NotEmpty(t, r.Generate(llm.Request{Prompt: "2+3="})[0].Completions[0].Text)
}

// TestForgotten shows what a developer sees when an engine ends without its server.
func TestForgotten(t *testing.T) {
	needsServer(t)
	var s *server.Server
	fixture, err := harness.Open(t.Context(), func(ctx context.Context) (_ *forgetful, err error) {
		s, err = open().Start(ctx)
		return &forgetful{s}, err
	}, harness.TeardownTimeout(4*time.Second))
	require.NoError(t, err)
	left := fixture.Close(t.Context()).Err()
	t.Logf("what a developer sees:\n%v", left)
	require.ErrorContains(t, left, "is still there; it was killed")
	require.Error(t, s.Stop(t.Context()).Err(), "it was killed")
}

// forgetful is an engine that ends without its server.
type forgetful struct{ *server.Server }

func (forgetful) Shutdown(context.Context) error { return nil }

func BenchmarkGenerate(b *testing.B) {
	needsServer(b)
	for b.Loop() {
		if _, err := shared.Generate(b.Context(), llm.Request{Prompt: "The lighthouse"}); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzPrompt asks for whatever the fuzzer makes up: the server may refuse a prompt, and must live
// on.
func FuzzPrompt(f *testing.F) {
	f.Add("The lighthouse")
	f.Add("\x00\xff{\"")
	f.Fuzz(func(t *testing.T, prompt string) {
		needsServer(t)
		_, err := shared.Generate(t.Context(), llm.Request{Prompt: prompt, Sampling: llm.SamplingParams{MaxTokens: 2}})
		var refused *server.APIError
		if err != nil && !errors.As(err, &refused) {
			t.Error(err)
		}
	})
}
