package server

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/enginetest/enginetest/internal/proc"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server/internal/logbook"
)

// ExitError reports a server that ended by itself: while it started, or while it was to serve.
type ExitError struct {
	Name    string
	Command string // masked
	PID     int
	Code    int            // -1 when a signal ended it
	Signal  syscall.Signal // 0 when none did
	OOM     string         // what shows that the kernel's OOM killer ended it; "" when nothing does
	After   time.Duration  // since it was started
	Ready   bool           // it had been ready before
	Lines   []Line         // the last that it printed
	LogFile string         // with all that it printed; "" when there is none
}

func (e *ExitError) Error() string {
	when := "before it was ready"
	if e.Ready {
		when = "while it was to serve"
	}
	return fmt.Sprintf("server: %s (pid %d) %s %s after its start, %s\n    command: %s%s",
		e.Name, e.PID, e.how(), round(e.After), when, e.Command, lastLines(e.Lines, e.LogFile))
}

func (e *ExitError) how() string {
	switch {
	case e.OOM != "":
		return fmt.Sprintf("was killed by %s, likely the kernel's OOM killer (%s),", proc.SignalName(e.Signal), e.OOM)
	case e.Signal != 0:
		return "was killed by " + proc.SignalName(e.Signal)
	}
	return fmt.Sprintf("exited with code %d", e.Code)
}

// NotReadyError reports a server that lives and was not ready in time.
type NotReadyError struct {
	Name    string
	Command string // masked
	PID     int
	Waited  time.Duration
	Silent  time.Duration // how long it has printed nothing
	Probe   string        // what was asked for
	Last    error         // what the last try said
	Lines   []Line
	LogFile string
	Cause   error // the context's, or the stall timeout
}

func (e *NotReadyError) Error() string {
	progress := fmt.Sprintf("it printed its last line %s ago", round(e.Silent))
	switch {
	case len(e.Lines) == 0:
		progress = "it has printed nothing"
	case e.Silent < e.Waited/10:
		progress += ": it still makes progress, so a longer timeout may help"
	case e.Silent > e.Waited/2:
		progress += ": it has stalled"
	}
	return fmt.Sprintf("server: %s (pid %d) was not ready after %s (%v); %s\n    %s: %v\n    command: %s%s",
		e.Name, e.PID, round(e.Waited), e.Cause, progress, e.Probe, e.Last, e.Command, lastLines(e.Lines, e.LogFile))
}

// Unwrap returns the cause and what the last try said.
func (e *NotReadyError) Unwrap() []error { return []error{e.Cause, e.Last} }

// APIError is an answer of a server that is no success.
type APIError struct {
	Name    string
	Request string // "POST /v1/completions"
	Status  int
	Code    string // as the server has it
	Message string
}

func (e *APIError) Error() string {
	code := ""
	if e.Code != "" {
		code = " (" + e.Code + ")"
	}
	return fmt.Sprintf("server: %s: %s: %d %s%s: %s", e.Name, e.Request, e.Status, http.StatusText(e.Status), code,
		e.Message)
}

// UnsupportedError names what a server's protocol lacks. It is errors.ErrUnsupported, and
// llm.ErrUnsupported.
type UnsupportedError struct {
	Protocol Protocol
	Verb     string // "sleep", or "generate with NoRepeatNGramSize"
	Reason   string // "" when the protocol just lacks it
}

func (e *UnsupportedError) Error() string {
	s := fmt.Sprintf("server: %s has no %s", e.Protocol, e.Verb)
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// Is makes errors.Is find both sentinels.
func (e *UnsupportedError) Is(target error) bool {
	return target == errors.ErrUnsupported || target == llm.ErrUnsupported
}

// ErrStopped is the error of requests to a server that was stopped.
var ErrStopped = fmt.Errorf("server: %w", llm.ErrStopped)

// lastLines formats the end of a log.
func lastLines(lines []Line, file string) string {
	var b strings.Builder
	if len(lines) > 0 {
		fmt.Fprintf(&b, "\n    the last lines of its log, with the time since its start:")
		for _, l := range lines {
			fmt.Fprintf(&b, "\n      %s", l)
		}
	} else {
		b.WriteString("\n    it printed nothing")
	}
	if file != "" {
		fmt.Fprintf(&b, "\n    the whole log: %s", file)
	}
	return b.String()
}

func round(d time.Duration) time.Duration { return logbook.Round(d) }
