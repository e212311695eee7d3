package forkproc

import (
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRunPattern(t *testing.T) {
	for _, c := range []struct{ given, test, want, why string }{
		{"", "TestA", "^TestA$", "no pattern"},
		{"", "TestA/b(1)*.[x]", `^TestA$/^b\(1\)\*\.\[x\]$`, "each part is quoted"},
		{"", "TestA/same#01", "^TestA$/^same#01$", "the number of a repeated name"},
		{"TestA/sub", "TestA", "^TestA$/sub", "what the parent selects below the test stays selected"},
		{"TestA/sub/x", "TestA/sub", "^TestA$/^sub$/x", "at any depth"},
		{"TestA", "TestA/sub", "^TestA$/^sub$", "the pattern ends above the test"},
		{"TestA/x|TestB/y", "TestB", "^TestB$/y", "of alternatives, those that select this test"},
		{"TestA/x|Test/y", "TestA", "^TestA$/x|^TestA$/y", "both do"},
		{"TestA/x|TestA", "TestA", "^TestA$", "one of them selects everything"},
		{"(TestA|TestB)/x|y", "TestA", "^TestA$/x", "a bar in brackets is no alternative"},
		{"Test[A/]/x", "TestA", "^TestA$/x", "a slash in a class is no level"},
		{
			`Test\/A`, "TestA", "^TestA$",
			"an escaped slash is no level; the pattern does not select the test, the test runs all the same",
		},
		{"TestZ", "TestA", "^TestA$", "a pattern that does not select it"},
	} {
		require.Equal(t, c.want, runPattern(c.given, c.test), c.why)
	}
}

func TestChildArgs(t *testing.T) {
	if flag.Lookup("forkproc.bool") == nil { // -count=2
		flag.Bool("forkproc.bool", false, "for this test")
		flag.String("forkproc.string", "", "for this test")
	}
	given := []string{
		"-test.run", "Test(A|B)", "-test.v=true", "-test.count=3", "--test.timeout=10m", "-test.testlogfile=/tmp/log",
		"-test.gocoverdir=/tmp/cover", "-test.paniconexit0", "-test.short", "-test.fullpath=true", "-test.skip=X", "-test.artifacts", "-test.outputdir=/tmp/out",
		"-test.coverprofile=c.out", "-test.cpuprofile", "cpu.out", "-test.memprofile=m", "-test.trace=t", "-test.blockprofile=b", "-test.mutexprofile=x",
		"-test.bench=.", "-test.fuzz=F", "-test.list=.", "-test.shuffle=on", "-test.failfast", "-test.parallel=8",
		"-forkproc.bool", "-forkproc.string", "a value", "-forkproc.string=-test.short", "--", "-test.run=not a flag", "word",
	}
	require.Equal(t, []string{
		"-test.run=^TestA$", "-test.v=test2json", "-test.count=1", "-test.parallel=1", "-test.timeout=9s", "-test.testlogfile=/child/log",
		"-test.gocoverdir=/tmp/cover", "-test.paniconexit0", "-test.short", "-test.fullpath=true", "-test.skip=X", "-test.artifacts", "-test.outputdir=/tmp/out",
		"-forkproc.bool", "-forkproc.string", "a value", "-forkproc.string=-test.short", "-test.parallel=2",
		"--", "-test.run=not a flag", "word",
	}, childArgs(given, "TestA", 9*time.Second, "/child/log", []string{"-test.parallel=2"}))
}

func TestLimitsAreNested(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		left, timeout time.Duration // left 0: no deadline
		child, grace  time.Duration
		why           string
	}{
		{0, 0, 0, 5 * time.Second, "nothing limits the child"},
		{0, time.Second, time.Second, 5 * time.Second, "the option alone"},
		{10 * time.Minute, 0, 10*time.Minute - 20*time.Second, 5 * time.Second, "the go command's default"},
		{time.Minute, 0, 48 * time.Second, 3 * time.Second, "5 % for each grace"},
		{time.Second, 0, 600 * time.Millisecond, 100 * time.Millisecond, "but 100 ms at least"},
		{time.Minute, time.Second, time.Second, 3 * time.Second, "the shorter one wins"},
		{time.Minute, time.Hour, 48 * time.Second, 3 * time.Second, "the shorter one wins"},
	} {
		deadline := time.Time{}
		if c.left > 0 {
			deadline = now.Add(c.left)
		}
		l, err := newLimits(now, deadline, c.timeout, 0)
		require.NoError(t, err, c.why)
		require.Equal(t, c.child, l.child, c.why)
		require.Equal(t, c.grace, l.grace, c.why)
		if c.child == 0 {
			require.Zero(t, l.giveUp, c.why)
			continue
		}
		require.True(t, l.child < l.quit && l.quit < l.kill && l.kill < l.giveUp, c.why)
		if c.left > 0 {
			require.LessOrEqual(t, l.giveUp+l.grace, c.left, c.why)
		}
	}
	_, err := newLimits(now, now.Add(300*time.Millisecond), 0, 0)
	require.ErrorContains(t, err,
		"only 300ms is left until the deadline of the test (go test -timeout); a child needs more than 400ms")
}
