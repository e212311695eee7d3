package harness

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/enginetest/enginetest/internal/popped"
	"github.com/enginetest/enginetest/internal/repro"
	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/verdict"
)

// TB is the part of testing.TB that a fixture uses.
type TB interface {
	Helper()
	Name() string
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

var _ TB = testing.TB(nil)

// Runner is an engine that a test owns. Its methods fail the test when the engine fails; the Try
// forms return the error.
type Runner struct {
	t       TB
	ctx     context.Context // of the verbs
	cancel  context.CancelFunc
	fixture *Fixture
	pkg     string // that messages name
	repro   string
	streams *sync.Map // of *pulled: those that run
}

// Start starts any engine for the length of the test: open starts it and returns it, with an error
// or without. In t.Cleanup it is shut down, and the test fails when anything of it is left.
func Start[E Engine](t TB, open func(context.Context) (E, error), opts ...Option) *Runner {
	t.Helper()
	r := newRunner(t, opts)
	own := []Option{Name(t.Name()), untilDeadline(t), logTo(t), func(o *options) { o.exited = r.report }}
	f, err := Open(r.ctx, open, append(own, opts...)...)
	if err != nil {
		r.cancel()
		verdict.Record(t, verdict.Of(err)...)
		t.Fatalf("%s: %v\nto reproduce: %s", r.pkg, err, r.repro)
		panic("unreachable: Fatalf returned") // a fake TB
	}
	r.fixture = f
	t.Cleanup(func() {
		t.Helper()
		popped.Clear(t)
		r.Stop()
		if log, ok := t.(interface{ Logf(string, ...any) }); ok {
			for _, p := range leakcheck.Unmatched(f.opts.allow...) {
				log.Logf("%s: Allow(%q, …) matched nothing: remove it", r.pkg, p)
			}
		}
	})
	return r
}

// newRunner makes a Runner that has no fixture yet.
func newRunner(t TB, opts []Option) *Runner {
	r := &Runner{t: t, pkg: packageName(opts), repro: reproduce(t.Name()), streams: new(sync.Map)}
	r.ctx, r.cancel = context.WithCancel(context.Background()) // t.Context() is cancelled before cleanups run
	return r
}

// Stop ends the engine now and checks that nothing of it is left; t.Cleanup does it otherwise. What
// is left fails the test; the test goes on.
func (r *Runner) Stop() Report {
	r.t.Helper()
	r.endStreams()
	first := r.fixture.Engine() != nil
	report := r.fixture.Close(context.Background())
	r.cancel()
	if first {
		r.report(report)
	}
	return report
}

// report fails the test with what is left.
func (r *Runner) report(report Report) {
	r.t.Helper()
	verdict.Attach(r.t, verdict.KindTeardown, report)
	if err := report.Err(); err != nil {
		err.(*Error).Repro = r.repro //nolint:errorlint // Err makes it
		verdict.Record(r.t, verdict.Of(err)...)
		r.t.Errorf("%s: %v", r.pkg, err)
	}
}

// Engine is the engine, for what has no method here. Do not keep it beyond the test: the teardown
// proves that nobody does.
func (r *Runner) Engine() Engine {
	r.t.Helper()
	return r.running()
}

func (r *Runner) running() Engine {
	r.t.Helper()
	e := r.fixture.Engine()
	if e == nil {
		r.t.Fatalf("%s: %v", r.pkg, r.stopped())
	}
	return e
}

func (r *Runner) stopped() error {
	return fmt.Errorf("%s has been stopped by Stop, or its test is over: %w", r.fixture.opts.name, llm.ErrStopped)
}

// untilDeadline keeps start and teardown within the time that the test has left, so that their own
// messages come first: a tenth of what is left, at most five seconds, is kept for the test's own
// end.
func untilDeadline(t TB) Option {
	return func(o *options) {
		d, ok := t.(interface{ Deadline() (time.Time, bool) })
		if !ok {
			return
		}
		defer func() { _ = recover() }() // in a bubble of testing/synctest, where real time means nothing, Deadline panics
		if end, ok := d.Deadline(); ok {
			left := time.Until(end)
			left -= min(left/10, 5*time.Second)
			o.start, o.teardown = min(o.start, left), min(o.teardown, left/2)
			o.end = time.Now().Add(left)
		}
	}
}

// logTo lets long waits say so in the test's log.
func logTo(t TB) Option {
	return func(o *options) {
		if l, ok := t.(interface{ Logf(string, ...any) }); ok {
			o.say = func(line string) { l.Logf("%s", line) }
		}
	}
}

// repro is the command that runs this test alone. The package is that of the innermost caller
// outside this one.
func reproduce(test string) string {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	pkg := "."
	for {
		f, more := frames.Next()
		if p := packageOf(f.Function); p != packageOf(thisPackage) {
			pkg = strings.TrimSuffix(p, "_test") // an external test package is run by the name of its folder
			break
		}
		if !more {
			break
		}
	}
	return repro.Command(pkg, test)
}

// The packages whose callers are a test's own code.
const (
	thisPackage    = "github.com/enginetest/enginetest/harness"
	bundledPackage = "github.com/enginetest/enginetest/runner"
)

// packageOf cuts "a.com/b/c.(*T).m.func1" to "a.com/b/c".
func packageOf(function string) string {
	slash := strings.LastIndexByte(function, '/')
	dot := strings.IndexByte(function[slash+1:], '.')
	if dot < 0 {
		return function
	}
	return function[:slash+1+dot]
}
