package gpuwait

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"
)

// ErrNotClear is in the error of a wait that ended before its condition was met.
var ErrNotClear = errors.New("device memory not clear")

// NotClearError carries the report of a wait that failed; its text is the whole message. errors.Is
// finds ErrNotClear in it and, when the context ended the wait, the context's cause.
type NotClearError struct {
	Report Report
	cause  error
}

func (e *NotClearError) Error() string { return e.Report.String() }

// Unwrap returns ErrNotClear and the cause.
func (e *NotClearError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrNotClear}
	}
	return []error{ErrNotClear, e.cause}
}

// Polling: a clear is seen at most max(pollMin, 1 % of the time waited so far, up to pollMax) late.
// NVML answers in 4 µs on an H200.
const (
	pollMin      = time.Millisecond
	pollShare    = 100
	pollMax      = 250 * time.Millisecond
	holdersEvery = 100 * time.Millisecond // listing holders may read all of /proc
	// how long a reading may fail before the wait does; a lost device fails at once
	errorGrace = time.Second
)

// Clear waits until every selected device meets the condition in the same round of readings. It
// never reads more often than once a millisecond and sees a clear within 1 % of the time waited (at
// most 250 ms, and 1 ms in the first tenth of a second). It starts no goroutine.
//
// The report is filled in either way. The error is a [*NotClearError] when the time is up, the
// context is done, or waiting is hopeless (see [Patience]), and wraps [ErrCannotMeasure] when a
// device cannot be read.
func Clear(ctx context.Context, src Source, cond Condition, opts ...ClearOption) (Report, error) {
	return newOptions(opts, ClearOption.clear).wait(ctx, src, cond)
}

func (o *options) wait(ctx context.Context, src Source, cond Condition) (Report, error) {
	r := Report{Started: time.Now(), Reproduce: o.reproduce}
	if o.timeout < 0 {
		o.timeout = defaultTimeout
	}
	if cond.err != nil {
		return r, cond.err
	}
	devices, err := o.devices(src)
	if err != nil {
		return r, err
	}
	var watches []*watch
	for _, d := range devices {
		w := &watch{src: src, device: d, cond: cond.on(d.UUID), o: o, start: r.Started}
		if w.cond.empty() {
			return r, fmt.Errorf("gpuwait: %w: none for %s: use Ratio, Bytes, Delta or Settled", ErrBadCondition, d)
		}
		watches = append(watches, w)
	}
	end := r.Started.Add(o.timeout)
	say := o.speaker(r.Started)
	var cancelled error
	for {
		met := true
		for _, w := range watches {
			if err := w.sample(time.Now()); err != nil {
				r = o.report(r, watches, endingUnmeasurable)
				r.Cause = err.Error()
				return r, err
			}
			met = met && w.clear
		}
		now := time.Now()
		switch {
		case met:
			return o.report(r, watches, endingCleared), nil
		case cancelled != nil:
			return o.notClear(r, watches, endingCancelled, cancelled)
		case !now.Before(end):
			return o.notClear(r, watches, endingTimeout, nil)
		case slices.ContainsFunc(watches, func(w *watch) bool { return w.hopeless(now) }):
			return o.notClear(r, watches, endingHeld, nil)
		}
		say.at(now, func() string { return progressOf(watches) })
		pause := min(max(pollMin, now.Sub(r.Started)/pollShare), pollMax)
		timer := time.NewTimer(min(pause, end.Sub(now)))
		select {
		case <-ctx.Done():
			timer.Stop()
			cancelled = context.Cause(ctx) // one last reading: it is the one that is reported
		case <-timer.C:
		}
	}
}

func (o *options) notClear(r Report, watches []*watch, how Ending, cause error) (Report, error) {
	r = o.report(r, watches, how)
	if cause != nil {
		r.Cause = cause.Error()
	}
	return r, &NotClearError{Report: r, cause: cause}
}

