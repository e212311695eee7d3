package conformance_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// documented returns the Go file that docs/conformance.md shows under a name.
func documented(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile("../docs/conformance.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(page), "<!-- "+name+" -->\n```go\n")
	require.True(t, ok, name)
	source, _, ok := strings.Cut(rest, "```\n")
	require.True(t, ok, name)
	return source
}

// outside makes a module of its own that has the documented engine, with some of its text replaced.
func outside(t *testing.T, replaced ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	engine := documented(t, "parrot.go")
	for i := 0; i < len(replaced); i += 2 {
		require.Equal(t, 1, strings.Count(engine, replaced[i]), "%q", replaced[i])
		engine = strings.Replace(engine, replaced[i], replaced[i+1], 1)
	}
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	sums, err := os.ReadFile("../go.sum")
	require.NoError(t, err)
	for name, text := range map[string]string{
		"parrot.go": engine, "parrot_test.go": documented(t, "parrot_test.go"), "go.sum": string(sums),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	const module = "github.com/enginetest/enginetest"
	for _, args := range [][]string{
		{"mod", "init", "example.com/parrot"},
		{"mod", "edit", "-require=" + module + "@v0.0.0", "-replace=" + module + "=" + root},
	} {
		out, err := goCommand(t, dir, args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return dir
}

// goCommand is the go command in a module of its own. It downloads nothing.
func goCommand(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off", "PWD="+dir, "ENGINETEST_VERDICTS=")
	return cmd
}

// outcome is what a go test of a module says of each test: pass, fail or skip.
func outcome(t *testing.T, dir string) (tests map[string]string, output string) {
	t.Helper()
	cmd := goCommand(t, dir, "test", "-json", "-count=1", "./...")
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err := cmd.Run()
	var exit *exec.ExitError
	require.True(t, err == nil || errors.As(err, &exit), "%v", err)
	tests = map[string]string{}
	var text strings.Builder
	for events := json.NewDecoder(&out); ; {
		var e struct{ Action, Test, Output string }
		if err := events.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err, "%s", log.String())
		}
		text.WriteString(e.Output)
		if e.Test != "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip") {
			tests[e.Test] = e.Action
		}
	}
	return tests, text.String() + log.String()
}

// drawn is a sampler that doesn't know of seeds.
const drawn = `func drawn(q llm.Request) uint32 {
	if q.Sampling.Temperature > 0 {
		return rand.Uint32()
	}
	return 0
}

`

// TestOutside runs the documented engine and its test as a newcomer would: in a module outside of
// this repository. With a lie in the engine, the same test fails where that is checked.
func TestOutside(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a module")
	}
	for _, c := range []struct {
		name     string
		replaced []string
		fails    string
	}{
		{name: "as documented"},
		{
			"takes stop strings and ignores them",
			[]string{"rest.MaxTokens = 0", "rest.MaxTokens, rest.Stop = 0, nil"},
			"stops/strings",
		},
		{
			"takes seeds and ignores them",
			[]string{
				"rest.MaxTokens = 0", "rest.MaxTokens, rest.Temperature, rest.Seed = 0, 0, nil",
				"h.Sum32() % uint32(len(words))", "(h.Sum32() + drawn(q)) % uint32(len(words))",
				"func check(", drawn + "func check(", `"iter"`, "\"iter\"\n\t\"math/rand/v2\"",
			},
			"same_answer/seeds_repeat",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.fails != "" && os.Getenv("ENGINETEST_LONG") == "" {
				t.Skip("another build of the module: ENGINETEST_LONG=1")
			}
			tests, output := outcome(t, outside(t, c.replaced...))
			if c.fails == "" {
				assert.Equal(t, "pass", tests["TestConformance"], "%s", output)
			} else {
				assert.Equal(t, "fail", tests["TestConformance/"+c.fails], "%s", output)
			}
			passed := 0
			for name, action := range tests {
				if action == "pass" && strings.Count(name, "/") == 2 {
					passed++
				}
			}
			assert.GreaterOrEqual(t, passed, 20, "properties that pass")
		})
	}
}

// TestDocumentedEngine: the page shows the engine of this package's example.
func TestDocumentedEngine(t *testing.T) {
	_, engine, ok := strings.Cut(documented(t, "parrot.go"), "\n)\n\n")
	require.True(t, ok)
	lines := 0
	for line := range strings.Lines(engine) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			lines++
		}
	}
	assert.LessOrEqual(t, lines, 60)
	example, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	assert.Contains(t, string(example), engine)
}
