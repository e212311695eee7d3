package harness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/verdict"
)

// check is one step of a teardown: it says in a few words what it saw, and returns what is left as
// an error, or a skippedError with the reason.
type check struct {
	name   string
	budget time.Duration // at most, when the teardown timeout leaves room for all
	run    func(context.Context) (checked, error)
}

// checked is what a check saw, and what it does not blame on the engine.
type checked struct {
	detail string
	notes  []string
}

// noting makes a check of one that has no notes.
func noting(run func(context.Context) (string, error)) func(context.Context) (checked, error) {
	return func(ctx context.Context) (checked, error) {
		detail, err := run(ctx)
		return checked{detail: detail}, err
	}
}

// skippedError marks a check that could not be made.
type skippedError struct{ reason string }

func (e *skippedError) Error() string { return "not checked: " + e.reason }

func skipped(format string, args ...any) error { return &skippedError{fmt.Sprintf(format, args...)} }

// teardown shuts the engine down and proves it gone, step by step; every step runs even when an
// earlier one failed. Whatever holds the engine here is dropped before the references are checked.
func (f *Fixture) teardown(ctx context.Context) Report {
	e := &handle{engine: f.take(), pkg: f.opts.pkg}
	f.gpu.read(f.processes)
	defer f.entry.Close()
	steps := []check{
		{"shutdown", 40 * time.Second, noting(e.shutdown)},
		{"holdings", time.Second, noting(func(ctx context.Context) (string, error) {
			return e.holdings(ctx, f.devices, f.opts.allow)
		})},
		{"processes", 10 * time.Second, noting(func(ctx context.Context) (string, error) {
			return reap(ctx, f.processes)
		})},
		{"goroutines", 4 * time.Second, noting(f.goroutines)},
		{"references", 20 * time.Second, noting(f.references)},
		{"device memory", 40 * time.Second, noting(func(ctx context.Context) (string, error) {
			return f.gpu.returned(ctx, &f.opts, &f.host)
		})},
		{"host", 4 * time.Second, f.hostState},
	}
	total := f.opts.teardown
	if deadline, ok := ctx.Deadline(); ok {
		total = min(total, time.Until(deadline))
	}
	if !f.opts.end.IsZero() {
		total = max(min(total, time.Until(f.opts.end)), time.Second) // a late teardown still looks once
	}
	var sum time.Duration
	for _, s := range steps {
		sum += s.budget
	}
	scale := min(1, float64(total)/float64(sum))
	start := time.Now()
	report := Report{Name: f.opts.name, pkg: f.opts.pkg}
	for _, s := range steps {
		report.Steps = append(report.Steps, s.do(ctx, time.Duration(float64(s.budget)*scale)))
	}
	report.Took = time.Since(start)
	report.DeviceMemory, report.slack, report.Faults = f.gpu.report, f.opts.slack, e.faults
	return report
}

func (c check) do(ctx context.Context, budget time.Duration) Step {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), budget)
	defer cancel()
	s := Step{Name: c.name, Budget: budget}
	start := time.Now()
	func() {
		defer recovered(c.name, &s.Err)
		var saw checked
		saw, s.Err = c.run(ctx)
		s.Detail, s.Notes = saw.detail, saw.notes
	}()
	s.Took = time.Since(start)
	if skip, ok := errors.AsType[*skippedError](s.Err); ok {
		s.Skipped, s.Err = skip.reason, nil
	}
	return s
}

// handle is the teardown's hold on the engine. holdings, its last use, lets go.
type handle struct {
	engine Engine
	pkg    string // that messages name
	faults []llm.FaultReport
}

// shutdown calls Shutdown and sees to it that the call ends: an engine that ignores its context is
// left behind, and said so.
func (h *handle) shutdown(ctx context.Context) (string, error) {
	if h.engine == nil {
		return "", skipped("no engine was started")
	}
	e, ended := h.engine, make(chan error, 1)
	stuck := within(ctx, func() {
		var err error
		defer func() { ended <- err }() // also when Shutdown ends its goroutine
		defer recovered("Shutdown", &err)
		err = e.Shutdown(ctx)
	})
	var errs []error
	if stuck == nil {
		errs = append(errs, <-ended)
	} else {
		errs = append(errs, fmt.Errorf("%T.Shutdown has not returned %s after its context ended: %v; %s.TeardownTimeout sets the budget\n%s",
			e, hangGrace, stuck, h.pkg, stuck.stack))
	}
	if f, ok := h.engine.(FaultReporter); ok {
		h.faults = f.Faults()
		errs = append(errs, unfired(h.faults))
	}
	detail := "returned no error"
	if r, ok := h.engine.(ShutdownReporter); ok {
		detail = phases(r.ShutdownReport())
	}
	return detail, errors.Join(errs...)
}

// phases prints a shutdown in one line: "abort: 0 requests ended, release: 13.5 MiB of 13.5 MiB
// given back".
func phases(r llm.ShutdownReport) string {
	var parts []string
	for _, p := range r.Phases {
		parts = append(parts, p.Name+": "+p.Detail)
	}
	return strings.Join(parts, ", ")
}

func deadline(ctx context.Context) time.Time {
	d, _ := ctx.Deadline()
	return d
}

// unfired reports injected faults that never struck: a test of a failure that did not happen has
// tested nothing.
func unfired(reports []llm.FaultReport) error {
	var errs []error
	for _, r := range reports {
		if r.Fired == 0 {
			errs = append(errs, fmt.Errorf("the fault %q at %q never fired: its point was passed %d times, it waits for %d good passes (rank %d)",
				r.Fault.Action, r.Fault.Point, r.Passes, r.Fault.After, r.Fault.Rank))
		}
	}
	if errs == nil {
		return nil
	}
	return verdict.With(verdict.ClassTest, errors.Join(errs...))
}

// holdings checks that the engine's own ledger is empty, and lets go of the engine.
func (h *handle) holdings(ctx context.Context, devices []string, allow []leakcheck.Option) (string, error) {
	e := h.engine
	h.engine = nil
	if e == nil {
		return "", skipped("no engine was started")
	}
	holder, ok := e.(Holder)
	if !ok {
		return "", skipped("%T has no Holdings method", e)
	}
	on := ""
	if len(devices) > 1 {
		on = ", for " + strings.Join(devices, ", ")
	}
	return "the engine's ledger is empty" + on, leakcheck.Freed(ctx, holder, allow...)
}

func (f *Fixture) goroutines(ctx context.Context) (string, error) {
	err := f.scope.Gone(ctx)
	var found *leakcheck.Error
	labelled := func(l leakcheck.Finding) bool { return !l.Inferred }
	if errors.As(err, &found) && !slices.ContainsFunc(found.Findings, labelled) {
		err = f.explained(found) // no other scope had them, but an engine outside of any may have
	}
	return "none of this fixture runs", err
}

func (f *Fixture) references(ctx context.Context) (string, error) {
	if len(f.refs) == 0 {
		return "", skipped("no engine was started, or one that refers to nothing")
	}
	err := leakcheck.Released(ctx, f.refs...)
	return fmt.Sprintf("%d tracked object(s) collected", len(f.refs)), err
}
