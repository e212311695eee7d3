package gpuwait

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/enginetest/enginetest/verdict"
)

// ErrUnattributed is in the error of an account whose memory may be another process's.
var ErrUnattributed = errors.New("not attributed")

// AccountError carries the report of an account whose memory is not back. errors.Is finds
// ErrNotClear in it, ErrUnattributed when no process of the family is proved to hold anything, and
// the context's cause when that ended the wait.
type AccountError struct {
	Report AccountReport
	cause  error
}

// Error returns the whole report.
func (e *AccountError) Error() string { return e.Report.String() }

// Unwrap returns the errors that e is.
func (e *AccountError) Unwrap() []error {
	errs := []error{ErrNotClear}
	if !e.Report.is(VerdictHeld) {
		errs = append(errs, ErrUnattributed)
	}
	if e.cause != nil {
		errs = append(errs, e.cause)
	}
	return errs
}

// Class is a leak when the family holds memory, and a lack of capacity when it may be another
// process's.
func (e *AccountError) Class() verdict.Class {
	if e.Report.is(VerdictHeld) {
		return verdict.ClassLeak
	}
	return verdict.ClassCapacity
}

// Returned waits until the family holds nothing on any device of the account: no more than each of
// its processes held at the baseline, plus [Slack] and what live fixtures own. The report says of
// each device how that is known. The error is an [*AccountError] when the time is up, the context
// is done, or waiting is hopeless (see [Patience]), and wraps [ErrCannotMeasure] when a device
// cannot be read.
func (a *Account) Returned(ctx context.Context, opts ...ReturnedOption) (AccountReport, error) {
	o := newOptions(opts, ReturnedOption.returned)
	if o.timeout < 0 {
		o.timeout = defaultTimeout
	}
	w := &accountWait{
		a: a, o: o, start: time.Now(), judged: make([]judgment, len(a.devices)),
		before: make([]Usage, len(a.devices)),
	}
	for i, d := range a.devices {
		w.before[i] = d.last.Usage
	}
	return w.run(ctx)
}

// accountWait is one call of Returned.
type accountWait struct {
	a       *Account
	o       *options
	start   time.Time
	before  []Usage // the last readings of the engine's life
	judged  []judgment
	changed time.Time // when a judgment last changed
	failing time.Time // since when a reading fails
	mapped  struct {
		at  time.Time
		yes bool
	}
}

func (w *accountWait) run(ctx context.Context) (AccountReport, error) {
	w.changed = w.start
	end := w.start.Add(w.o.timeout)
	say := w.o.speaker(w.start)
	var cancelled error
	for {
		done, err := w.round()
		now := time.Now()
		switch {
		case err != nil:
			r := w.report(endingUnmeasurable)
			r.Cause = err.Error()
			return r, err
		case done:
			return w.report(endingCleared), nil
		case cancelled != nil:
			r := w.report(endingCancelled)
			r.Cause = cancelled.Error()
			return r, &AccountError{Report: r, cause: cancelled}
		case !now.Before(end):
			r := w.report(endingTimeout)
			return r, &AccountError{Report: r}
		case w.hopeless(now):
			r := w.report(endingHeld)
			return r, &AccountError{Report: r}
		}
		say.at(now, w.progress)
		if !pause(ctx, min(max(pollMin, now.Sub(w.start)/pollShare), pollMax, end.Sub(now))) {
			cancelled = context.Cause(ctx) // one last round: it is the one that is reported
		}
	}
}

// round reads every device and judges it. Once a device's memory was back, it stays judged so.
func (w *accountWait) round() (done bool, err error) {
	done = true
	for i, d := range w.a.devices {
		if w.judged[i].verdict == VerdictReturned {
			continue
		}
		r, err := w.a.read(d.device)
		if err != nil {
			if err := w.failed(d, err); err != nil {
				return false, err
			}
			done = false
			continue
		}
		w.failing = time.Time{}
		d.add(r)
		j := w.a.judge(d, w.o.slack, w.a.owners.bytes(d.device.UUID), w.gpuMapped)
		if j.verdict != w.judged[i].verdict || j.bytes != w.judged[i].bytes {
			w.changed = r.At
		}
		w.judged[i] = j
		done = done && j.verdict == VerdictReturned
	}
	return done, nil
}

// failed tolerates a source that stutters, but not a lost device.
func (w *accountWait) failed(d *deviceAccount, err error) error {
	now := time.Now()
	if w.failing.IsZero() {
		w.failing = now
	}
	if !errors.Is(err, ErrLost) && !errors.Is(err, ErrNoDevice) && now.Sub(w.failing) < errorGrace {
		return nil
	}
	if !errors.Is(err, ErrCannotMeasure) {
		err = fmt.Errorf("%w: %w", ErrCannotMeasure, err)
	}
	return fmt.Errorf("gpuwait: %s, %s into the wait: %w", d, age(now.Sub(w.start)), err)
}

// gpuMapped looks at every process's mappings, at most ten times a second.
func (w *accountWait) gpuMapped() bool {
	if now := time.Now(); w.mapped.at.IsZero() || now.Sub(w.mapped.at) >= holdersEvery {
		w.mapped.at, w.mapped.yes = now, w.a.gpuMapped()
	}
	return w.mapped.yes
}

// hopeless: nothing has changed for the whole of the patience while a living process of the family
// holds memory.
func (w *accountWait) hopeless(now time.Time) bool {
	if w.o.patience <= 0 || now.Sub(w.changed) < w.o.patience {
		return false
	}
	return slices.ContainsFunc(w.a.devices, func(d *deviceAccount) bool {
		return slices.ContainsFunc(d.last.Family, func(h Holder) bool { return state(h.PID) != exiting })
	})
}

func (w *accountWait) progress() string {
	for i, j := range w.judged {
		if j.verdict != VerdictReturned {
			return w.deviceReport(i).headline()
		}
	}
	return ""
}

// report joins what was read with what /proc says of the holders.
func (w *accountWait) report(how Ending) AccountReport {
	r := AccountReport{Ending: how, Started: w.start, Elapsed: time.Since(w.start), Reproduce: w.o.reproduce}
	for i := range w.a.devices {
		r.Devices = append(r.Devices, w.deviceReport(i))
	}
	return r
}

func (w *accountWait) deviceReport(i int) DeviceAccount {
	d, j := w.a.devices[i], w.judged[i]
	out := DeviceAccount{
		Device: d.device, Verdict: j.verdict, Proof: j.proof, Bytes: j.bytes, Why: j.why, Hidden: w.a.hidden, Settled: d.settled,
		Baseline: d.base.Usage, Peak: d.peak.Usage, Before: w.before[i], After: d.last.Usage,
	}
	if j.verdict == VerdictReturned {
		return out
	}
	for id, h := range d.last.family {
		p := process(h)
		p.Grew = h.Bytes - d.base.held(id)
		out.Holders = append(out.Holders, p)
	}
	sort.Slice(out.Holders, func(i, j int) bool { return out.Holders[i].before(out.Holders[j].Holder) })
	out.Forgotten = forgotten(d.device.UUID, d.base.At, out.Holders)
	return out
}
