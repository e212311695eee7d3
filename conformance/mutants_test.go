package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/conformance"
)

// mutant is a defect that is planted in the bundled engine.
type mutant struct {
	name     string
	property string // that must find it
	test     string // or a package and one of its tests: it must fail and name what is kept
	names    string // what that is
	file     string
	on       string // "child" or "served": where it shows; "" in process
	add      string
	old, new string
}

// mutants reads testdata/mutants.txt.
func mutants(t *testing.T) (list []mutant) {
	t.Helper()
	data, err := os.ReadFile("testdata/mutants.txt")
	require.NoError(t, err)
	for _, text := range strings.Split(string(data), "\n== ")[1:] {
		name, rest, _ := strings.Cut(text, "\n")
		head, rest, _ := strings.Cut(rest, "-- ")
		m := mutant{name: name}
		for line := range strings.Lines(head) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			switch key {
			case "property":
				m.property = value
			case "file":
				m.file = value
			case "test":
				m.test = value
			case "names":
				m.names = value
			case "on":
				m.on = value
			}
		}
		if added, ok := strings.CutPrefix(rest, "append\n"); ok {
			m.add, rest, _ = strings.Cut(added, "-- ")
		}
		kind, rest, _ := strings.Cut(rest, "\n")
		m.old, m.new, _ = strings.Cut(rest, "-- new\n")
		m.new = strings.TrimSuffix(m.new, "\n") // the empty line before the next
		if m.new != "" && !strings.HasSuffix(m.new, "\n") {
			m.new += "\n"
		}
		if kind == "old part" {
			m.old, m.new = strings.TrimSuffix(m.old, "\n"), strings.TrimSuffix(m.new, "\n")
		}
		list = append(list, m)
	}
	return list
}

// plant writes the source files with the mutants in them, and the overlay that names them.
func plant(root, dir string, ms ...mutant) (overlay string, err error) {
	sources := map[string]string{}
	for _, m := range ms {
		path := filepath.Join(root, m.file)
		source, ok := sources[path]
		if !ok {
			data, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			source = string(data)
		}
		if n := strings.Count(source, m.old); n != 1 {
			return "", fmt.Errorf("mutant %q: its old text occurs %d times in %s, want once", m.name, n, m.file)
		}
		sources[path] = strings.Replace(source, m.old, m.new, 1) + m.add
	}
	replace := map[string]string{}
	for path, source := range sources {
		file := filepath.Join(dir, fmt.Sprintf("%d_%s", len(replace), filepath.Base(path)))
		if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
			return "", err
		}
		replace[path] = file
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, data, 0o600)
}

// build makes the program that runs the suite, with mutants in its engine.
func build(t *testing.T, ms ...mutant) (program string) {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("mutants need the go command: %v", err)
	}
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	dir := t.TempDir()
	overlay, err := plant(root, dir, ms...)
	require.NoError(t, err, "the engine has changed where a mutant is planted")
	program = filepath.Join(dir, "subject")
	out, err := exec.Command("go", "build", "-overlay", overlay, "-o", program, "./internal/subject").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// verdicts runs the suite in a program: what became of each property. A program that dies has no
// verdicts.
func verdicts(t *testing.T, program, only, on string) map[string]conformance.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	args := []string{"-limit", "20s", "-only", only}
	if on != "" {
		args = append(args, "-"+on)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Logf("%v: %.2000s", err, log.String())
		return nil
	}
	var report conformance.Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &report))
	byName := map[string]conformance.Result{}
	for _, r := range report.Results {
		byName[r.Property] = r
	}
	return byName
}

func exactly(names ...string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = regexp.QuoteMeta(n)
	}
	return "^(" + strings.Join(quoted, "|") + ")$"
}

// TestMutantsTogether builds a few defects into one engine, where each is found by its own
// property.
func TestMutantsTogether(t *testing.T) {
	if testing.Short() {
		t.Skip("builds an engine")
	}
	var some []mutant
	var properties []string
	for _, m := range mutants(t) {
		switch m.name {
		case "top-k keeps one more", "completions share a seed", "ranks start at zero", "a stop id is not named",
			"a bias goes to the next token", "an abandoned stream goes on", "a drain is over at once":
			some, properties = append(some, m), append(properties, m.property)
		}
	}
	require.Len(t, some, 7)
	found := verdicts(t, build(t, some...), exactly(properties...), "")
	for _, m := range some {
		assert.Equal(t, conformance.Fails, found[m.property].Verdict, "%s does not find: %s", m.property, m.name)
	}
}

// TestEveryMutantFits plants each defect without building it: an edit of the engine that makes one
// obsolete fails here, and not only in a long run.
func TestEveryMutantFits(t *testing.T) {
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(root, "engine", "core.go")); err != nil {
		t.Skipf("the engine's sources are not here: %v", err)
	}
	for _, m := range mutants(t) {
		_, err := plant(root, t.TempDir(), m)
		assert.NoError(t, err, m.name)
	}
}

// TestMutants builds every defect and has the property that is meant for it find it. With
// ENGINETEST_MUTANTS=table the whole suite runs on each, and the table says what else finds it;
// another value is an expression that chooses mutants by name.
func TestMutants(t *testing.T) {
	if os.Getenv("ENGINETEST_LONG") == "" {
		t.Skip("a build for each mutant: ENGINETEST_LONG=1")
	}
	choice := os.Getenv("ENGINETEST_MUTANTS")
	table := choice == "table"
	if table {
		choice = ""
	}
	var rows []string
	proven := map[string]bool{}
	for _, m := range mutants(t) {
		if !regexp.MustCompile(choice).MatchString(m.name) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			if m.test != "" {
				output := fails(t, m)
				rows = append(rows, fmt.Sprintf("| %s | %s | |", m.test, m.name))
				t.Logf("%.1500s", output)
				return
			}
			only := exactly(m.property)
			if table {
				only = ""
			}
			found := verdicts(t, build(t, m), only, m.on)
			killed := found == nil || found[m.property].Verdict == conformance.Fails
			assert.True(t, killed, "%s does not find it", m.property)
			proven[m.property] = proven[m.property] || killed
			rows = append(rows, row(m, found))
			t.Logf("%.1500s", found[m.property].Detail)
		})
	}
	slices.Sort(rows)
	t.Logf("property that is meant | defect | others that find it\n%s", strings.Join(rows, "\n"))
	if choice == "" {
		for _, name := range conformance.PropertyNames() {
			assert.True(t, proven[name], "%s finds no mutant", name)
		}
	}
}

// fails runs the test that is meant for a mutant: it must fail, and name what is kept.
func fails(t *testing.T, m mutant) string {
	t.Helper()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	overlay, err := plant(root, t.TempDir(), m)
	require.NoError(t, err)
	pkg, name, _ := strings.Cut(m.test, " ")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-overlay", overlay, "-run", name, pkg)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s does not find it: %s", m.test, out)
	text := string(out)
	require.Contains(t, text, "--- FAIL: ", "it was built, and failed as a test")
	assert.Contains(t, text, m.names, "%s does not name it", m.test)
	return text
}

// row is a line of the table property × mutant.
func row(m mutant, found map[string]conformance.Result) string {
	var others []string
	for name, r := range found {
		if r.Verdict == conformance.Fails && name != m.property {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	text := strings.Join(others, ", ")
	switch {
	case found == nil:
		text = "the process died"
	case found[m.property].Verdict != conformance.Fails:
		text = "NOT FOUND; " + text
	case len(others) > 3:
		text = fmt.Sprintf("%d others", len(others))
	}
	return fmt.Sprintf("| %s | %s | %s |", m.property, m.name, text)
}
