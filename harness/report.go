package harness

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/llm"
)

// Report is what a teardown did and found, step by step.
type Report struct {
	Name  string
	Steps []Step
	Took  time.Duration
	// DeviceMemory is what the GPUs held before the engine, at its peak and after, with holders;
	// nil when they were not checked.
	DeviceMemory *gpuwait.AccountReport
	// Faults are those that the engine was given, with how often each struck.
	Faults []llm.FaultReport

	pkg   string // that messages name
	slack int64  // device memory that may stay
}

// Step is one check of a teardown.
type Step struct {
	Name    string
	Took    time.Duration
	Budget  time.Duration // it was given so long
	Detail  string        // what was checked, in a few words
	Notes   []string      // what is new and is not blamed on the engine, because it may be another's
	Skipped string        // why it was not checked; "" when it was
	Err     error         // what is left
}

// Err is nil when every step passed; otherwise an [*Error].
func (r Report) Err() error {
	for _, s := range r.Steps {
		if s.Err != nil {
			return &Error{Report: r}
		}
	}
	return nil
}

// outcome describes the step in a few words.
func (s Step) outcome() string {
	switch {
	case s.Err != nil:
		return "failed after " + round(s.Took).String()
	case s.Skipped != "":
		return "not checked: " + s.Skipped
	}
	return round(s.Took).String()
}

// String prints a line a step.
func (r Report) String() string {
	var b strings.Builder
	verdict := "gone"
	if r.Err() != nil {
		verdict = "NOT gone"
	}
	fmt.Fprintf(&b, "%s: %s after %s\n", r.Name, verdict, round(r.Took))
	for _, s := range r.Steps {
		took, text := round(s.Took).String(), s.Detail
		switch {
		case s.Err != nil:
			text = "FAILED: " + firstLine(s.Err)
		case s.Skipped != "":
			took, text = "-", "not checked: "+s.Skipped
		}
		fmt.Fprintf(&b, "  %-14s %8s  %s\n", s.Name, took, text)
		for _, note := range s.Notes {
			fmt.Fprintf(&b, "  %-14s %8s  note: %s\n", "", "", note)
		}
	}
	return b.String()
}

// Error says what an engine left behind. Unwrap gives the errors of the steps, so that errors.As
// finds a *leakcheck.Error.
type Error struct {
	Report Report
	Repro  string // the command that runs this test alone; "" when it is not known
}

// Error prints the findings of every failed step, under a line that counts them.
func (e *Error) Error() string {
	failed := e.Unwrap()
	var b strings.Builder
	fmt.Fprintf(&b, "%s is not gone: %d of %d checks failed (teardown took %s)", e.Report.Name, len(failed),
		len(e.Report.Steps), round(e.Report.Took))
	for _, s := range e.Report.Steps {
		if s.Err != nil {
			fmt.Fprintf(&b, "\n%s (after %s; budget %s):\n    %s", s.Name, round(s.Took), round(s.Budget),
				strings.ReplaceAll(s.Err.Error(), "\n", "\n    "))
		}
	}
	if e.Repro != "" {
		fmt.Fprintf(&b, "\nto reproduce: %s", e.Repro)
	}
	// the option that a fixture takes
	return strings.ReplaceAll(b.String(), "to accept: leakcheck.Allow(",
		"to accept: "+cmp.Or(e.Report.pkg, "harness")+".Allow(")
}

// Unwrap returns the errors of the failed steps.
func (e *Error) Unwrap() (errs []error) {
	for _, s := range e.Report.Steps {
		if s.Err != nil {
			errs = append(errs, s.Err)
		}
	}
	return errs
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// round keeps two digits or three: "1.2s", "350µs".
func round(d time.Duration) time.Duration {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 10)
		}
	}
	return d
}

// errPanicked is the error of a step, or of an engine's method, that panicked.
var errPanicked = errors.New("panicked")
