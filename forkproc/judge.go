package forkproc

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/enginetest/enginetest/internal/proc"
)

// A judgment is what became of a child.
type judgment struct {
	status Status
	reason string // the child is its subject
	note   string
}

const missingLibrary = "a C library is missing or older than the one it was built with; with NVML: call Init first and check its result"

// judge returns the verdict. Two witnesses must agree on a pass: the framed stream says that the
// test passed, and the child said over its private pipe that it came to the end of the body's
// cleanups. Every other way to exit code 0 is a failure.
func (f *facts) judge() judgment {
	if f.panicLine != "" && f.failed != "" && len(f.running) == 0 {
		f.running = []string{f.failed}
	}
	where := f.where()
	switch {
	case f.startErr != nil:
		return judgment{StatusNotStarted, fmt.Sprintf("did not start: %v", f.startErr), ""}
	case f.crashed() && strings.HasPrefix(f.panicLine, "panic: test timed out after "):
		return judgment{StatusTimedOut, fmt.Sprintf("ran into its time limit of %v%s; its stacks are in the output",
			f.limit, where), ""}
	case f.canceled != nil:
		return judgment{StatusTimedOut, fmt.Sprintf("was killed%s: %v", where, f.canceled), ""}
	case f.stuck:
		return judgment{StatusTimedOut, fmt.Sprintf("ran into its time limit of %v%s and does not die of SIGKILL: it is in an uninterruptible system call (a driver?)", f.limit, where), ""}
	case f.quit && !f.killed:
		return judgment{StatusTimedOut, fmt.Sprintf("ran into its time limit of %v%s; its own alarm did not go off, so it got SIGQUIT; its stacks are in the output", f.limit, where), ""}
	case f.killed:
		return judgment{StatusTimedOut, fmt.Sprintf("ran into its time limit of %v%s, did not end by itself, got SIGQUIT for its stacks and was killed", f.limit, where), ""}
	case f.signal == syscall.SIGKILL && f.oom != "":
		return judgment{StatusOOMKilled, "was killed by SIGKILL" + where, "likely the kernel's OOM killer: " + f.oom}
	case f.crashed():
		how := "exit code 2"
		if f.signal != 0 {
			how = proc.SignalName(f.signal)
		}
		return judgment{StatusPanicked, fmt.Sprintf("crashed (%s)%s: %s", how, where, f.panicLine), ""}
	case f.signal != 0:
		return judgment{StatusKilled, fmt.Sprintf("was killed by %s%s", proc.SignalName(f.signal), where), ""}
	case f.exitCode == 127 && f.linker != "":
		return judgment{StatusNotStarted, fmt.Sprintf("was ended by the dynamic linker (exit code 127)%s: %s", where,
			f.linker), missingLibrary}
	case f.returned != "":
		return judgment{StatusFailed, "returned an error: " + f.returned, ""}
	case f.verdict == "fail":
		if f.exitCode == 66 && f.race {
			return judgment{StatusFailed, "failed: data race (exit code 66)", ""}
		}
		return judgment{StatusFailed, "failed", ""}
	case f.exitCode == 66 && f.race:
		return judgment{StatusFailed, fmt.Sprintf("was ended by the race detector (exit code 66)%s: data race, see WARNING: DATA RACE in the output", where), ""}
	case f.verdict == "":
		if f.exitCode == 0 && !f.begun && f.ready && f.call {
			return judgment{
				StatusNotReached, "never came to forkproc.Main: exit code 0 and no result",
				"TestMain must call it, or the child finds no test to run",
			}
		}
		if f.exitCode == 0 && !f.begun && f.ready {
			return judgment{
				StatusNotReached,
				"ran no test of this name, or its TestMain left before: exit code 0 and no result", "",
			}
		}
		hint := ""
		if f.exitCode == 0 {
			hint = " (a C library called exit, or os.Exit(0)?)"
		}
		if !f.begun {
			return judgment{StatusExited, fmt.Sprintf("exited with code %d%s%s", f.exitCode, where, hint), ""}
		}
		return judgment{StatusExited, fmt.Sprintf("exited with code %d before the %s finished%s%s", f.exitCode,
			f.what(), where, hint), ""}
	case !f.ready && f.wrapper != "":
		return judgment{StatusExited, fmt.Sprintf("printed a result (%s) but none of its notes came through: %q must hand on file descriptors 3 and up", f.verdict, f.wrapper), ""}
	case !f.begun:
		return judgment{StatusNotReached, fmt.Sprintf("came to the end of the test (%s) without reaching forkproc.Run: the code above Run took another way than in the parent", f.verdict), ""}
	case !f.ended:
		return judgment{StatusExited, fmt.Sprintf("printed a result (%s) that it did not confirm: something wrote test2json frames to its output and ended it with exit code %d", f.verdict, f.exitCode), ""}
	case f.exitCode != 0:
		hint := "TestMain, an exit handler, or a failure outside of the test"
		if f.race {
			hint = "a data race outside of the test"
		}
		return judgment{StatusFailed, fmt.Sprintf("ended the test (%s) but then exited with code %d: %s", f.verdict,
			f.exitCode, hint), ""}
	case f.verdict == "skip" && !f.bodyPass:
		return judgment{StatusSkipped, "skipped", ""}
	}
	return judgment{StatusPassed, "passed", ""}
}

func (f *facts) what() string {
	if f.call {
		return "function"
	}
	return "test"
}

func (f *facts) where() string {
	phase := f.phase()
	switch {
	case len(f.running) > 0:
		return fmt.Sprintf(", during %q", strings.Join(f.running, `", "`))
	case !f.ready:
		return " before package init was over"
	case phase == phaseStart:
		if f.call {
			return " before forkproc.Main was reached"
		}
		return " before the test reached forkproc.Run"
	case phase == phaseCleanup:
		return ", in the cleanup of the test"
	case phase == phaseExit:
		return ", after the " + f.what() + " had ended"
	}
	return ""
}
