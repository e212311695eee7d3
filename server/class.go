package server

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/enginetest/enginetest/verdict"
)

// Class returns that the machine's memory was too small when the kernel said so, and that the
// engine failed when a signal ended it. An exit code alone does not say which of the two it was:
// the last lines, in the message, may.
func (e *ExitError) Class() verdict.Class {
	switch {
	case e.OOM != "":
		return verdict.ClassCapacity
	case e.Signal != 0:
		return verdict.ClassEngine
	}
	return ""
}

// Class returns that a time was over, unless what ended the wait is known better.
func (e *NotReadyError) Class() verdict.Class {
	if errors.Is(e.Cause, context.Canceled) {
		return ""
	}
	return verdict.ClassTimeout
}

// Class returns that the server failed for its own errors, that it was full, that the request took
// too long, or that it was wrong.
func (e *APIError) Class() verdict.Class {
	switch {
	case e.Status == http.StatusTooManyRequests, e.Status == http.StatusServiceUnavailable:
		return verdict.ClassCapacity
	case e.Status == http.StatusGatewayTimeout, e.Status == http.StatusRequestTimeout:
		return verdict.ClassTimeout
	case e.Status >= http.StatusInternalServerError && strings.Contains(strings.ToLower(e.Message), "out of memory"):
		return verdict.ClassCapacity
	case e.Status >= http.StatusInternalServerError:
		return verdict.ClassEngine
	}
	return verdict.ClassTest
}

// Verdicts returns one verdict per failed step: what is left is a leak, a server that had to be
// killed did not end in its time, and an end that was not clean is the engine's.
func (e *StopError) Verdicts() (list []verdict.Verdict) {
	for _, s := range e.Report.Steps {
		if s.Err == nil {
			continue
		}
		if known := verdict.Of(s.Err); known != nil {
			list = append(list, known...)
			continue
		}
		class := verdict.ClassLeak
		switch s.Name {
		case stepSignal: // it had to be killed
			class = verdict.ClassTimeout
		case stepExit, stepRequests, stepLog:
			class = verdict.ClassEngine
		}
		text, _, _ := strings.Cut(s.Err.Error(), "\n")
		list = append(list, verdict.Verdict{
			Class: class, Source: "server", Message: s.Name + ": " + text,
			Resource: s.Name, Took: s.Took,
		})
	}
	return list
}