// watch follows one device through one wait.
type watch struct {
	src    Source
	device Device
	cond   Condition
	o      *options
	start  time.Time

	clear   bool
	memory  Memory
	target  int64
	bounded bool
	text    string
	owned   []Owner

	samples int
	history history
	settled struct {
		since time.Time
		used  int64
	}
	failing time.Time // since when readings fail

	holders    []Holder
	first      []Holder // as first seen
	listed     bool     // first is known
	holdersErr error
	holdersAt  time.Time
	sameSince  time.Time // since when the set of holders has been the same
}

func (w *watch) sample(now time.Time) error {
	m, err := w.src.Memory(w.device.UUID)
	if err == nil {
		m, err = checked(w.device, m)
	}
	if err != nil {
		return w.failed(now, err)
	}
	w.failing = time.Time{}
	w.memory = m
	w.samples++
	w.history.add(now, m.Used)
	target, by, err := w.cond.target(w.device, m, w.o.owners.bytes(w.device.UUID))
	if err != nil {
		return err
	}
	w.target, w.bounded = target, by != nil
	if by != nil {
		w.text = by.text
	}
	if w.owned = nil; by == nil || !by.absolute {
		w.owned = w.o.owners.List(w.device.UUID)
	}
	w.clear = (!w.bounded || m.Used <= w.target) && w.isSettled(now, m.Used)
	if !w.clear && now.Sub(w.holdersAt) >= holdersEvery {
		w.listHolders(now)
	}
	return nil
}

// failed tolerates a source that stutters, but not a lost device.
func (w *watch) failed(now time.Time, err error) error {
	w.clear = false
	if w.failing.IsZero() {
		w.failing = now
	}
	if !errors.Is(err, ErrLost) && !errors.Is(err, ErrNoDevice) && now.Sub(w.failing) < errorGrace {
		return nil
	}
	last := "never measured"
	if w.samples > 0 {
		last = fmt.Sprintf("last reading %s of %s used, %s before", size(w.memory.Used), size(w.memory.Total),
			age(now.Sub(w.history.lastSeen)))
	}
	if !errors.Is(err, ErrCannotMeasure) {
		err = fmt.Errorf("%w: %w", ErrCannotMeasure, err)
	}
	return fmt.Errorf("gpuwait: %s, %s into the wait (%s; %s): %w", w.device, age(now.Sub(w.start)), last,
		samples(w.samples), err)
}

func (w *watch) isSettled(now time.Time, used int64) bool {
	if w.cond.settle == 0 {
		return true
	}
	inside := !w.bounded || used <= w.target
	moved := max(used, w.settled.used)-min(used, w.settled.used) > w.cond.slack
	if !inside {
		w.settled.since = time.Time{}
		return false
	}
	if w.settled.since.IsZero() || moved {
		w.settled.since, w.settled.used = now, used
	}
	return now.Sub(w.settled.since) >= w.cond.settle
}

func (w *watch) listHolders(now time.Time) {
	holders, err := w.src.Holders(w.device.UUID)
	sort.Slice(holders, func(i, j int) bool { return holders[i].PID < holders[j].PID })
	same := w.holdersErr == nil && err == nil && slices.EqualFunc(holders, w.holders, func(a, b Holder) bool {
		return a.PID == b.PID
	})
	if !same || w.holdersAt.IsZero() {
		w.sameSince = now
	}
	if !w.listed && err == nil {
		w.first, w.listed = holders, true
	}
	w.holders, w.holdersErr, w.holdersAt = holders, err, now
}

// hopeless: over the bound, every reading identical, and the same processes alive and listed, for
// the whole of the patience.
func (w *watch) hopeless(now time.Time) bool {
	if w.o.patience <= 0 || !w.failing.IsZero() || !w.bounded || w.memory.Used <= w.target || len(w.holders) == 0 {
		return false
	}
	since := w.history.changed
	if w.sameSince.After(since) {
		since = w.sameSince
	}
	return now.Sub(since) >= w.o.patience && slices.ContainsFunc(w.holders, func(h Holder) bool {
		return state(h.PID) != exiting
	})
}
