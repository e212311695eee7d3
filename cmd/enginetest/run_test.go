package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/report"
	"github.com/enginetest/enginetest/verdict"
)

// module writes a module of its own, outside of this repository, and changes into it.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: it runs go test")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("no go command: %v", err)
	}
	dir := t.TempDir()
	files["go.mod"] = "module example.com/demo\n\ngo 1.26\n"
	for name, text := range files {
		name = filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o777))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o666))
	}
	t.Chdir(dir)
	t.Setenv("GOFLAGS", "-mod=mod")
	t.Setenv("GOWORK", "off")
	for _, name := range []string{"GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_SHA"} {
		t.Setenv(name, "")
	}
	return dir
}

func readReport(t *testing.T, name string) *report.Report {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	r, err := report.ReadJSON(f)
	require.NoError(t, err)
	return r
}

const planted = `package demo

import (
	"os"
	"testing"
)

func TestWrong(t *testing.T) { t.Error("got 1, want 2") }

func TestDisk(t *testing.T) {
	if _, err := os.Stat("second"); err != nil {
		_ = os.WriteFile("second", nil, 0o600)
		t.Fatal("write: no space left on device")
	}
}

func TestGPU(t *testing.T) { t.Skip("needs 2 GPUs, there is 1") }

func TestFine(t *testing.T) {}
`

func TestRunRetriesWhatIsTheMachines(t *testing.T) {
	dir := module(t, map[string]string{"demo_test.go": planted})
	code, stdout, stderr := command("", "run", "--retries=2", "--html=out/page.html", "--junit=out/junit.xml",
		"--json=out/run.json", "--", "go", "test", "./...")
	assert.Equal(t, exitFailed, code, stdout+stderr)
	assert.Contains(t, stderr, "retry 1 of 2: example.com/demo.TestDisk (infra: write: no space left on device)")
	assert.NotContains(t, stderr, "TestWrong", "a failed expectation is never run again")
	assert.Contains(t, stdout, "FAIL example.com/demo.TestWrong")
	assert.Contains(t, stdout, "fail: 4 tests, 2 passed, 1 failed (1 test), 1 skipped (1 for lack of capacity)")
	r := readReport(t, filepath.Join(dir, "out", "run.json"))
	assert.Equal(t, 1, r.Counts.Retried)
	assert.Equal(t, 1, r.Counts.ByClass[verdict.ClassTest])
	for _, name := range []string{"page.html", "junit.xml"} {
		assert.FileExists(t, filepath.Join(dir, "out", name))
	}
}

func TestRunWithoutFailures(t *testing.T) {
	module(t, map[string]string{"demo_test.go": planted})
	code, stdout, _ := command("", "run", "--allow-skip", "needs 2 GPUs", "--", "go", "test", "-run", "Fine|GPU", ".")
	assert.Equal(t, exitDone, code, stdout)
	code, stdout, _ = command("", "run", "--", "go", "test", "-run", "Fine|GPU", ".")
	assert.Equal(t, exitFailed, code, "what was not tested is no pass")
	assert.Contains(t, stdout, "1 test skipped because the machine lacks something, at most 0 may be")
	code, stdout, _ = command("", "run", "--", "go", "test", "-no-such-flag", ".")
	assert.Equal(t, exitFailed, code, "a command that fails and tests nothing is no pass")
	assert.Contains(t, stdout, "fail: 0 tests")
	code, _, stderr := command("", "run", "--", "no-such-command")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr, "cannot run no-such-command")
}

