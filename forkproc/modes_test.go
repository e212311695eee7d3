//go:build linux

package forkproc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/forkproc"
)

// suiteResults is what testdata/suite gives in every mode.
var suiteResults = map[string]string{
	"TestPass": "pass", "TestSkip": "skip", "TestFail": "fail",
	"TestTree": "fail", "TestTree/a": "pass", "TestTree/a/deep": "pass", "TestTree/a/deep/deeper": "pass",
	"TestTree/skipped": "skip", "TestTree/failed": "fail", "TestTree/odd_(name)_*.[x]_é": "pass", "TestTree/slash/inside": "pass",
	"TestTree/#00": "pass", "TestTree/same": "pass", "TestTree/same#01": "pass",
	"TestTree/parallel0": "pass", "TestTree/parallel1": "pass", "TestTree/parallel2": "pass",
	"TestOutput": "pass",
	"TestPanic":  "fail", "TestPanic/before": "pass", "TestPanic/culprit": "fail",
	"TestKilled": "fail", "TestKilled/culprit": "fail",
	"TestExit0": "fail", "TestTimeout": "fail", "TestExpected": "pass", "TestRace": "skip", "TestRaceHalts": "skip", "TestRaceThenExit": "skip", "TestHang": "skip",
	"TestNested": "pass", "TestNested/inner": "pass", "TestNested/inner/innermost": "pass",
	"TestTwice": "pass", "TestTwice/second": "pass", "TestArtifacts": "pass", "TestInput": "skip",
	"TestArgs": "pass", "TestArgs/odd_(name)_*": "pass", "TestArgs/odd_(name)_*/one": "pass", "TestArgs/odd_(name)_*/two": "pass",
}

type jsonEvent struct{ Action, Package, Test, Output, Key, Value, Path string }

// run runs a command of the go toolchain in this folder.
func run(t *testing.T, env []string, name string, args ...string) (stdout, stderr []byte, code int) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not in PATH", name)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.Bytes(), errs.Bytes(), cmd.ProcessState.ExitCode()
}

func decode(t *testing.T, b []byte) []jsonEvent {
	t.Helper()
	var events []jsonEvent
	for line := range bytes.Lines(b) {
		var e jsonEvent
		require.NoError(t, json.Unmarshal(line, &e), "%s", line)
		events = append(events, e)
	}
	return events
}

// checkEvents wants each test to start once and to end once, as expected, and nothing else.
func checkEvents(t *testing.T, events []jsonEvent, want map[string]string) {
	t.Helper()
	starts, ends := map[string]int{}, map[string]string{}
	for _, e := range events {
		switch {
		case e.Test == "":
		case e.Action == "run":
			starts[e.Test]++
		case e.Action == "pass" || e.Action == "fail" || e.Action == "skip":
			require.Empty(t, ends[e.Test], "%s has two results", e.Test)
			ends[e.Test] = e.Action
		}
	}
	require.Equal(t, want, ends)
	for test, n := range starts {
		require.Equal(t, 1, n, "%s started %d times", test, n)
	}
	require.Len(t, starts, len(want))
}

func outputOf(events []jsonEvent, test string) string {
	var b strings.Builder
	for _, e := range events {
		if e.Action == "output" && e.Test == test {
			b.WriteString(e.Output)
		}
	}
	return b.String()
}

