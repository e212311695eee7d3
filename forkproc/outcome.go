package forkproc

import (
	"fmt"
	"strings"
	"syscall"
	"time"
)

// Status is how a child ended.
type Status string

// The ways to end. Anything but StatusPassed and StatusSkipped fails the test, unless Expect names it.
const (
	StatusPassed     Status = "passed"
	StatusSkipped    Status = "skipped"
	StatusFailed     Status = "failed"      // the test in the child failed, or the process did after the test had passed
	StatusPanicked   Status = "panicked"    // Go panic, fatal error of the runtime, or a signal in C that the runtime reported
	StatusKilled     Status = "killed"      // by a signal that this package did not send
	StatusOOMKilled  Status = "oom-killed"  // SIGKILL while the kernel's OOM killer was counted at work
	StatusExited     Status = "exited"      // the process ended, with any exit code, before the test had a result
	StatusTimedOut   Status = "timed out"   // killed, or ended by its own alarm, because its time was over
	StatusNotStarted Status = "not started" // the program did not start or its dynamic linker gave up
	StatusNotReached Status = "not reached" // the child's run of the test never came to forkproc.Run
)

// Phase is how far a child came.
type Phase string

// The phases in their order.
const (
	PhaseStart   Phase = "start"   // before the test reached Run: package init, TestMain, the test's own code above Run
	PhaseBody    Phase = "body"    // in the function given to Run
	PhaseCleanup Phase = "cleanup" // after it, in the cleanups that it registered
	PhaseExit    Phase = "exit"    // after the test: the other cleanups, the end of TestMain, exit handlers
	PhaseInline  Phase = "inline"  // no child: the body ran in this process
)

// An Outcome says how a child ended.
type Outcome struct {
	Status   Status
	ExitCode int            // -1 when a signal ended it
	Signal   syscall.Signal // 0 when none did
	Phase    Phase
	Reason   string   // the verdict in words
	Crash    string   // StatusPanicked: the first line of the panic, fatal error or signal report
	During   []string // the tests that were running when it ended without a result
	Tests    []Test   // the subtests with their results, in the order in which they ended
	Tail     string   // the last 20 lines of output
	// Leftovers are what the child left behind: processes (killed meanwhile), shared memory, sockets, temporary files (removed).
	Leftovers []string
	PID       int
	Duration  time.Duration // from start to the verdict
}

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
		return PhaseCleanup // a panic there does not keep the other cleanups from running
	case f.ended:
		return PhaseExit
	case f.bodyDone:
		return PhaseCleanup
	case f.begun:
		return PhaseBody
	}
	return PhaseStart
}

