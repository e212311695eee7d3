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
	"github.com/enginetest/enginetest/internal/testlog"
	"github.com/enginetest/enginetest/verdict"
)

// TB is what the wrappers need of a test. Every testing.TB has it; one that also has Deadline (a
// *testing.T) bounds the waits.
type TB interface {
	Helper()
	Name() string
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Cleanup(f func())
}

// ForClear waits for the condition and fails the test with the report when it is not met. It ends
// before the test's own deadline. It does not use the test's context, which is cancelled before
// cleanups run: that is where ForClear is called.
func ForClear(t TB, cond Condition, opts ...ForClearOption) Report {
	t.Helper()
	o := newOptions(opts, ForClearOption.forClear)
	o.bind(t)
	src, closeSource, err := o.source()
	if err != nil {
		o.fail(t, err)
		return Report{Ending: endingUnmeasurable}
	}
	defer closeSource()
	ctx, cancel := o.within(t)
	defer cancel()
	r, err := o.wait(ctx, src, cond)
	testlog.Attach(t, testlog.KindMemory, r)
	if err != nil {
		o.fail(t, err)
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

func (o *options) fail(t TB, err error) {
	t.Helper()
	verdict.Record(t, verdict.Of(err)...)
	if o.skip && (errors.Is(err, ErrCannotMeasure) || errors.Is(err, ErrNoneVisible)) {
		t.Skipf("%v", err)
	}
	t.Fatalf("%v", err)
}

// errTestDeadline is the cause of a wait that ended so that the test could still speak.
var errTestDeadline = errors.New("the test's own deadline is near (go test -timeout)")

// within returns a context that ends before the test does.
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

// testDeadline returns the test's deadline. Deadline panics inside a bubble of testing/synctest,
// where real time has no meaning: such a test has none.
func testDeadline(t TB) (end time.Time, ok bool) {
	d, has := t.(interface{ Deadline() (time.Time, bool) })
	if !has {
		return end, false
	}
	defer func() { _ = recover() }()
	return d.Deadline()
}

// bind fills in what only a test knows, where the caller did not set it: its name, how to run it
// again, where progress is logged.
func (o *options) bind(t TB) {
	if o.name == "" {
		o.name = t.Name()
	}
	if o.reproduce == "" {
		o.reproduce = reproduce(t.Name())
	}
	if l, ok := t.(interface {
		Logf(format string, args ...any)
	}); ok && o.progress == nil {
		o.progress = func(line string) { l.Logf("%s", line) }
	}
}

// reproduce is the go test command for one test of this binary.
func reproduce(test string) string {
	return repro.Command(cmp.Or(repro.Package(), "./"+strings.TrimSuffix(filepath.Base(os.Args[0]), ".test")), test)
}
