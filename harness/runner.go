package harness

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/enginetest/enginetest/internal/popped"
	"github.com/enginetest/enginetest/internal/repro"
	"github.com/enginetest/enginetest/internal/testlog"
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
	until   time.Time // when verbs must have ended; zero: never
	streams *sync.Map // of *pulled: those that run
}

// Start starts any engine for the length of the test: open starts it and returns it, with an error
// or without. In t.Cleanup it is shut down, and the test fails when anything of it is left.
func Start[E Engine](t TB, open func(context.Context) (E, error), opts ...Option) *Runner {
	t.Helper()
	r := newRunner(t, opts)
	own := []Option{Name(t.Name()), untilDeadline(t), logTo(t), besideTest(t), func(o *options) { o.exited = r.report }}
	f, err := Open(r.ctx, open, append(own, opts...)...)
	if err != nil {
		r.cancel()
		verdict.Record(t, verdictsOf(err)...)
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
	if left, ok := timeLeft(t); ok {
		r.until = time.Now().Add(forVerbs(left))
	}
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
	testlog.Attach(r.t, testlog.KindTeardown, report)
	for _, s := range report.Steps {
		testlog.Attr(r.t, "teardown."+s.Name, s.outcome())
	}
	if err := report.Err(); err != nil {
		err.(*Error).Repro = r.repro //nolint:errorlint // Err makes it
		verdict.Record(r.t, verdict.Of(err)...)
		r.t.Errorf("%s: %v", r.pkg, err)
	}
}

// Engine is the engine, for what has no method here. Do not keep it beyond the test: the teardown
// proves that no one does.
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

// verbReserve is what verbs leave of the test's time, at most, to the teardown.
const verbReserve = 30 * time.Second

// forVerbs is the part of a test's time that its engine's start and its verbs may use.
func forVerbs(left time.Duration) time.Duration { return left - min(left/2, verbReserve) }

// timeLeft is how long a test has before its own deadline, without what it needs for its own end: a
// tenth, at most five seconds. ok is false when it has no deadline.
func timeLeft(t TB) (left time.Duration, ok bool) {
	d, ok := t.(interface{ Deadline() (time.Time, bool) })
	if !ok {
		return 0, false
	}
	defer func() {
		if recover() != nil { // in a bubble of testing/synctest, where real time means nothing, Deadline panics
			left, ok = 0, false
		}
	}()
	end, ok := d.Deadline()
	left = time.Until(end)
	return left - min(left/10, 5*time.Second), ok
}

// untilDeadline keeps start and teardown within the time that the test has left, so that their own
// messages come first.
func untilDeadline(t TB) Option {
	return func(o *options) {
		if left, ok := timeLeft(t); ok {
			o.teardown, o.startBy = min(o.teardown, left/2), time.Now().Add(forVerbs(left))
			o.end = time.Now().Add(left)
		}
	}
}

// errDeadline is the cause of a verb that ended so that the test can still be torn down.
var errDeadline = errors.New("the test's own deadline is near (go test -timeout)")

// working returns the context of a verb.
func (r *Runner) working() (context.Context, context.CancelFunc) {
	if r.until.IsZero() {
		return context.WithCancel(r.ctx)
	}
	return context.WithDeadlineCause(r.ctx, r.until, errDeadline)
}

// call calls the engine under the fixture's labels, and leaves it behind when it goes on after the
// time that the test has for it. The error then says where the engine waits.
func call[T any](r *Runner, e any, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := r.working()
	defer cancel()
	type result struct {
		v   T
		err error
	}
	ended := make(chan result, 1)
	stuck := within(ctx, func() {
		r.fixture.scope.Do(func() {
			v, err := f(ctx)
			ended <- result{v, err}
		})
	})
	if stuck != nil {
		var none T
		return none, stuck.of(ctx, fmt.Sprintf("%T", e))
	}
	got := <-ended
	if cause := context.Cause(ctx); got.err != nil && errors.Is(cause, errDeadline) && !errors.Is(got.err, cause) {
		got.err = fmt.Errorf("%w (%w)", got.err, cause)
	}
	return got.v, got.err
}

// logTo lets long waits say so in the test's log.
func logTo(t TB) Option {
	return func(o *options) {
		if l, ok := t.(interface{ Logf(string, ...any) }); ok {
			o.say = func(line string) { l.Logf("%s", line) }
		}
	}
}

// reproduce returns the command that runs this test alone. Where the binary does not record its
// package, it is that of the innermost caller outside of the fixture.
func reproduce(test string) string {
	if pkg := repro.Package(); pkg != "" {
		return repro.Command(pkg, test)
	}
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	pkg := "."
	for {
		f, more := frames.Next()
		if p := packageOf(f.Function); p != thisPackage && p != bundledPackage {
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
