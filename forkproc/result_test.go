package forkproc_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/forkproc"
)

type stats struct {
	Tokens []int
	Took   time.Duration
	When   time.Time
	By     map[string]float64
}

var want = stats{[]int{1, 2, 3}, time.Second, time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), map[string]float64{"p": 0.1}}

func TestResult(t *testing.T) {
	captured := 1
	parent := os.Getpid()
	got := forkproc.Result(t, func(t *testing.T) stats {
		captured = 2
		require.True(t, forkproc.InChild())
		return want
	})
	require.Equal(t, want, got)
	require.Equal(t, 1, captured, "the child has a variable of its own")
	require.Equal(t, parent, os.Getpid())
}

// The second child does not call the first body again: it gets its value.
func TestResultTwice(t *testing.T) {
	first := forkproc.Result(t, func(*testing.T) int { return os.Getpid() })
	second := forkproc.Result(t, func(*testing.T) [2]int { return [2]int{first, os.Getpid()} })
	require.Equal(t, first, second[0])
	require.NotEqual(t, first, second[1])
}

func TestResultInASubtest(t *testing.T) {
	for i := range 2 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			require.Equal(t, i, forkproc.Result(t, func(t *testing.T) (n int) {
				t.Run("inner", func(*testing.T) { n = i })
				return n
			}))
		})
	}
}

func TestResultOfADeath(t *testing.T) {
	got := forkproc.Result(t, func(*testing.T) int { os.Exit(3); return 1 }, forkproc.Expect(forkproc.Exited(3)))
	require.Zero(t, got)
	got = forkproc.Result(t, func(*testing.T) int { panic("boom") }, forkproc.Expect(forkproc.Panicked("boom")))
	require.Zero(t, got)
}

func TestResultThatDoesNotEncode(t *testing.T) {
	forkproc.Result(t, func(*testing.T) float64 { return math.NaN() },
		forkproc.Expect(forkproc.Failed("the value does not encode: json: unsupported value: NaN")))
}

type model struct{ Path, Fault string }

var load = forkproc.Register("load", func(ctx context.Context, m model) (stats, error) {
	fmt.Println("loading", m.Path)
	switch m.Fault {
	case "error":
		return stats{}, errors.New("truncated file")
	case "panic":
		panic("weights: boom")
	case "exit":
		os.Exit(0)
	case "hang":
		time.Sleep(time.Hour)
	case "file":
		_ = os.WriteFile(os.TempDir()+"/left.bin", nil, 0o600)
	}
	return want, nil
})

func TestFunc(t *testing.T) {
	var out strings.Builder
	got, err := load.Call(t.Context(), model{Path: "m.gguf"}, forkproc.Output(&out))
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, "loading m.gguf\n", out.String())
	require.Equal(t, want, load.Run(t, model{Path: "m.gguf"}))
}

func TestFuncInABenchmark(t *testing.T) {
	ran := 0
	r := testing.Benchmark(func(b *testing.B) {
		b.Helper()
		for range min(b.N, 1) {
			if load.Run(b, model{Path: "m.gguf"}).Took == want.Took {
				ran++
			}
		}
	})
	require.Positive(t, r.N)
	require.Positive(t, ran)
}

// TestMain's set-up runs in the root process only, and may call a Func.
func TestFuncInTestMain(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "FORKPROC_HELPER=set up")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.True(t, strings.HasPrefix(string(out), "{[1 2 3] 1s "), "%s", out)
}

func TestFuncThatFails(t *testing.T) {
	for _, row := range []struct {
		fault  string
		status forkproc.Status
		msg    string
	}{
		{"error", forkproc.StatusFailed, `forkproc: load: child \(pid \d+, .*\) returned an error: truncated file\n`},
		{"panic", forkproc.StatusPanicked, `crashed \(exit code 2\): panic: weights: boom`},
		{
			"exit", forkproc.StatusExited,
			`exited with code 0 before the function finished \(a C library called exit, or os.Exit\(0\)\?\)`,
		},
	} {
		_, err := load.Call(t.Context(), model{"m.gguf", row.fault})
		var e *forkproc.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, row.status, e.Outcome.Status)
		require.Equal(t, "load", e.Func)
		require.Regexp(t, row.msg, err.Error())
		require.Contains(t, err.Error(), "loading m.gguf")
	}
	_, err := load.Call(t.Context(), model{"m.gguf", "panic"}, forkproc.Expect(forkproc.Panicked("boom")))
	require.NoError(t, err)
	_, err = load.Call(t.Context(), model{Path: "m.gguf"}, forkproc.Expect(forkproc.Panicked("boom")))
	require.ErrorContains(t, err, "expected: crashed with \"boom\"")
}

func TestFuncLeftovers(t *testing.T) {
	got, err := load.Call(t.Context(), model{"m.gguf", "file"})
	var e *forkproc.Error
	require.ErrorAs(t, err, &e)
	require.Len(t, e.Outcome.Leftovers, 1)
	require.Equal(t, forkproc.LeftoverTempFile, e.Outcome.Leftovers[0].Kind)
	require.Equal(t, "left.bin", e.Outcome.Leftovers[0].Name)
	require.Equal(t, want, got, "the value is valid")
	_, err = load.Call(t.Context(), model{"m.gguf", "file"}, forkproc.Accept("*.bin"))
	require.NoError(t, err)
}

func TestFuncIsCanceled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(errors.New("the spec is over")) })
	_, err := load.Call(ctx, model{"m.gguf", "hang"})
	var e *forkproc.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, forkproc.StatusTimedOut, e.Outcome.Status)
	require.Contains(t, e.Outcome.Reason, "the spec is over")
	_, err = load.Call(t.Context(), model{"m.gguf", "hang"}, forkproc.Timeout(50*time.Millisecond))
	require.ErrorContains(t, err, "ran into its time limit of 50ms")
}

func TestRegisterRefuses(t *testing.T) {
	panics := func(want string, f func()) {
		t.Helper()
		require.PanicsWithValue(t, want, f)
	}
	panics(`forkproc: Register("load"): the name is taken`, func() {
		forkproc.Register("load", func(context.Context, int) (int, error) { return 0, nil })
	})
	panics(`forkproc: Register("x"): interface {} is of type interface {}, which does not come back from a child`,
		func() {
			forkproc.Register("x", func(context.Context, int) (any, error) { return 0, nil })
		})
	panics(`forkproc: Register("x"): forkproc_test.hidden.b would be lost on the way from the child: JSON carries exported fields only`, func() {
		forkproc.Register("x", func(context.Context, hidden) (int, error) { return 0, nil })
	})
}

type hidden struct {
	A int
	b int //nolint:unused // the point
}
