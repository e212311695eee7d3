package server

import (
	"fmt"
	"strings"
	"time"

	"github.com/enginetest/enginetest/server/internal/logbook"
)

// Line is a line that a server printed.
type Line = logbook.Line

// Report says what a Stop did and found, step by step.
type Report struct {
	Name    string
	Steps   []Step
	Took    time.Duration
	Lines   []Line // the last that the server printed
	LogFile string
}

// Step is a part of a Stop.
type Step struct {
	Name   string
	Took   time.Duration
	Detail string // what was done and seen
	Err    error  // what is wrong
}

func (s Step) text() string {
	if s.Err != nil {
		first, _, _ := strings.Cut(s.Err.Error(), "\n")
		return "FAILED: " + first
	}
	return s.Detail
}

// String formats the report, one line per step.
func (r Report) String() string {
	var b strings.Builder
	verdict := "gone"
	if r.Err() != nil {
		verdict = "NOT well gone"
	}
	fmt.Fprintf(&b, "%s: %s after %s\n", r.Name, verdict, round(r.Took))
	for _, s := range r.Steps {
		fmt.Fprintf(&b, "  %-12s %8s  %s\n", s.Name, round(s.Took), s.text())
	}
	return b.String()
}

// Err returns a [StopError] when a step failed, and nil otherwise.
func (r Report) Err() error {
	for _, s := range r.Steps {
		if s.Err != nil {
			return &StopError{r}
		}
	}
	return nil
}

// left is what a failed start left behind; how the server ended is known already.
func (r Report) left() error {
	var steps []Step
	for _, s := range r.Steps {
		if s.Name != stepExit {
			steps = append(steps, s)
		}
	}
	r.Steps = steps
	r.Lines, r.LogFile = nil, ""
	return r.Err()
}

// StopError says what was wrong with a server's end, or is left of it.
type StopError struct{ Report Report }

func (e *StopError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "server: %s did not end well (%s)", e.Report.Name, round(e.Report.Took))
	for _, s := range e.Report.Steps {
		if s.Err != nil {
			fmt.Fprintf(&b, "\n%s (after %s): %s", s.Name, round(s.Took),
				strings.ReplaceAll(s.Err.Error(), "\n", "\n    "))
		}
	}
	if len(e.Report.Lines) > 0 || e.Report.LogFile != "" {
		b.WriteString(lastLines(e.Report.Lines, e.Report.LogFile))
	}
	return b.String()
}

// Unwrap returns the errors of the failed steps.
func (e *StopError) Unwrap() (errs []error) {
	for _, s := range e.Report.Steps {
		if s.Err != nil {
			errs = append(errs, s.Err)
		}
	}
	return errs
}

// The steps of a stop.
const (
	stepRequests = "requests"
	stepSignal   = "signal"
	stepExit     = "exit"
	stepFamily   = "family"
	stepPort     = "port"
	stepFiles    = "files"
	stepLog      = "log"
	stepIdle     = "idle" // of a server that runs elsewhere
)
