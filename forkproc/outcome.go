package forkproc

import (
	"strings"
	"syscall"
	"time"
)

// Status is how a child ended.
type Status string

// The ways to end. Anything but StatusPassed and StatusSkipped fails the test, unless Expect names
// it.
const (
	StatusPassed  Status = "passed"
	StatusSkipped Status = "skipped"
	// the test in the child failed, or the process did after the test had passed
	StatusFailed Status = "failed"
	// Go panic, fatal error of the runtime, or a signal in C that the runtime reported
	StatusPanicked   Status = "panicked"
	StatusKilled     Status = "killed"      // by a signal that this package did not send
	StatusOOMKilled  Status = "oom-killed"  // SIGKILL while the kernel's OOM killer was counted at work
	StatusExited     Status = "exited"      // the process ended, with any exit code, before the test had a result
	StatusTimedOut   Status = "timed out"   // killed, or ended by its own alarm, because its time was over
	StatusNotStarted Status = "not started" // the program did not start or its dynamic linker gave up
	StatusNotReached Status = "not reached" // the child's run of the test never came to forkproc.Run
)

// Phase is how far a child came: start, body, cleanup or exit; inline is no child at all.
type Phase string

const (
	phaseStart   Phase = "start"   // before the test reached Run: package init, TestMain, the test's own code above Run
	phaseBody    Phase = "body"    // in the function given to Run
	phaseCleanup Phase = "cleanup" // after it, in the cleanups that it registered
	phaseExit    Phase = "exit"    // after the test: the other cleanups, the end of TestMain, exit handlers
	phaseInline  Phase = "inline"  // no child: the body ran in this process
)

// An Outcome says how a child ended.
type Outcome struct {
	Status   Status
	ExitCode int            // -1 when a signal ended it
	Signal   syscall.Signal // 0 when none did
	Phase    Phase
	Reason   string   // what the child did, in words: "exited with code 3 before the test finished"
	Note     string   // what is likely behind it, or what to do
	Crash    string   // StatusPanicked: the first line of the panic, fatal error or signal report
	During   []string // the tests that were running when it ended without a result
	Tests    []Test   // the subtests with their results, in the order in which they ended
	Tail     string   // the last 20 lines of output
	// Leftovers are what the child left behind and Accept does not name.
	Leftovers []Leftover
	// Unattributed is new shared memory and sockets of which no evidence says whose they are. They do
	// not fail the test.
	Unattributed []Leftover
	PID          int
	Duration     time.Duration // from start to the verdict
}

// A Leftover is something that outlived its child.
type Leftover struct {
	Kind string // process, shared memory, socket or temporary file
	Name string // what Accept matches first: the program, the path, or the file's name
	PID  int    // of a process
	Text string // the finding in words
}

// String returns the finding in words.
func (l Leftover) String() string { return l.Text }

// The kinds of leftovers. Processes are killed and temporary files removed when they are found.
const (
	leftoverProcess      = "process"
	leftoverSharedMemory = "shared memory"
	leftoverSocket       = "socket"
	leftoverTempFile     = "temporary file"
)

// A Test is the result of one subtest in the child.
type Test struct {
	Name   string // full
	Status Status
}

// facts are what was seen of a child; judge turns them into an outcome.
type facts struct {
	startErr  error
	wrapper   string
	exitCode  int
	signal    syscall.Signal
	limit     time.Duration // the child's time limit; 0: none
	quit      bool          // we sent SIGQUIT, because of the limit
	killed    bool          // we sent SIGKILL after that
	stuck     bool          // and it did not die even then
	canceled  error         // why we sent SIGKILL before the limit
	call      bool          // the child runs a function, not a test
	returned  string        // the error that the function returned
	ready     bool          // main was reached
	begun     bool          // the body was reached
	bodyDone  bool
	ended     bool   // the body's cleanups have run
	bodyPass  bool   // the child said that its skip means a pass, see stop
	runOver   bool   // m.Run has printed its PASS or FAIL
	verdict   string // of the test, from the stream: pass, fail, skip, or nothing
	running   []string
	failed    string // the innermost of the tests that failed last, one inside of the other
	oom       string // what rose, when the OOM killer was at work
	panicLine string // first line of a panic, fatal error or fatal signal
	dumped    bool   // stacks follow it, so it is no text that the test printed
	linker    string // complaint of the dynamic linker
	race      bool
}

func (f *facts) phase() Phase {
	switch {
	case f.ended && f.panicLine != "" && f.verdict == "fail" && !f.runOver:
		return phaseCleanup // a panic there does not keep the other cleanups from running
	case f.ended:
		return phaseExit
	case f.bodyDone:
		return phaseCleanup
	case f.begun:
		return phaseBody
	}
	return phaseStart
}

// see collects the facts that the runtime and the dynamic linker print as text. A test can print
// the same; then the exit code does not fit, or the real text comes later.
func (f *facts) see(line string) {
	switch {
	case !f.dumped && isFatal(line):
		f.panicLine = line
	case f.panicLine != "" && (strings.HasPrefix(line, "goroutine ") || strings.HasPrefix(line, "PC=")):
		f.dumped = true
	case strings.Contains(line, ": symbol lookup error: "),
		strings.Contains(line, ": error while loading shared libraries: "):
		f.linker = line
	case line == "WARNING: DATA RACE":
		f.race = true
	}
}

// crashed: the runtime ended the process. It exits with 2, or by SIGABRT with GOTRACEBACK=crash.
func (f *facts) crashed() bool {
	return f.panicLine != "" && (f.exitCode == 2 || f.signal == syscall.SIGABRT)
}

func isFatal(line string) bool {
	for _, prefix := range []string{
		"panic: ", "fatal error: ", "SIGSEGV: ", "SIGABRT: ", "SIGBUS: ", "SIGFPE: ",
		"SIGILL: ", "SIGQUIT: ", "SIGTRAP: ", "SIGSYS: ", "runtime: goroutine stack exceeds",
	} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}
