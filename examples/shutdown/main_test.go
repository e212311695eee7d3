// Package shutdown_test is a suite that a user of enginetest might write for an engine of their own: every way to end an engine, in every place
// that an engine can be, and after each the proof that it is gone. It prints a table of its verdicts.
//
// The engine runs on a GPU when there is one, else on the CPU: nothing here knows. More than one device per engine is not in the table, because
// the bundled engine uses one. What a server does upon SIGTERM and SIGINT belongs to the server's own tests.
//
//	go test ./examples/shutdown                             # 5 deaths at random moments of each kind, 10 engines in sequence
//	ENGINETEST_LONG=1 go test -timeout 20m ./examples/shutdown # 200, and 50
package shutdown_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/forkproc"
	"github.com/enginetest/enginetest/runner"
)

var _ runner.Forker = (*engine.Engine)(nil) // so the teardown looks for the core's process

func TestMain(m *testing.M) {
	if os.Getenv(envVictim) != "" {
		victim() // does not return
	}
	code := m.Run()
	if !forkproc.InChild() {
		verdicts.print()
	}
	os.Exit(code)
}

// envVictim makes this test binary a program that serves from a child core until it is killed. Its value finds its processes.
const envVictim = "SHUTDOWN_VICTIM"

func victim() {
	e, err := engine.Open(context.Background(), engine.Config{Model: fixtures.Bundled(), Core: engine.ChildProcess, OffloadBytes: 1 << 20})
	for err == nil {
		_, err = e.Generate(context.Background(), some(400), some(400))
	}
	fmt.Println("victim:", err)
	time.Sleep(time.Minute) // nobody but the test ends it
}

// rounds is how often something is repeated.
func rounds(short, long int) int {
	if os.Getenv("ENGINETEST_LONG") != "" {
		return long
	}
	return short
}

// modes are the places where an engine can be.
var modes = []struct {
	name string
	core engine.Core
	fork bool // the whole test runs in a process of its own
}{
	{"in-process", engine.InProcess, false},
	{"child core", engine.ChildProcess, false},
	{"test in child", engine.InProcess, true},
}

// everywhere runs a case in every mode, each of them a subtest with a verdict.
func everywhere(t *testing.T, name string, body func(t *testing.T, cfg engine.Config)) {
	t.Helper()
	for _, m := range modes {
		in(t, m.name, name, m.fork, func(t *testing.T) {
			body(t, config(m.core))
		})
	}
}

func config(core engine.Core) engine.Config {
	return engine.Config{
		Model: fixtures.Bundled(), Core: core, MaxModelLen: 512, KVCacheBytes: 8 << 20,
		Logger: slog.New(slog.DiscardHandler), // failures are meant here
	}
}

// in runs a case in one mode.
func in(t *testing.T, mode, name string, fork bool, body func(t *testing.T)) {
	t.Helper()
	t.Run(name+"/"+mode, func(t *testing.T) {
		began := time.Now()
		t.Cleanup(func() { verdicts.add(name, mode, verdict(t), time.Since(began)) })
		if fork {
			forkproc.Run(t, body)
			return
		}
		body(t)
	})
}

func verdict(t *testing.T) string {
	switch {
	case t.Failed():
		return "FAILED"
	case t.Skipped():
		return "skipped"
	}
	return "gone"
}

// table collects verdicts: a row a case, a column a mode.
type table struct {
	sync.Mutex
	rows  []string
	cells map[[2]string]string
}

var verdicts = table{cells: map[[2]string]string{}}

func (v *table) add(row, mode, verdict string, took time.Duration) {
	v.Lock()
	defer v.Unlock()
	if !slices.Contains(v.rows, row) {
		v.rows = append(v.rows, row)
	}
	v.cells[[2]string{row, mode}] = fmt.Sprintf("%s %s", verdict, took.Round(time.Millisecond))
}

func (v *table) print() {
	if len(v.rows) == 0 {
		return
	}
	fmt.Printf("%-44s", "verdicts")
	for _, m := range modes {
		fmt.Printf("  %-14s", m.name)
	}
	fmt.Println()
	for _, row := range v.rows {
		fmt.Printf("%-44s", row)
		for _, m := range modes {
			cell := v.cells[[2]string{row, m.name}]
			if cell == "" {
				cell = "-"
			}
			fmt.Printf("  %-14s", cell)
		}
		fmt.Println()
	}
}

// start starts an engine that the test owns: when the test ends, or at Stop, it is shut down and proven gone by seven checks.
func start(t *testing.T, cfg engine.Config) (*runner.Runner, *engine.Engine) {
	t.Helper()
	r := runner.New(t, cfg)
	return r, r.Engine().(*engine.Engine)
}

// gone ends the engine now. What is left of it fails the test.
func gone(t *testing.T, r *runner.Runner) {
	t.Helper()
	report := r.Stop()
	if err := report.Err(); err != nil {
		t.Fatal(err)
	}
	for _, s := range report.Steps {
		if s.Skipped != "" && s.Name != "device memory" {
			t.Errorf("%s was not checked: %s", s.Name, s.Skipped)
		}
	}
}

// failedStart opens an engine that cannot start, and returns why. What is left of it fails the test.
func failedStart(t *testing.T, ctx context.Context, cfg engine.Config) error {
	t.Helper()
	f, err := runner.Open(ctx, func(ctx context.Context) (*engine.Engine, error) { return engine.Open(ctx, cfg) }, runner.Name(t.Name()))
	if err == nil {
		f.Close(ctx)
		t.Fatal("the engine started")
	}
	var left *runner.Error
	if errors.As(err, &left) {
		t.Error(err)
	}
	return err
}

// some is a short request that does not stop by itself before so many tokens.
func some(tokens int) engine.Request {
	return engine.Request{Prompt: "The lighthouse", Sampling: engine.SamplingParams{MaxTokens: tokens, IgnoreEOS: true}}
}

// answer is what a request got.
type answer struct {
	outs []engine.Output
	err  error
}

// inFlight starts n requests that run when it returns, and gives what collects their answers.
func inFlight(t *testing.T, r *runner.Runner, e *engine.Engine, n, tokens int) func() []answer {
	t.Helper()
	answers := make([]answer, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { answers[i].outs, answers[i].err = r.TryGenerate(some(tokens)) })
	}
	eventually(t, "the requests run", func() bool { return e.Stats().Running == n || e.Err() != nil })
	return func() []answer { wg.Wait(); return answers }
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10s: %s", what)
		}
	}
}
