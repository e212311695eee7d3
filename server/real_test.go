package server_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/gguf"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

// real is a server of the suite: the same cases run on each that is installed.
type real struct {
	protocol server.Protocol
	column   string // of the table in docs/servers.md
	open     func(t *testing.T) server.Opener
}

var reals = []real{
	{server.ProtocolEnginetest, "enginetest serve", func(t *testing.T) server.Opener {
		t.Helper()
		inPath(t, enginetestDir(t))
		return server.Enginetest()
	}},
	{server.ProtocolLlamaCpp, "llama-server", func(t *testing.T) server.Opener {
		t.Helper()
		installed(t, "llama-server")
		return server.LlamaCpp(bundledGGUF(t), "--parallel", "4", "--ctx-size", "4096", "--threads", "1",
			"--threads-batch", "1", "--cache-ram", "0")
	}},
	{server.ProtocolOllama, "Ollama", func(t *testing.T) server.Opener {
		t.Helper()
		installed(t, "ollama")
		return server.Ollama(bundledGGUF(t)).With(server.Env("OLLAMA_MODELS="+t.TempDir(), "HOME="+t.TempDir()),
			server.ModelTemplate(ollamaTemplate))
	}},
}

// ollamaTemplate is the bundled model's chat template in Ollama's language.
const ollamaTemplate = `{{ range .Messages }}{{ if eq .Role "user" }}Q: {{ .Content }}
A:{{ else if eq .Role "assistant" }} {{ .Content }}<|eos|>
{{ end }}{{ end }}`

// built is the folder with the enginetest command, once a test needed it.
var built string

func enginetestDir(t *testing.T) string {
	t.Helper()
	if built != "" {
		return built
	}
	if _, err := os.Stat("../cmd/enginetest/main.go"); err != nil {
		t.Skipf("there are no sources to build `enginetest serve` from: %v", err)
	}
	dir, err := os.MkdirTemp("", "et")
	require.NoError(t, err)
	built = dir
	out, err := exec.Command("go", "build", "-o", dir, "github.com/enginetest/enginetest/cmd/enginetest").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

func inPath(t *testing.T, dir string) {
	t.Helper()
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

func installed(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%v; docs/servers.md says how it is installed", err)
	}
}

// bundledGGUF is the bundled model as llama.cpp reads it.
func bundledGGUF(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundled.gguf")
	require.NoError(t, gguf.Write(path, fixtures.Bundled()))
	return path
}

func TestRealServers(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: starts real servers")
	}
	for _, r := range reals {
		t.Run(r.column, func(t *testing.T) {
			s, err := r.open(t).With(server.LogDir(t.ArtifactDir())).Start(within(t))
			require.NoError(t, err)
			defer s.Stop(within(t))
			require.Equal(t, r.protocol, s.Protocol())
			ran := runSuite(t, &suite{Server: s})
			report := s.Stop(within(t))
			t.Logf("\n%s", report)
			require.NoError(t, report.Err())
			t.Logf("the table of docs/servers.md: %v", ran)
			for verb, cell := range ran {
				require.Equal(t, documented(t, r.column, verb, cell), cell, "docs/servers.md: %s of %s", verb, r.column)
			}
		})
	}
}

// notRun marks what no test has shown yet.
const notRun = "not run"

// A llama-server with --embeddings has vectors, and answers no completions then.
func TestLlamaCppEmbeddings(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: starts a real server")
	}
	installed(t, "llama-server")
	s := started(t, server.LlamaCpp(bundledGGUF(t), "--embeddings", "--pooling", "mean", "--parallel", "1", "--threads",
		"1", "--threads-batch", "1"))
	v, err := s.Embed(within(t), "The lighthouse", "2+3=", "The lighthouse")
	require.NoError(t, err)
	require.Len(t, v, 3)
	require.Len(t, v[0], 256, "the bundled model's width")
	require.InDeltaSlice(t, v[0], v[2], 1e-5)
	require.NotEqual(t, v[0], v[1])
	require.NoError(t, s.Stop(within(t)).Err())
}

// TestEnginetestEmbeds asks `enginetest serve` for vectors and scores, with a model for it.
func TestEnginetestEmbeds(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: starts a real server")
	}
	reals[0].open(t) // builds the program and puts it into PATH
	require.Equal(t, server.ProtocolEnginetest, reals[0].protocol)
	s := started(t, server.Enginetest("--task", "embed", "--pooling", "mean", "--device", "cpu"))
	v, err := s.Embed(within(t), "The lighthouse", "2+3=", "The lighthouse")
	require.NoError(t, err)
	require.Len(t, v, 3)
	require.InDeltaSlice(t, v[0], v[2], 1e-5)
	require.NotEqual(t, v[0], v[1])
	scores, err := s.Score(within(t), "The lighthouse", "2+3=", "The lighthouse")
	require.NoError(t, err)
	require.InDelta(t, 1, scores[1], 1e-5)
	require.Less(t, scores[0], scores[1])
	_, err = s.Generate(within(t), llm.Request{Prompt: "The lighthouse"})
	var refused *server.APIError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "unsupported_task", refused.Code)
	require.NoError(t, s.Stop(within(t)).Err())

	dir := fixtures.Checkpoint(t, fixtures.Spec{Architecture: fixtures.Qwen2Classifier, Tokenizer: true, Labels: 3})
	s = started(t, server.Enginetest("--model", dir, "--device", "cpu"))
	classes, err := s.Classify(within(t), "The lighthouse")
	require.NoError(t, err)
	require.Len(t, classes[0], 3)
	require.NoError(t, s.Stop(within(t)).Err())
}

// documented is a cell of the table in docs/servers.md; cell itself where there is no
// documentation.
func documented(t *testing.T, column, row, cell string) string {
	t.Helper()
	b, err := os.ReadFile("../docs/servers.md")
	if err != nil {
		t.Logf("no documentation here: %v", err)
		return cell
	}
	var header []string
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(line, "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if slices.Contains(cells, column) {
			header = cells
		}
		if len(cells) == len(header) && len(cells) > 2 && cells[1] == row {
			if want := cells[slices.Index(header, column)]; want != notRun {
				return want
			}
			return cell
		}
	}
	t.Errorf("docs/servers.md has no row %q with a column %q", row, column)
	return ""
}
