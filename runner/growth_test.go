package runner_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/leakcheck"
)

// servedRequest is a request that refers to itself through what it is in: a cycle that one registry
// keeps.
type servedRequest struct {
	state []byte
	next  *servedRequest
}

var served *servedRequest

// TestCoreProcess is no test but the core of TestGrowthOfACore: the bundled engine in a process of
// its own, which answers a round of requests for every line on its standard input.
func TestCoreProcess(t *testing.T) {
	keeps := os.Getenv("RUNNER_CORE")
	if keeps == "" {
		t.Skip("TestGrowthOfACore starts it")
	}
	dir := t.TempDir()
	require.NoError(t, fixtures.WriteCheckpoint(dir, fixtures.Spec{}))
	e, err := engine.Open(context.Background(), engine.Config{Model: dir, Device: "cpu"})
	require.NoError(t, err)
	defer func() { assert.NoError(t, e.Shutdown(context.Background())) }()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var reqs []engine.Request
		for i := range 8 {
			reqs = append(reqs, engine.Request{
				PromptTokenIDs: []int32{int32(i + 1), 2, 3}, Sampling: engine.SamplingParams{MaxTokens: 8, IgnoreEOS: true}, //nolint:gosec // small
			})
		}
		_, err := e.Generate(context.Background(), reqs...)
		require.NoError(t, err)
		if keeps == "a cycle" {
			r := &servedRequest{state: make([]byte, 200<<10), next: served}
			for i := range r.state {
				r.state[i] = 1
			}
			if served != nil {
				r.next, served.next = served.next, r
			} else {
				r.next = r
			}
			served = r
		}
		debug.FreeOSMemory() // what is left is what is kept
		fmt.Println("done")
	}
}

// growthOfACore measures 20 rounds of a core; detected is nil when nothing grows.
func growthOfACore(t *testing.T, keeps string, rounds int) (rep *leakcheck.FamilyReport, detected error) {
	t.Helper()
	c := exec.Command("sh", "-c", `"$0" -test.run='^TestCoreProcess$'; true`, os.Args[0])
	c.Env = append(os.Environ(), "RUNNER_CORE="+keeps)
	in, err := c.StdinPipe()
	require.NoError(t, err)
	pipe, err := c.StdoutPipe()
	require.NoError(t, err)
	out := bufio.NewReader(pipe)
	require.NoError(t, c.Start())
	defer func() {
		in.Close()
		_, _ = io.Copy(io.Discard, out)
		assert.NoError(t, c.Wait())
	}()
	return leakcheck.MeasureGrowthOf(t.Context(), leakcheck.Tree(c.Process.Pid), rounds, func(int) {
		_, err := fmt.Fprintln(in, "requests")
		require.NoError(t, err)
		line, err := out.ReadString('\n')
		require.Equal(t, "done\n", line, "%v", err)
	})
}

// A core that keeps 200 KiB of each round in a cycle of requests is found within 20 rounds, and its
// process and place are named; one that keeps nothing is not, over 50. ENGINETEST_LONG=1 measures
// how often: 40 cores that leak, 20 that don't.
func TestGrowthOfACore(t *testing.T) {
	if testing.Short() {
		t.Skip("90 rounds of an engine in another process")
	}
	leaky, clean := 1, 1
	if os.Getenv("ENGINETEST_LONG") != "" {
		leaky, clean = 40, 20
	}
	found, alarms := 0, 0
	for i := range leaky {
		rep, err := growthOfACore(t, "a cycle", 20)
		if rep == nil {
			t.Skip(err) // a program under the race detector
		}
		var grown *leakcheck.Error
		if errors.As(err, &grown) {
			found++
			if i == 0 {
				t.Log(err)
				assert.ErrorContains(t, err, "anonymous memory of the family: ")
				assert.ErrorContains(t, err, "core RSS")
				assert.ErrorContains(t, err, "-test.run=^TestCoreProcess$")
			}
		} else {
			t.Logf("not found: %v\n%s", err, rep.Table())
		}
	}
	for range clean {
		rep, err := growthOfACore(t, "nothing", 50)
		if err != nil {
			alarms++
			t.Logf("a false alarm: %v\n%s", err, rep.Table())
		}
	}
	t.Logf("%d of %d cores that keep 200 KiB of a round found within 20 rounds; %d alarms for %d that keep nothing over 50",
		found, leaky, alarms, clean)
	assert.GreaterOrEqual(t, found, (95*leaky+99)/100)
	assert.Zero(t, alarms)
}