// see collects the facts that the runtime and the dynamic linker print as text. A test can print the same; then the exit code
// does not fit, or the real text comes later.
func (f *facts) see(line string) {
	switch {
	case !f.dumped && isFatal(line):
		f.panicLine = line
	case f.panicLine != "" && (strings.HasPrefix(line, "goroutine ") || strings.HasPrefix(line, "PC=")):
		f.dumped = true
	case strings.Contains(line, ": symbol lookup error: "), strings.Contains(line, ": error while loading shared libraries: "):
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
	for _, prefix := range []string{"panic: ", "fatal error: ", "SIGSEGV: ", "SIGABRT: ", "SIGBUS: ", "SIGFPE: ", "SIGILL: ", "SIGQUIT: ", "SIGTRAP: ", "SIGSYS: ", "runtime: goroutine stack exceeds"} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}

// judge gives the verdict. Two witnesses must agree on a pass: the framed stream says that the test passed, and the child said
// over its private pipe that it came to the end of the body's cleanups. Every other way to exit code 0 is a failure.
func (f *facts) judge() (Status, string) {
	if f.panicLine != "" && f.failed != "" && len(f.running) == 0 {
		f.running = []string{f.failed}
	}
	where := f.where()
	switch {
	case f.startErr != nil:
		return StatusNotStarted, fmt.Sprintf("child did not start: %v", f.startErr)
	case f.crashed() && strings.HasPrefix(f.panicLine, "panic: test timed out after "):
		return StatusTimedOut, fmt.Sprintf("child ran into its time limit of %v%s; its stacks are in the output", f.limit, where)
	case f.stuck:
		return StatusTimedOut, fmt.Sprintf("child ran into its time limit of %v%s and does not die of SIGKILL: it is in an uninterruptible system call (a driver?)", f.limit, where)
	case f.quit && !f.killed:
		return StatusTimedOut, fmt.Sprintf("child ran into its time limit of %v%s; its own alarm did not go off, so it got SIGQUIT; its stacks are in the output", f.limit, where)
	case f.killed:
		return StatusTimedOut, fmt.Sprintf("child ran into its time limit of %v%s, did not end by itself, got SIGQUIT for its stacks and was killed", f.limit, where)
	case f.signal == syscall.SIGKILL && f.oom != "":
		return StatusOOMKilled, fmt.Sprintf("child was killed by SIGKILL%s\nlikely the kernel's OOM killer: %s", where, f.oom)
	case f.crashed():
		how := "exit code 2"
		if f.signal != 0 {
			how = signalName(f.signal)
		}
		return StatusPanicked, fmt.Sprintf("child crashed (%s)%s: %s", how, where, f.panicLine)
	case f.signal != 0:
		return StatusKilled, fmt.Sprintf("child was killed by %s%s", signalName(f.signal), where)
	case f.exitCode == 127 && f.linker != "":
		return StatusNotStarted, fmt.Sprintf("child was ended by the dynamic linker (exit code 127)%s: %s\na C library is missing or older than the one it was built with; with NVML: call Init first and check its result", where, f.linker)
	case f.verdict == "fail":
		if f.exitCode == 66 && f.race {
			return StatusFailed, "child failed: data race (exit code 66)"
		}
		return StatusFailed, "child failed"
	case f.exitCode == 66 && f.race:
		return StatusFailed, fmt.Sprintf("child was ended by the race detector (exit code 66)%s: data race, see WARNING: DATA RACE in the output", where)
	case f.verdict == "":
		if f.exitCode == 0 && !f.begun && f.ready {
			return StatusNotReached, "child ran no test of this name, or its TestMain left before: exit code 0 and no result"
		}
		hint := ""
		if f.exitCode == 0 {
			hint = " (a C library called exit, or os.Exit(0)?)"
		}
		if !f.begun {
			return StatusExited, fmt.Sprintf("child exited with code %d%s%s", f.exitCode, where, hint)
		}
		return StatusExited, fmt.Sprintf("child exited with code %d before the test finished%s%s", f.exitCode, where, hint)
	case !f.ready && f.wrapper != "":
		return StatusExited, fmt.Sprintf("child printed a result (%s) but none of its notes came through: %q must hand on file descriptors 3 and up", f.verdict, f.wrapper)
	case !f.begun:
		return StatusNotReached, fmt.Sprintf("child came to the end of the test (%s) without reaching forkproc.Run: the code above Run took another way than in the parent", f.verdict)
	case !f.ended:
		return StatusExited, fmt.Sprintf("child printed a result (%s) that it did not confirm: something wrote test2json frames to its output and ended it with exit code %d", f.verdict, f.exitCode)
	case f.exitCode != 0:
		hint := "TestMain, an exit handler, or a failure outside of the test"
		if f.race {
			hint = "a data race outside of the test"
		}
		return StatusFailed, fmt.Sprintf("child ended the test (%s) but then exited with code %d: %s", f.verdict, f.exitCode, hint)
	case f.verdict == "skip" && !f.bodyPass:
		return StatusSkipped, "skipped"
	}
	return StatusPassed, "passed"
}

func (f *facts) where() string {
	phase := f.phase()
	switch {
	case len(f.running) > 0:
		return fmt.Sprintf(", during %q", strings.Join(f.running, `", "`))
	case !f.ready:
		return " before package init was over"
	case phase == PhaseStart:
		return " before the test reached forkproc.Run"
	case phase == PhaseCleanup:
		return ", in the cleanup of the test"
	case phase == PhaseExit:
		return ", after the test had ended"
	}
	return ""
}

func signalName(s syscall.Signal) string {
	names := map[syscall.Signal]string{
		syscall.SIGKILL: "SIGKILL", syscall.SIGABRT: "SIGABRT", syscall.SIGSEGV: "SIGSEGV", syscall.SIGTERM: "SIGTERM",
		syscall.SIGINT: "SIGINT", syscall.SIGQUIT: "SIGQUIT", syscall.SIGHUP: "SIGHUP", syscall.SIGPIPE: "SIGPIPE",
		syscall.SIGFPE: "SIGFPE", syscall.SIGILL: "SIGILL", syscall.SIGBUS: "SIGBUS", syscall.SIGALRM: "SIGALRM",
	}
	if name, ok := names[s]; ok {
		return name
	}
	return fmt.Sprintf("signal %d (%v)", int(s), s)
}