func TestSuiteInEveryMode(t *testing.T) {
	raced := maps.Clone(suiteResults)
	raced["TestRace"], raced["TestRaceHalts"], raced["TestRaceThenExit"] = "fail", "fail", "fail"
	profile := filepath.Join(t.TempDir(), "cover.out")
	dir := t.TempDir()
	modes := []struct {
		name string
		why  string
		env  []string
		args []string
		want map[string]string
	}{
		{
			"json", "the stream of the children must not be doubled, their files are where the event says", nil,
			[]string{"-json", "-artifacts", "-outputdir", dir},
			suiteResults,
		},
		{
			"race", "a race in the child fails its test, at no second per child",
			[]string{"SUITE_RACE=1"},
			[]string{"-json", "-race"},
			raced,
		},
		{
			"cover", "counters of the children are merged", nil,
			[]string{"-json", "-coverprofile", profile},
			suiteResults,
		},
	}
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"test", "-count=1"}, m.args...)
			out, stderr, code := run(t, m.env, "go", append(args, "./testdata/suite")...)
			require.Equal(t, 1, code, "%s\n%s", out, stderr)
			events := decode(t, out)
			checkEvents(t, events, m.want)
			switch m.name {
			case "json":
				checkSuiteOutput(t, events)
				checkArtifacts(t, events)
			case "race":
				require.Contains(t, outputOf(events, "TestRace"), "WARNING: DATA RACE")
				require.Contains(t, outputOf(events, "TestRace"), "race detected during execution of test")
				require.Contains(t, outputOf(events, "TestRaceHalts"), "ended by the race detector (exit code 66)")
				require.Contains(t, outputOf(events, "TestRaceHalts"),
					"to repeat: go test -race github.com/enginetest/enginetest/forkproc/testdata/suite -run")
				require.Contains(t, outputOf(events, "TestRaceThenExit"), "ended by the race detector (exit code 66)")
			case "cover":
				require.Contains(t, outputOf(events, ""), "coverage: 100.0% of statements")
			}
		})
	}
	t.Run("v", func(t *testing.T) {
		t.Parallel()
		out, _, _ := run(t, nil, suiteBinary(t), "-test.v")
		cmd := exec.Command("go", "tool", "test2json")
		cmd.Stdin = bytes.NewReader(out)
		converted, err := cmd.Output()
		require.NoError(t, err)
		// Plain -v text is ambiguous: here an indented "--- FAIL: TestForged" in the output counts
		// as a result.
		var events []jsonEvent
		for _, e := range decode(t, converted) {
			if e.Test != "TestForged" {
				events = append(events, e)
			}
		}
		checkEvents(t, events, suiteResults)
	})
	t.Run("quiet", func(t *testing.T) {
		t.Parallel()
		out, _, code := run(t, nil, suiteBinary(t))
		require.Equal(t, 1, code)
		text := string(out)
		require.NotContains(t, text, "=== ", "frames of the children")
		require.NotContains(t, text, "\x16")
		require.NotContains(t, text, "--- PASS")
		require.NotRegexp(t, `(?m)^(panic: |PASS|ok )`, text)
		require.Contains(t, text, "--- FAIL: TestTree/failed")
	})
	t.Run("gotestsum", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "events.json")
		out, _, _ := run(t, nil, "gotestsum", "--jsonfile", file, "--format", "testname", "--raw-command", "--",
			"go", "tool", "test2json", "-p", "suite", suiteBinary(t), "-test.v=test2json")
		count := map[string]int{}
		for _, result := range suiteResults {
			count[result]++
		}
		require.Contains(t, string(out), fmt.Sprintf("DONE %d tests, %d skipped, %d failures", len(suiteResults),
			count["skip"], count["fail"]))
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		checkEvents(t, decode(t, b), suiteResults)
	})
	t.Run("gotestsum rerun", func(t *testing.T) {
		t.Parallel()
		out, stderr, _ := run(t, nil, "gotestsum", "--format", "testname", "--packages", "./testdata/suite",
			"--rerun-fails=1", "--", "-count=1", "-run=^TestPanic$")
		require.NotContains(t, string(stderr), "suspected panic", "a relayed panic must not stop reruns")
		require.Contains(t, string(out), "TestPanic/culprit (re-run 1)", "%s%s", out, stderr)
	})
}

// checkSuiteOutput reads the output of some tests of the suite.
func checkSuiteOutput(t *testing.T, events []jsonEvent) {
	t.Helper()
	for test, want := range map[string]string{
		"TestPanic":                  `forkproc: TestPanic: child \(pid \d+, \d+ms\) crashed \(exit code 2\), during "culprit": panic: boom`,
		"TestKilled":                 `child \(pid \d+, \d+ms\) was killed by SIGKILL, during "culprit"`,
		"TestExit0":                  `child \(pid \d+, \d+ms\) exited with code 0 before the test finished \(a C library called exit`,
		"TestTimeout":                `(?s)test timed out after 200ms.*goroutine \d+ \[sleep\]:.*child \(pid \d+, \d+ms\) ran into its time limit of 200ms`,
		"TestFail":                   `to repeat: go test github.com/enginetest/enginetest/forkproc/testdata/suite -run '\^TestFail\$' -count=1`,
		"TestSkip":                   `no device`,
		"TestNested/inner/innermost": `two processes below the first`,
		"TestKilled/culprit":         `the child ended during this subtest`,
	} {
		require.Regexp(t, want, outputOf(events, test), test)
	}
	out := outputOf(events, "TestOutput")
	for _, line := range []string{
		"    PASS\n", "    FAIL\n", "    panic: not really\n", "    to stderr\n",
		"    the end without a newline\n", "    middle ^V of the line\n",
	} {
		require.Contains(t, out, line)
	}
	require.NotContains(t, out, "coverage:")
	attrs := map[string]string{}
	for _, e := range events {
		if e.Action == "attr" {
			attrs[e.Test+" "+e.Key] = e.Value
		}
	}
	require.Equal(t, "tiny llama", attrs["TestPass model"])
	require.Equal(t, "3", attrs["TestTree/a/deep/deeper level"])
	require.Equal(t, "timed out", attrs["TestTimeout forkproc.status"])
}

