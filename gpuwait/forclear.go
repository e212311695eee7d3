package gpuwait

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/enginetest/enginetest/internal/repro"
)

// TB is what the wrappers need of a test. Every testing.TB has it; one that also has Deadline (a *testing.T) bounds the waits.
type TB interface {
	Helper()
	Name() string
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Cleanup(f func())
}

// From makes a wrapper use this source; without it, Open's.
func From(src Source) Option { return func(o *options) { o.src = src } }

// Grace is how long before the test's own deadline a wait must end, so that its message wins over the panic of go test's alarm. The default is
// a tenth of the time that is left, at least 1 s and at most 10 s.
func Grace(d time.Duration) Option { return func(o *options) { o.grace = d } }

// SkipUnmeasurable makes the wrapper skip the test, with the reason, where nothing can be measured or the environment hides every device. Without it that is a failure: a check that
// did not happen must not look like one that passed.
func SkipUnmeasurable() Option { return func(o *options) { o.skip = true } }

// ForClear waits for the condition, and fails the test with the report when it is not met. It ends before the test's own deadline. The test's
// context is not used: it is cancelled before cleanups run, and that is where this is called.
func ForClear(t TB, cond Condition, opts ...Option) Report {
	t.Helper()
	o := newOptions(opts)
	if o.reproduce == "" {
		opts = append(opts, Reproduce(reproduce(t.Name())))
	}
	src, closeSource, err := o.source()
	if err != nil {
		o.give(t, err)
		return Report{Ending: Unmeasurable}
	}
	defer closeSource()
	ctx, cancel := o.within(t)
	defer cancel()
	r, err := Clear(ctx, src, cond, opts...)
	if err != nil {
		o.give(t, err)
	}
	return r
}

func (o *options) source() (src Source, closeSource func(), err error) {
	if o.src != nil {
		return o.src, func() {}, nil
	}
	s, err := Open()
	if err != nil {
		return nil, nil, err
	}
	return s, func() { _ = s.Close() }, nil
}

func (o *options) give(t TB, err error) {
	t.Helper()
	if o.skip && (errors.Is(err, ErrCannotMeasure) || errors.Is(err, ErrNoneVisible)) {
		t.Skipf("%v", err)
	}
	t.Fatalf("%v", err)
}

// errTestDeadline is the cause of a wait that ended so that the test could still speak.
var errTestDeadline = errors.New("the test's own deadline is near (go test -timeout)")

// within gives a context that ends before the test does.
func (o *options) within(t TB) (context.Context, context.CancelFunc) {
	end, ok := testDeadline(t)
	if !ok {
		return context.WithCancel(context.Background())
	}
	grace := o.grace
	if grace == 0 {
		grace = min(max(time.Until(end)/10, time.Second), 10*time.Second)
	}
	return context.WithDeadlineCause(context.Background(), end.Add(-grace), errTestDeadline)
}

func testDeadline(t TB) (time.Time, bool) {
	if d, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		return d.Deadline()
	}
	return time.Time{}, false
}

// reproduce is the go test command for one test of this binary.
func reproduce(test string) string {
	return repro.Command(cmp.Or(repro.Package(), "./"+strings.TrimSuffix(filepath.Base(os.Args[0]), ".test")), test)
}
