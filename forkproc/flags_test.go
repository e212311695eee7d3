//go:build linux

package forkproc_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The flags of 6.3 with a real parent and a real child.
func TestFlagsOfTheChild(t *testing.T) {
	bin := suiteBinary(t)
	dir := t.TempDir()
	log := filepath.Join(dir, "parent.log")
	out, _, code := run(t, nil, bin, "-test.run=^TestArgs$/odd/one", "-test.v=test2json", "-test.count=2",
		"-test.parallel=7", "-test.timeout=50s",
		"-test.testlogfile="+log, "-test.paniconexit0", "-test.short", "-test.fullpath", "-test.failfast", "-test.shuffle=on", "-test.cpu=1",
		"-test.outputdir="+dir, "-test.cpuprofile=cpu.out", "-test.memprofile=mem.out", "-test.trace=trace.out", "-test.blockprofile=b.out", "-test.mutexprofile=m.out")
	require.Zero(t, code, "%s", out)
	var args []string
	for line := range strings.Lines(string(out)) {
		if _, list, ok := strings.Cut(line, "ARGS "); ok {
			args = strings.Fields(list)
		}
	}
	joined := strings.Join(args, " ")
	require.Regexp(t, `-test.testlogfile=/\S+/\.forkproc-testlog `, joined)
	require.NotContains(t, joined, log, "the child would truncate it")
	require.Regexp(t, `-test.timeout=(39\.9\d*|40)s `, joined, "50 s less four graces of 5 %")
	for _, want := range []string{
		`-test.run=^TestArgs$/^odd_\(name\)_\*$/one`, "-test.v=test2json", "-test.count=1", "-test.parallel=1", "-test.paniconexit0", "-test.short",
		"-test.fullpath", "-test.cpu=1", "-test.outputdir=" + dir,
	} {
		require.Contains(t, args, want)
	}
	for _, not := range []string{"profile", "trace", "shuffle", "failfast"} {
		require.NotContains(t, joined, not)
	}
	require.NotContains(t, string(out), "/two", "the parent's pattern excludes it")
	require.Equal(t, 2, strings.Count(string(out), "\x16--- PASS: TestArgs/odd_(name)_*/one "),
		"the parent repeats, each child runs once")
	for _, profile := range []string{"cpu.out", "mem.out", "trace.out"} {
		fi, err := os.Stat(filepath.Join(dir, profile))
		require.NoError(t, err)
		require.NotZero(t, fi.Size(), "%s is the parent's", profile)
	}
}

// -failfast makes the parent's t.Run do nothing after a failure: results of the child must not
// vanish.
func TestFailFastLosesNothing(t *testing.T) {
	out, _, code := run(t, nil, suiteBinary(t), "-test.run=^TestTree$", "-test.v", "-test.failfast")
	require.Equal(t, 1, code)
	require.Contains(t, string(out), "--- FAIL: TestTree/failed")
	require.Contains(t, string(out), "log of 2", "the log of a test that came after the failure")
}

// A parent with little time gives the child less, so that the child's stacks are in the output and
// not the parent's.
func TestDeadlinesAreNested(t *testing.T) {
	var out []byte
	code, limit := 2, 2*time.Second
	for ; code == 2 && limit < 2*time.Minute; limit *= 2 { // a busy machine needs more to print the stacks
		out, _, code = run(t, []string{"SUITE_HANG=1"}, suiteBinary(t), "-test.run=^TestHang$", "-test.v",
			"-test.timeout="+limit.String())
	}
	require.Equal(t, 1, code, "the parent ends well: %s", out)
	text := string(out)
	require.Regexp(t, `panic: test timed out after [\d.]+s`, text)
	require.Contains(t, text, "suite.hang(", "the stack of the function that hangs")
	require.Regexp(t, `labels:\{"request": "42"\}|\] \{request: 42\}`, text, "labels tell whose goroutine it is")
	require.Regexp(t, `ran into its time limit of [\d.]+s`, text)
}

// Under a debugger the body runs in the process that is debugged.
func TestDebugger(t *testing.T) {
	if _, err := exec.LookPath("gdb"); err != nil {
		t.Skip("no gdb")
	}
	out, stderr, _ := run(t, nil, "gdb", "-q", "-batch", "-ex", "set confirm off", "-ex", "set auto-load off", "-ex",
		"run", "--args", suiteBinary(t), "-test.run=^(TestSkip|TestExpected)$", "-test.v")
	if strings.Contains(string(stderr), "Operation not permitted") {
		t.Skip("ptrace is not permitted here")
	}
	require.Regexp(t, `forkproc: a debugger \(pid \d+\) is attached: the body runs in this process, without isolation`,
		string(out))
	require.Regexp(t, `forkproc: a debugger \(pid \d+\) is attached, so there is no child that could end as expected \(crashed with "wanted"\)`, string(out))
}