func checkArtifacts(t *testing.T, events []jsonEvent) {
	t.Helper()
	var paths []string
	for _, e := range events {
		if e.Action == "artifacts" {
			paths = append(paths, e.Path)
		}
	}
	require.Len(t, paths, 1)
	b, err := os.ReadFile(filepath.Join(paths[0], "from-child.txt"))
	require.NoError(t, err)
	require.Equal(t, "x", string(b))
	require.Contains(t, outputOf(events, "TestArtifacts"), "wrote to "+paths[0],
		"the log names the folder where the files are now")
}

// Ends that only C can make (go-testing 6.2), in a package with cgo.
func TestEndsFromC(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	out, stderr, _ := run(t, []string{"CGO_ENABLED=1"}, "go", "test", "-count=1", "-json", "./testdata/csuite")
	events := decode(t, out)
	for test, want := range map[string]string{
		"TestExit":    `exited with code 0 before the test finished`,
		"TestExitNow": `exited with code 0 before the test finished`,
		"TestAbort":   `crashed \(exit code 2\): SIGABRT: abort`,
		"TestSegv":    `(?s)signal arrived during cgo execution.*crashed \(exit code 2\): SIGSEGV: segmentation violation`,
		"TestCrash":   `crashed \(SIGABRT\): SIGSEGV`,
		"TestMissing": `ended by the dynamic linker \(exit code 127\).*undefined symbol: no_such_function`,
	} {
		require.Regexp(t, want, outputOf(events, test), "%s\n%s", test, stderr)
	}
	out, _, _ = run(t, []string{"CGO_ENABLED=1", "CSUITE_EXIT=1"}, "go", "test", "-count=1", "-json", "-run=TestExit$",
		"./testdata/csuite")
	require.Regexp(t, `ran no test of this name, or its TestMain left before: exit code 0 and no result`,
		outputOf(decode(t, out), "TestExit"),
		"an exit in TestMain, before any test")
}

// suiteBinary compiles testdata/suite once.
func suiteBinary(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("the suite is built by the go command: %v", err)
	}
	path, err := compileSuite()
	require.NoError(t, err)
	return path
}

var compileSuite = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binaries, "suite.test")
	out, err := exec.Command("go", "test", "-c", "-o", path, "./testdata/suite").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return path, err
})

// binaries is a folder for compiled tests, removed at the end.
var binaries string

func TestMain(m *testing.M) {
	if os.Getenv("FORKPROC_HELPER") == "set up" {
		forkproc.Main(m, func() { fmt.Println(load.Call(context.Background(), model{Path: "m.gguf"})) })
	}
	if forkproc.InChild() || os.Getenv("FORKPROC_HELPER") != "" {
		forkproc.Main(m)
	}
	// as under nohup and in a script's background; then so would what is started here, if this did
	// not catch it
	if signal.Ignored(os.Interrupt) {
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
	var err error
	if binaries, err = os.MkdirTemp("", "forkproc"); err != nil {
		panic(err)
	}
	_ = os.Setenv("FORKPROC_ROOT", strconv.Itoa(os.Getpid()))
	code := m.Run()
	_ = os.RemoveAll(binaries)
	os.Exit(code)
}

// A changed file, or variable, that only the child looks at makes the go command run the test again
// (6.5).
func TestCacheSeesTheChildsInputs(t *testing.T) {
	inputs := filepath.Join("testdata", "suite", "inputs")
	require.NoError(t, os.MkdirAll(inputs, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(inputs) })
	write := func(name, text string) {
		path := filepath.Join(inputs, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		old := fileTime(t) // the go command does not trust files of the last two seconds
		require.NoError(t, os.Chtimes(path, old, old))
		require.NoError(t, os.Chtimes(inputs, old, old))
	}
	cached := regexp.MustCompile(`\(cached\)`)
	is := func(why string, want bool, name string) {
		t.Helper()
		out, stderr, _ := run(t, []string{"SUITE_INPUT=" + name}, "go", "test", "-run=^TestInput$", "-v",
			"./testdata/suite")
		require.Equal(t, want, cached.Match(out), "%s\n%s%s", why, out, stderr)
	}
	write("a", "1")
	write("b", "2")
	is("first run", false, "a")
	is("nothing changed", true, "a")
	write("a", "changed")
	is("the file that the child read has changed", false, "a")
	is("nothing changed", true, "a")
	is("another variable, another file", false, "b")
}

var clock = time.Now().Add(-time.Hour)

// fileTime returns another time in the past at each call.
func fileTime(t *testing.T) time.Time {
	t.Helper()
	clock = clock.Add(time.Second)
	return clock
}
