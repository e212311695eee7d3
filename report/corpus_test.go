package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/verdict"
)

// TestCorpus classifies failures whose cause is known: logs of faults that TestPlanted plants. The
// name of a log is CLASS--FAULT--STYLE.log. To make them anew: ENGINETEST_LONG=1 go test ./report
// -run TestMakeCorpus.
func TestCorpus(t *testing.T) { scoreLogs(t, "testdata/corpus", 200) }

// TestHeldOut classifies logs that were made after the rules, with a real llama-server, programs
// that speak as servers do, and the bundled engine. TestMakeHeldOut makes
// those that are missing.
func TestHeldOut(t *testing.T) { scoreLogs(t, "testdata/heldout", 100) }

// scoreLogs classifies the logs in a folder, every eighth with -short, and compares with the classes
// that their names begin with.
func scoreLogs(t *testing.T, folder string, least int) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(folder, "*.log"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(logs), least)
	percent := 95
	if testing.Short() { // with the race detector a log takes 10 ms
		for i := range len(logs) / 8 {
			logs[i] = logs[8*i]
		}
		logs, percent = logs[:len(logs)/8], 80 // so few of a set may be the ones that it misses
	}
	right, excused := 0, []string{}
	matrix := map[[2]verdict.Class]int{}
	for _, name := range logs {
		want, _, _ := strings.Cut(filepath.Base(name), "--")
		class, text := classOf(t, name)
		matrix[[2]verdict.Class{verdict.Class(want), class}]++
		if string(class) == want {
			right++
			continue
		}
		t.Logf("%s: %s\n\t%s", filepath.Base(name), class, text)
		if class == verdict.ClassInfra && want != "capacity" {
			excused = append(excused, name)
		}
	}
	t.Logf("%d of %d right", right, len(logs))
	for pair, n := range matrix {
		t.Logf("%-9s as %-9s %d", pair[0], pair[1], n)
	}
	assert.Empty(t, excused, "a product bug is never the machine's fault")
	assert.GreaterOrEqual(t, right*100, percent*len(logs))
}

func classOf(t *testing.T, name string) (verdict.Class, string) {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	var c Collector
	require.NoError(t, c.Read(f, Source{Name: name, Package: "example.com/llm"}))
	r := c.Report()
	groups := r.groups()
	require.NotEmpty(t, groups, "%s has no failure", name)
	test := groups[0].tests[0]
	return test.Class, test.Evidence + ": " + test.Message
}