// Every test of a split run is in exactly one shard; the merged report is that of one run, and says
// when a shard is missing.
func TestShards(t *testing.T) {
	files := map[string]string{}
	for p := range 4 {
		text := fmt.Sprintf("package p%d\n\nimport (\n\t\"testing\"\n)\n\n", p)
		for i := range 1 + 5*(p/3) {
			text += fmt.Sprintf("func Test%d(t *testing.T) {}\n", i)
		}
		files[fmt.Sprintf("p%d/p_test.go", p)] = text
	}
	dir := module(t, files)
	history := report.Report{Schema: report.SchemaVersion, Inputs: []report.Input{}, Tests: []report.Test{}}
	for i, took := range []time.Duration{time.Second, time.Second, time.Second, time.Minute} {
		history.Packages = append(history.Packages, report.Package{
			Name:    fmt.Sprintf("example.com/demo/p%d", i),
			Elapsed: took,
		})
	}
	raw, err := json.Marshal(history)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll("history", 0o777))
	require.NoError(t, os.WriteFile("history/1.json", raw, 0o666))
	for i := 1; i <= 2; i++ {
		code, stdout, stderr := command("", "run", fmt.Sprintf("--shard=%d/2", i), "--history=history",
			fmt.Sprintf("--json=shards/%d.json", i), "--", "go", "test", "./...")
		require.Equal(t, exitDone, code, stdout+stderr)
	}
	split := 0
	for i := 1; i <= 2; i++ {
		for _, test := range readReport(t, fmt.Sprintf("shards/%d.json", i)).Tests {
			if strings.HasSuffix(test.Package, "p3") {
				split |= i
			}
		}
	}
	assert.Equal(t, 3, split, "the long package is in both shards")
	code, stdout, stderr := command("", "report", "--json=merged.json", "shards")
	assert.Equal(t, exitDone, code, stdout+stderr)
	merged := readReport(t, filepath.Join(dir, "merged.json"))
	assert.Equal(t, 9, merged.Counts.Tests)
	for _, test := range merged.Tests {
		assert.Empty(t, test.Attempts, "%s ran twice", test.ID())
	}
	require.NoError(t, os.Remove("shards/1.json"))
	code, stdout, _ = command("", "report", "shards")
	assert.Equal(t, exitFailed, code, "a shard is missing")
	assert.Contains(t, stdout, "missing: shard 1/2")
	again := readReport(t, "shards/2.json")
	again.Shards = append(again.Shards, report.Shard{Index: 2, Of: 3, Plan: "other"})
	require.NoError(t, os.WriteFile("shards/3.json", must(json.Marshal(again)), 0o666))
	code, stdout, _ = command("", "report", "shards")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stdout, "were planned differently")
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func TestReportCommand(t *testing.T) {
	const in = `{"Action":"run","Package":"p","Test":"TestA"}` + "\n" +
		`{"Action":"fail","Package":"p","Test":"TestA"}` + "\n"
	t.Setenv("GITHUB_ACTIONS", "")
	dir := t.TempDir()
	for _, want := range []string{"(new)", "(known)"} {
		code, stdout, _ := command(in, "report", "--github=false", "--history", dir, "--save")
		assert.Equal(t, exitFailed, code)
		assert.Contains(t, stdout, "✗ p.TestA  "+want)
		assert.NotContains(t, stdout, "\x1b", "colours are for terminals")
	}
	code, stdout, stderr := command(in, "report", "--markdown", filepath.Join(dir, "summary.md"), "--github")
	assert.Equal(t, exitFailed, code, stderr)
	assert.Contains(t, stdout, "::error title=test%3A p.TestA::")
	assert.FileExists(t, filepath.Join(dir, "summary.md"))
	for args, want := range map[string]string{
		"report --save":                     "--save needs --history",
		"report no-such-file":               "no-such-file",
		"report --allow-skip (":             "--allow-skip",
		"report --quarantine no-such-file":  "no-such-file",
		"report --histroy x":                "did you mean --history?",
		"run":                               "no test command",
		"run --shard 3/2 -- go test .":      "is no shard",
		"run --shard 1/2 -- ./x.test":       "splits a go test command",
		"run --retries -1 -- go test ./...": "--retries is -1",
	} {
		code, _, stderr := command(in, strings.Fields(args)...)
		assert.Equal(t, exitUsage, code, args)
		assert.Contains(t, stderr, want, args)
	}
}

func TestVersion(t *testing.T) {
	code, stdout, _ := command("", "--version")
	assert.Equal(t, exitDone, code)
	assert.Regexp(t, `^enginetest \S+ \(go1`, stdout)
}

func TestAudit(t *testing.T) {
	module(t, map[string]string{"demo_test.go": strings.Replace(planted, `t.Skip("needs 2 GPUs, there is 1")`,
		"t.SkipNow()", 1)})
	code, _, stderr := command("", "run", "--max-capacity-skips=-1", "--history=history", "--save", "--", "go", "test",
		"-run", "GPU", ".")
	require.Equal(t, exitDone, code, stderr)
	code, stdout, stderr := command("", "audit", "--history=history")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr, "findings")
	for _, want := range []string{
		"demo_test.go:17: skip-reason: SkipNow does not say why", "never-ran: TestWrong is in none of 1 report",
	} {
		assert.Contains(t, stdout, want)
	}
	assert.NotContains(t, stdout, "cannot-fail")
}
