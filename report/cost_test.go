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

// TestCost compares the CPU time of TestCostSuite with and without what the fixture records for a
// report: pairs of runs, in turns, the first of each pair alternating.
func TestCost(t *testing.T) {
	if os.Getenv("ENGINETEST_LONG") == "" {
		t.Skip("ENGINETEST_LONG=1 runs 80 children")
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
	run("1")
	var ratios []float64
	for i := range 40 {
		first := run(fmt.Sprint(i % 2))
		second := run(fmt.Sprint(1 - i%2))
		if i%2 == 0 {
			first, second = second, first
		}
		ratios = append(ratios, float64(first)/float64(second))
	}
	slices.Sort(ratios)
	n := len(ratios)
	t.Logf("CPU time with reports / without: median %.4f, half of the pairs within %.4f and %.4f", ratios[n/2], ratios[n/4], ratios[3*n/4])
}
