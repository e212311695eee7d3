package report_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/runner"
)

const costSuite = "cost"

// TestCostSuite is a suite that passes: each of its tests loads the bundled engine and proves it
// gone. It runs in a child.
func TestCostSuite(t *testing.T) {
	if os.Getenv(plantedEnv) != costSuite {
		t.Skip("a part of TestCost")
	}
	for i := range 20 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			runner.New(t, runner.Config{Model: fixtures.Bundled(), Device: "cpu"}).GenerateGreedy("The lighthouse", 32)
		})
	}
}

// costPairs and costTime end TestCost, whichever comes first.
const (
	costPairs = 40
	costTime  = 4 * time.Minute
)

// TestCost compares the CPU time of TestCostSuite with and without what the fixture records for a
// report: pairs of runs, in turns, the first of each pair alternating. It fails when three of four
// pairs cost more than one in a hundred.
func TestCost(t *testing.T) {
	if os.Getenv("ENGINETEST_LONG") == "" {
		t.Skip("ENGINETEST_LONG=1 runs children for four minutes")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	run := func(wanted string) time.Duration {
		cmd := exec.Command(exe, "-test.run=^TestCostSuite$", "-test.v=test2json")
		cmd.Env = append(os.Environ(), plantedEnv+"="+costSuite, "ENGINETEST_VERDICTS="+wanted, "GOMAXPROCS=1")
		out, err := cmd.Output()
		require.NoError(t, err, "%s", out)
		return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	began := time.Now()
	whole := run("1")
	var ratios []float64
	for i := 0; i < costPairs && time.Since(began) < costTime; i++ {
		first := run(fmt.Sprint(i % 2))
		second := run(fmt.Sprint(1 - i%2))
		if i%2 == 0 {
			first, second = second, first
		}
		ratios = append(ratios, float64(first)/float64(second))
	}
	slices.Sort(ratios)
	n := len(ratios)
	t.Logf("CPU time with reports / without: median %.4f of %d pairs, half of them within %.4f and %.4f; a suite takes %s",
		ratios[n/2], n, ratios[n/4], ratios[3*n/4], whole.Round(time.Millisecond))
	if n < 8 {
		t.Skipf("%d pairs in %s are too few to tell", n, time.Since(began).Round(time.Second))
	}
	require.LessOrEqual(t, ratios[n/4], 1.01, "what a report needs costs more than one in a hundred")
}
