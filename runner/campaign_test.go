package runner_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/faketb"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/runner"
)

// catEngine is someone else's engine: a program that answers each line with itself.
type catEngine struct {
	cmd *exec.Cmd
	in  io.WriteCloser

	mu  sync.Mutex
	out *bufio.Reader
}

func openCat(context.Context) (*catEngine, error) {
	e := &catEngine{cmd: exec.Command("cat")}
	in, err := e.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	e.in, e.out = in, bufio.NewReader(out)
	return e, e.cmd.Start()
}

func (e *catEngine) Generate(_ context.Context, reqs ...engine.Request) (outs []engine.Output, _ error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range reqs {
		if _, err := fmt.Fprintln(e.in, r.Prompt); err != nil {
			return nil, err
		}
		line, err := e.out.ReadString('\n')
		if err != nil {
			return nil, err
		}
		outs = append(outs, engine.Output{Completions: []llm.Completion{{Text: strings.TrimSuffix(line, "\n")}}})
	}
	return outs, nil
}

func (e *catEngine) Shutdown(context.Context) error { return errors.Join(e.in.Close(), e.cmd.Wait()) }
func (e *catEngine) PIDs() []int                    { return []int{e.cmd.Process.Pid} }

// TestCleanLives counts the alarms over clean lives of three engines: the bundled one in this
// process, with a core of its own, and a program with two methods around it; one after the other,
// and four at a time. ENGINETEST_LONG is how many lives of the fast ones, 5,000 for 1; a core of
// its own has a twentieth.
func TestCleanLives(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("ENGINETEST_LONG"))
	if n == 0 {
		t.Skip("ENGINETEST_LONG=1 runs it")
	}
	if n == 1 {
		n = 5000
	}
	dir := t.TempDir()
	require.NoError(t, fixtures.WriteCheckpoint(dir, fixtures.Spec{}))
	bundled := func(core engine.Core) func(*faketb.T) *runner.Runner {
		return func(ft *faketb.T) *runner.Runner {
			return runner.New(ft, runner.Config{Model: dir, Device: "cpu", Core: core})
		}
	}
	for _, row := range []struct {
		name  string
		lives int
		start func(*faketb.T) *runner.Runner
	}{
		{"in process", n / 2, bundled(engine.InProcess)},
		{"a core of its own", max(1, n/20), bundled(engine.ChildProcess)},
		{"a program", n / 2, func(ft *faketb.T) *runner.Runner {
			return runner.Start(ft, openCat, runner.WithoutDeviceMemory("it has none"))
		}},
	} {
		life := func() []string {
			return faketb.Run(func(ft *faketb.T) {
				r := row.start(ft)
				r.Generate(engine.Request{
					Prompt: "x", PromptTokenIDs: promptOf(r), Sampling: engine.SamplingParams{MaxTokens: 2},
				})
			})
		}
		var alarms atomic.Int64
		several := func(t *testing.T, lives int) {
			for range lives {
				if failures := life(); len(failures) > 0 && alarms.Add(1) <= 3 {
					t.Log(failures)
				}
			}
		}
		t.Run(row.name, func(t *testing.T) {
			t.Run("alone", func(t *testing.T) { several(t, row.lives/2) })
			t.Run("at once", func(t *testing.T) {
				for i := range 4 {
					t.Run(fmt.Sprint(i), func(t *testing.T) {
						t.Parallel()
						several(t, row.lives/8)
					})
				}
			})
		})
		t.Logf("%s: %d false alarms in %d lives", row.name, alarms.Load(), row.lives/2+row.lives/8*4)
		assert.Zero(t, alarms.Load(), row.name)
	}
}

// promptOf is a prompt that the engine takes: the tiny checkpoint has no tokenizer.
func promptOf(r *runner.Runner) []int32 {
	if _, ok := r.Engine().(*catEngine); ok {
		return nil
	}
	return []int32{1, 2, 3}
}
