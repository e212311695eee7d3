package forkproc

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/enginetest/enginetest/internal/proc"
)

// An Expectation is a way to die that a test asks for with Expect.
type Expectation struct {
	want string
	met  func(*Outcome) bool
}

func (e Expectation) String() string { return e.want }

// Killed expects the child to be ended by a signal that the parent's time limit did not send.
func Killed(sig syscall.Signal) Expectation {
	return Expectation{"killed by " + proc.SignalName(sig), func(o *Outcome) bool {
		return o.Signal == sig && (o.Status == StatusKilled || o.Status == StatusOOMKilled)
	}}
}

// OOMKilled expects a SIGKILL that came while the kernel counted an OOM kill.
func OOMKilled() Expectation {
	return Expectation{"killed by the OOM killer", func(o *Outcome) bool { return o.Status == StatusOOMKilled }}
}

// Exited expects the process to end with this exit code without a result of the test: os.Exit, or
// exit in a C library.
func Exited(code int) Expectation {
	return Expectation{fmt.Sprintf("exited with code %d", code), func(o *Outcome) bool {
		return o.Status == StatusExited && o.ExitCode == code
	}}
}

// Panicked expects a crash whose first line contains text: "panic: …", "fatal error: …", "SIGSEGV:
// segmentation violation".
func Panicked(text string) Expectation {
	return Expectation{fmt.Sprintf("crashed with %q", text), func(o *Outcome) bool {
		return o.Status == StatusPanicked && strings.Contains(o.Crash, text)
	}}
}

// Ended expects a status, for the ways to end that have no expectation of their own.
func Ended(s Status) Expectation {
	return Expectation{string(s), func(o *Outcome) bool { return o.Status == s }}
}

// TimedOut expects the child to run into its time limit.
func TimedOut() Expectation {
	return Expectation{"timed out", func(o *Outcome) bool { return o.Status == StatusTimedOut }}
}

// Failed expects the test in the child to fail with text in the last lines of its output or in the
// verdict.
func Failed(text string) Expectation {
	return Expectation{fmt.Sprintf("failed with %q", text), func(o *Outcome) bool {
		return o.Status == StatusFailed && (strings.Contains(o.Tail, text) || strings.Contains(o.Reason, text))
	}}
}
