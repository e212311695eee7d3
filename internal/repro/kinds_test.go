package repro

import (
	"flag"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The printed command runs the test that printed it, and of its kind no other. ENGINETEST_LONG=1
// tries every kind, an ordinary run one benchmark.
func TestTheCommandRunsTheTestAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a test binary and runs it many times")
	}
	out, err := exec.Command("go", "test", "./testdata/kinds", "-bench=.", "-benchtime=1x", "-count=1",
		"-v").CombinedOutput()
	require.NoError(t, err, "%s", out)
	all := os.Getenv("ENGINETEST_LONG") != ""
	said := regexp.MustCompile(`(?m)^ran (.*)\nagain: (.*)$`)
	seen := map[string]bool{}
	for _, m := range said.FindAllStringSubmatch(string(out), -1) {
		if name, command := m[1], m[2]; !seen[name] && (all || name == "BenchmarkSpeed/n=1") {
			seen[name] = true
			again, err := exec.Command("sh", "-c", command+" -benchtime=1x -v").CombinedOutput()
			require.NoError(t, err, "%s\n%s", command, again)
			for _, m := range said.FindAllStringSubmatch(string(again), -1) {
				if name == "An engine that sleeps wakes up" || name == "Test engines wake up" {
					continue // the other tests of the package run too: which of them runs the specs is not known
				}
				assert.Equal(t, name, m[1], command)
			}
			assert.Contains(t, string(again), "ran "+name+"\n", command)
		}
	}
	assert.Len(t, seen, map[bool]int{true: 13, false: 1}[all], "%v", seen)
}

func TestSelection(t *testing.T) {
	for test, want := range map[string]string{
		"TestA/b(1)":       `-run '^TestA$/^b\(1\)$'`,
		"BenchmarkX/n=1":   `-run '^$' -bench '^BenchmarkX$/^n=1$'`,
		"FuzzX/seed#0":     `-run '^FuzzX$/^seed#0$'`,
		"Testing is hard":  `-run '^Testing is hard$'`, // without Ginkgo there is no better one
		"Benchmarks_of_it": `-run '^Benchmarks_of_it$'`,
	} {
		assert.Equal(t, want, selection(test))
	}
	require.NoError(t, flag.Set("test.fuzz", "FuzzX"))
	defer func() { _ = flag.Set("test.fuzz", "") }()
	assert.Equal(t, "-run '^$' -fuzz '^FuzzX$'", selection("FuzzX/8f2a"))

	defer func(was func() bool) { underGinkgo = was }(underGinkgo)
	underGinkgo = func() bool { return true }
	assert.Equal(t, "-ginkgo.focus='^Test engines, it'\\''s said, wake up$'",
		selection("Test engines, it's said, wake up"))
	assert.Equal(t, "-run '^TestA$'", selection("TestA"), "a plain test beside Ginkgo's")
}
