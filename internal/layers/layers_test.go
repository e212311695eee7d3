// Package layers holds the test that keeps imports pointing downwards.
package layers

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/enginetest/enginetest/"

// layers lists, from the top down, which packages of this module a package's code may import. A
// name covers the packages below it. The first row that covers a package counts.
var layers = []struct {
	pkg     string
	imports []string // besides its own tree
}{
	{"examples", []string{"*"}},
	{"cmd", []string{"*"}},
	{"conformance", []string{"*"}},
	{"runner", []string{"harness", "engine", "gpuwait", "leakcheck", "llm", "ledger", "verdict"}},
	{"server", []string{"harness", "forkproc", "gpuwait", "leakcheck", "llm", "ledger", "verdict", "internal"}},
	{"harness", []string{"forkproc", "gpuwait", "leakcheck", "llm", "ledger", "verdict", "internal"}},
	{"report", []string{"verdict", "ledger", "internal"}},
	{"forkproc", []string{"verdict", "ledger", "internal"}},
	{"gpuwait", []string{"ledger", "verdict", "internal"}},
	{"leakcheck", []string{"ledger", "verdict", "internal"}},
	{"engine", []string{"cuda", "llm", "ledger", "internal"}},
	{"cuda", []string{"ledger", "internal"}},
	{"fixtures", []string{"llm", "internal"}},
	{"internal/testlog", nil},
	{"internal", []string{"llm", "ledger", "verdict"}},
	{"llm", nil},
	{"ledger", nil},
	{"verdict", []string{"internal/testlog"}},
}

func TestImportsPointDown(t *testing.T) {
	out, err := golist(t, "-f", `{{$p := .ImportPath}}{{range .Imports}}{{$p}} {{.}}{{"\n"}}{{end}}`, module+"...")
	require.NoError(t, err)
	for line := range strings.Lines(out) {
		from, to, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || !strings.HasPrefix(to, module) {
			continue
		}
		from, to = strings.TrimPrefix(from, module), strings.TrimPrefix(to, module)
		row := slices.IndexFunc(layers, func(l struct {
			pkg     string
			imports []string
		},
		) bool {
			return below(from, l.pkg)
		})
		if row < 0 {
			t.Errorf("%s has no row in the table of layers", from)
			continue
		}
		l := layers[row]
		if !below(to, l.pkg) && !slices.ContainsFunc(l.imports, func(p string) bool { return p == "*" || below(to, p) }) {
			t.Errorf("%s imports %s: packages below %s may import only %s", from, to, l.pkg, strings.Join(l.imports, ", "))
		}
	}
}

// TestForeignEngine checks that a suite with an engine of its own links neither the bundled engine,
// nor its kernels, nor cgo where the build has none.
func TestForeignEngine(t *testing.T) {
	out, err := golist(t, "-deps", module+"harness")
	require.NoError(t, err)
	for _, pkg := range strings.Fields(out) {
		for _, banned := range []string{"engine", "cuda", "runner", "fixtures"} {
			if below(strings.TrimPrefix(pkg, module), banned) {
				t.Errorf("harness links %s", pkg)
			}
		}
		if pkg == "runtime/cgo" {
			t.Errorf("harness links runtime/cgo with CGO_ENABLED=0")
		}
	}
}

func below(pkg, top string) bool { return pkg == top || strings.HasPrefix(pkg, top+"/") }

func golist(t *testing.T, args ...string) (string, error) {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("no go command to list imports with: %v", err)
	}
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	return string(out), err
}
