// Package shutdown_test is a suite that a user of enginetest might write for an engine of their
// own: every way to end an engine, in every place that an engine can be, on one device and on two
// that share the model, and after each the proof that it is gone. It prints a table of its
// verdicts.
//
// The engine runs on GPUs when there are some, else on the CPU, which emulates two devices: nothing
// here knows. With one GPU the rows of two are skipped. What an HTTP server does upon SIGTERM and
// SIGINT belongs to that server's own tests.
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
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/forkproc"
	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/runner"
)

var _ harness.ProcessLister = (*engine.Engine)(nil) // so the teardown looks for the core's process

func TestMain(m *testing.M) {
	if os.Getenv(envVictim) != "" {
		victim() // does not return
	}
	if text := os.Getenv(envProgram); text != "" {
		os.Exit(serve(text))
	}
	gpus() // before anything is measured: it opens the driver
	code := m.Run()
	if !forkproc.InChild() {
		verdicts.print()
	}
	os.Exit(code)
}

// envVictim makes this test binary a program that serves from a child core until it is killed. Its
// value finds its processes. envDevices says on how many devices.
const (
	envVictim  = "SHUTDOWN_VICTIM"
	envDevices = "SHUTDOWN_VICTIM_DEVICES"
)

func victim() {
	n, _ := strconv.Atoi(os.Getenv(envDevices))
	e, err := engine.Open(context.Background(), engine.Config{
		Model: fixtures.Bundled(), Core: engine.ChildProcess, TensorParallel: n, OffloadBytes: 1 << 20,
	})
	for err == nil {
		_, err = e.Generate(context.Background(), some(400), some(400))
	}
	fmt.Println("victim:", err)
	time.Sleep(time.Minute) // no one but the test ends it
}

// rounds is how often something is repeated.
func rounds(short, long int) int {
	if os.Getenv("ENGINETEST_LONG") != "" {
		return long
	}
	return short
}

// mode is a place where an engine can be, and a number of devices.
type mode struct {
	name    string
	core    engine.Core
	fork    bool // the whole test runs in a process of its own
	devices int
}

var modes = []mode{
	{"in-process", engine.InProcess, false, 1},
	{"in-process x2", engine.InProcess, false, 2},
	{"child core", engine.ChildProcess, false, 1},
	{"child core x2", engine.ChildProcess, false, 2},
	{"test in child", engine.InProcess, true, 1},
	{"test in child x2", engine.InProcess, true, 2},
}

// everywhere runs a case in every mode, each of them a subtest with a verdict.
func everywhere(t *testing.T, name string, body func(t *testing.T, cfg engine.Config)) {
	t.Helper()
	for _, m := range modes {
		in(t, m, name, body)
	}
}

// inChildCores runs a case that ends the core's process.
func inChildCores(t *testing.T, name string, body func(t *testing.T, cfg engine.Config)) {
	t.Helper()
	for _, m := range modes {
		if m.core == engine.ChildProcess {
			in(t, m, name, body)
		}
	}
}

// planted is what tests of other packages plant in shared memory. It is no child's of this one: go
// test ./... runs packages beside each other.
var planted = []string{
	"/dev/shm/forkproc-*", "/dev/shm/et-*", "/dev/shm/sem.et-*", "/dev/shm/planted-*", "/dev/shm/sem.planted-*",
	"/dev/shm/heldout-*", "/dev/shm/leakcheck-test*",
}

func (m mode) config() engine.Config {
	return engine.Config{
		Model: fixtures.Bundled(), Core: m.core, TensorParallel: m.devices, MaxModelLen: 512, KVCacheBytes: 8 << 20 / int64(m.devices),
		Logger: slog.New(slog.DiscardHandler), // failures are meant here
	}
}

// on returns a fault that strikes the last device alone: the others only notice.
func on(cfg engine.Config, f llm.Fault) []llm.Fault {
	f.Rank = cfg.TensorParallel - 1
	return []llm.Fault{f}
}

