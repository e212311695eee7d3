package conformance_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
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
	"github.com/enginetest/enginetest/conformance/internal/mutants"
)

// planted returns the mutants and the root of the sources.
func planted(t *testing.T) (root string, list []mutants.Mutant) {
	t.Helper()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	list, err = mutants.Read("testdata/mutants.txt")
	require.NoError(t, err)
	return root, list
}

// build makes the program that runs the suite, with mutants in its engine.
func build(t *testing.T, ms ...mutants.Mutant) (program string) {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("mutants need the go command: %v", err)
	}
	root, _ := planted(t)
	dir := t.TempDir()
	overlay, err := mutants.Plant(root, dir, ms...)
	require.NoError(t, err, "the engine has changed where a mutant is planted")
	program = filepath.Join(dir, "subject")
	cmd := exec.Command("go", "build", "-ldflags=-w", "-overlay", overlay, "-o", program, "./internal/subject")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// verdicts runs the suite in a program: what became of each property. A program that dies has no
// verdicts.
func verdicts(t *testing.T, program, only, on string) map[string]conformance.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	args := []string{"-limit", "1m", "-only", only}
	if on != "" {
		args = append(args, "-"+on)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		require.NoError(t, ctx.Err(), "the suite did not end")
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
	var some []mutants.Mutant
	var properties []string
	_, all := planted(t)
	for _, m := range all {
		switch m.Name {
		case "top-k keeps one more", "completions share a seed", "ranks start at zero", "a stop id is not named",
			"a bias goes to the next token", "an abandoned stream goes on", "a drain is over at once":
			some, properties = append(some, m), append(properties, m.Property)
		}
	}
	require.Len(t, some, 7)
	found := verdicts(t, build(t, some...), exactly(properties...), "")
	for _, m := range some {
		assert.Equal(t, conformance.Fails, found[m.Property].Verdict, "%s does not find: %s", m.Property, m.Name)
	}
}

// TestEveryMutantFits plants each defect without building it: an edit of the engine that makes one
// obsolete fails here, and not only in a long run.
func TestEveryMutantFits(t *testing.T) {
	root, all := planted(t)
	if _, err := os.Stat(filepath.Join(root, "engine", "core.go")); err != nil {
		t.Skipf("the engine's sources are not here: %v", err)
	}
	for _, m := range all {
		_, err := mutants.Plant(root, t.TempDir(), m)
		assert.NoError(t, err, m.Name)
	}
}

// TestMutants builds every defect and has the property that is meant for it find it. With
// ENGINETEST_MUTANTS=table the whole suite runs on each, and the table says what else finds it;
// another value is an expression that chooses mutants by name. ENGINETEST_MUTANTS_RESULTS is a file
// that keeps the results of a table: a run that was cut off goes on where it was.
func TestMutants(t *testing.T) {
	if os.Getenv("ENGINETEST_LONG") == "" {
		t.Skip("a build for each mutant: ENGINETEST_LONG=1")
	}
	choice := os.Getenv("ENGINETEST_MUTANTS")
	table := choice == "table"
	if table {
		choice = ""
	}
	file := os.Getenv("ENGINETEST_MUTANTS_RESULTS")
	if file == "" {
		file = filepath.Join(t.TempDir(), "results")
	}
	root, all := planted(t)
	results, err := mutants.Open(file, root)
	require.NoError(t, err)
	if table {
		for _, on := range []string{"", "child", "served"} {
			t.Run("unmodified "+on, func(t *testing.T) { unmodified(t, results, on) })
		}
	}
	var rows []mutants.Result
	proven := map[string]bool{}
	for _, m := range all {
		if !regexp.MustCompile(choice).MatchString(m.Name) {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			r, known, err := results.Of(m)
			require.NoError(t, err)
			if !known {
				began := time.Now()
				r = attack(t, m, table)
				r.Seconds = time.Since(began).Seconds()
				r.Mutant = m.Name
				require.NoError(t, results.Add(m, r))
			}
			assert.True(t, r.Found, "%s does not find it", r.Meant)
			proven[r.Meant] = proven[r.Meant] || r.Found
			rows = append(rows, r)
			t.Logf("%.1500s", r.Detail)
		})
	}
	t.Logf("\n%s", mutants.Table(rows))
	if choice == "" {
		for _, name := range conformance.PropertyNames() {
			assert.True(t, proven[name], "%s finds no mutant", name)
		}
	}
}

// unmodified checks the engine as it is, in the same program: nothing may fail.
func unmodified(t *testing.T, results *mutants.Results, on string) {
	t.Helper()
	none := mutants.Mutant{Name: "no defect, " + cmp.Or(on, "in process"), On: on}
	_, known, err := results.Of(none)
	require.NoError(t, err)
	if known {
		return
	}
	found := verdicts(t, build(t), "", on)
	require.NotNil(t, found)
	for name, r := range found {
		assert.NotEqual(t, conformance.Fails, r.Verdict, "%s: %s", name, r.Detail)
	}
	if !t.Failed() {
		require.NoError(t, results.Add(none, mutants.Result{Found: true}))
	}
}

// attack builds an engine with a mutant and says what finds it.
func attack(t *testing.T, m mutants.Mutant, whole bool) mutants.Result {
	t.Helper()
	if m.Test != "" {
		out, ok := fails(t, m)
		return mutants.Result{Meant: m.Test, Found: ok, Detail: out}
	}
	program := build(t, m)
	r := mutants.Result{Meant: m.Property}
	if whole {
		found := verdicts(t, program, "", m.On)
		if found != nil {
			r.Found, r.Detail = found[m.Property].Verdict == conformance.Fails, found[m.Property].Detail
			r.Others = others(m, found)
			return r
		}
		r.Died = true // perhaps of another property
	}
	found := verdicts(t, program, exactly(m.Property), m.On)
	r.Died = r.Died || found == nil
	r.Found = found == nil || found[m.Property].Verdict == conformance.Fails
	r.Detail = found[m.Property].Detail
	return r
}

// others are the properties that find a mutant that they are not meant for.
func others(m mutants.Mutant, found map[string]conformance.Result) (names []string) {
	for name, r := range found {
		if r.Verdict == conformance.Fails && name != m.Property {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// fails runs the test that is meant for a mutant: it must fail, and name what is kept.
func fails(t *testing.T, m mutants.Mutant) (output string, ok bool) {
	t.Helper()
	root, _ := planted(t)
	overlay, err := mutants.Plant(root, t.TempDir(), m)
	require.NoError(t, err)
	pkg, name, _ := strings.Cut(m.Test, " ")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-overlay", overlay, "-run", name, pkg)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	text := string(out)
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return text, false
	}
	require.Contains(t, text, "--- FAIL: ", "it was built, and failed as a test")
	return text, assert.Contains(t, text, m.Names, "%s does not name it", m.Test)
}