// in runs a case in one mode.
func in(t *testing.T, m mode, name string, body func(t *testing.T, cfg engine.Config)) {
	t.Helper()
	t.Run(name+"/"+m.name, func(t *testing.T) {
		began := time.Now()
		t.Cleanup(func() { verdicts.add(name, m.name, verdict(t), time.Since(began)) })
		if n := gpus(); n > 0 && n < m.devices {
			t.Skipf("two devices share the model here, and this machine has %d GPU", n)
		}
		if m.fork {
			forkproc.Run(t, func(t *testing.T) { body(t, m.config()) }, forkproc.Accept(planted...))
			return
		}
		body(t, m.config())
	})
}

// gpus is how many GPUs an engine would see. None: the CPU emulates as many devices as are wanted.
var gpus = sync.OnceValue(func() int {
	src, err := gpuwait.Open()
	if err != nil {
		return 0
	}
	defer src.Close()
	all, err := src.Devices()
	if err != nil {
		return 0
	}
	visible, err := gpuwait.Visible(all, os.LookupEnv)
	if err != nil {
		return 0
	}
	return len(visible)
})

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
		fmt.Printf("  %-16s", m.name)
	}
	fmt.Println()
	for _, row := range v.rows {
		fmt.Printf("%-44s", row)
		for _, m := range modes {
			cell := v.cells[[2]string{row, m.name}]
			if cell == "" {
				cell = "-"
			}
			fmt.Printf("  %-16s", cell)
		}
		fmt.Println()
	}
}

// start starts an engine that the test owns: when the test ends, or at Stop, it is shut down and
// proven gone by seven checks.
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

// failedStart opens an engine that cannot start, and returns why. What is left of it fails the
// test.
func failedStart(t *testing.T, ctx context.Context, cfg engine.Config) error {
	t.Helper()
	f, err := runner.Open(ctx, func(ctx context.Context) (*engine.Engine, error) {
		return engine.Open(ctx, cfg)
	}, runner.Name(t.Name()))
	if err == nil {
		f.Close(ctx)
		t.Fatal("the engine started")
	}
	if _, ok := errors.AsType[*runner.Error](err); ok {
		t.Error(err)
	}
	return err
}

// some is a short request that does not stop by itself before this many tokens.
func some(tokens int) engine.Request {
	return engine.Request{Prompt: "The lighthouse", Sampling: engine.SamplingParams{MaxTokens: tokens, IgnoreEOS: true}}
}

// answer is what a request got.
type answer struct {
	outs   []engine.Output
	err    error
	before []engine.Output // of the client's request before
}

// inFlight starts n requests that run when it returns, and returns what collects their answers. One
// that is over before the others run, on a busy machine, is started again; when that finds the
// engine draining, the first answer counts.
func inFlight(t *testing.T, r *runner.Runner, e *engine.Engine, n, tokens int) func() []answer {
	t.Helper()
	answers, stop := clients(t, r, e, n, tokens)
	stop()
	return func() []answer {
		all := answers()
		for i, a := range all {
			if a.before != nil && errors.Is(a.err, llm.ErrDraining) {
				all[i] = answer{outs: a.before}
			}
		}
		return all
	}
}

// underLoad starts n clients that ask again and again until they are refused, or until their
// answers are collected: whatever comes meets requests in flight.
func underLoad(t *testing.T, r *runner.Runner, e *engine.Engine, n, tokens int) func() []answer {
	t.Helper()
	answers, stop := clients(t, r, e, n, tokens)
	return func() []answer { stop(); return answers() }
}

// clients starts n clients that ask until they are refused or stopped, and waits until all are
// served at once.
func clients(t *testing.T, r *runner.Runner, e *engine.Engine, n, tokens int) (answers func() []answer, stop func()) {
	t.Helper()
	all := make([]answer, n)
	var wg sync.WaitGroup
	var stopped atomic.Bool
	for i := range n {
		wg.Go(func() {
			for a := &all[i]; ; a.before = a.outs {
				if a.outs, a.err = r.TryGenerate(some(tokens)); a.err != nil || stopped.Load() {
					return
				}
			}
		})
	}
	eventually(t, "the requests run", func() bool { return e.Stats().Running == n || e.Err() != nil })
	return func() []answer { wg.Wait(); return all }, func() { stopped.Store(true) }
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
