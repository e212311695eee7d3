//go:build linux

package forkproc_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/enginetest/enginetest/forkproc"
)

// What a child's end looks like, row by row, each with a real child.
func TestEnds(t *testing.T) {
	type end struct {
		name   string
		body   func(*testing.T)
		opts   []forkproc.Option
		expect forkproc.Expectation
		code   int
		signal syscall.Signal
		phase  forkproc.Phase
		tail   string
		why    string
		// limited: in a time limit, one that is long enough to get to the phase
		limited bool
	}
	ends := []end{
		{name: "fail", body: func(t *testing.T) {
			t.Error("wrong token")
		}, expect: forkproc.Failed("wrong token"), code: 1, phase: forkproc.PhaseExit, why: "the plain failure"},
		{name: "FailNow", body: func(t *testing.T) {
			t.Fatal("wrong token")
		}, expect: forkproc.Failed("wrong token"), code: 1, phase: forkproc.PhaseExit, why: "ends by Goexit"},
		{name: "subtest", body: func(t *testing.T) {
			t.Run("s", func(t *testing.T) { t.Error("deep") })
		}, expect: forkproc.Failed("deep"), code: 1, phase: forkproc.PhaseExit, why: "failure rises"},
		{name: "panic", body: func(*testing.T) { panic("boom") }, expect: forkproc.Panicked("panic: boom"), code: 2, phase: forkproc.PhaseBody, tail: "goroutine", why: "testing repanics it"},
		{name: "nil dereference", body: func(*testing.T) { var p *int; *p = 1 }, expect: forkproc.Panicked("nil pointer dereference"), code: 2, phase: forkproc.PhaseBody, why: "a SIGSEGV that Go turns into a panic"},
		{
			name: "panic in a goroutine", body: func(*testing.T) { go panic("elsewhere"); select {} },
			expect: forkproc.Panicked("panic: elsewhere"), code: 2, phase: forkproc.PhaseBody,
			why: "no frame says which test failed",
		},
		{name: "panic after a printed one", body: func(*testing.T) { fmt.Println("panic: not really"); panic("boom") }, expect: forkproc.Panicked("panic: boom"), code: 2, phase: forkproc.PhaseBody, why: "the text with the stacks counts"},
		{name: "failure after a printed timeout", body: func(t *testing.T) {
			fmt.Println("panic: test timed out after 5s")
			t.Error("x")
		}, expect: forkproc.Failed("x"), code: 1, phase: forkproc.PhaseExit, why: "exit code 1 is no crash"},
		{name: "panic in a cleanup", body: func(t *testing.T) {
			t.Cleanup(func() { panic("late") })
		}, expect: forkproc.Panicked("panic: late"), code: 2, phase: forkproc.PhaseCleanup, why: "the body was fine"},
		{name: "fatal error", body: func(*testing.T) { var c chan int; <-c }, limited: true, expect: forkproc.TimedOut(), code: 2, phase: forkproc.PhaseBody, tail: "", why: "waits for ever: the alarm comes"},
		{name: "os.Exit(0)", body: func(*testing.T) { os.Exit(0) }, opts: []forkproc.Option{forkproc.Args("-test.paniconexit0=false")}, expect: forkproc.Exited(0), code: 0, phase: forkproc.PhaseBody, why: "the same exit code as a pass"},
		{name: "os.Exit(0), noticed", body: func(*testing.T) { os.Exit(0) }, opts: []forkproc.Option{forkproc.Args("-test.paniconexit0")}, expect: forkproc.Panicked("unexpected call to os.Exit(0)"), code: 2, phase: forkproc.PhaseBody, why: "as under go test"},
		{name: "exit_group(0)", body: func(*testing.T) { syscall.Exit(0) }, expect: forkproc.Exited(0), code: 0, phase: forkproc.PhaseBody, why: "what exit in C comes down to: no hook sees it"},
		{name: "os.Exit(7)", body: func(*testing.T) {
			os.Exit(7)
		}, expect: forkproc.Exited(7), code: 7, phase: forkproc.PhaseBody, why: "any code"},
		{name: "exit after a forged pass", body: func(t *testing.T) { fmt.Printf("\x16--- PASS: %s (0.00s)\n\x16PASS\n", t.Name()); syscall.Exit(0) }, expect: forkproc.Exited(0), code: 0, phase: forkproc.PhaseBody, why: "a frame in the output is one witness, the child's note the other"},
		{name: "timeout", body: func(*testing.T) { time.Sleep(time.Hour) }, limited: true, expect: forkproc.TimedOut(), code: 2, phase: forkproc.PhaseBody, why: "its own alarm, with stacks"},
		{name: "SIGKILL", body: func(*testing.T) { kill(syscall.SIGKILL) }, expect: forkproc.Killed(syscall.SIGKILL), code: -1, signal: syscall.SIGKILL, phase: forkproc.PhaseBody, why: "no word from the child"},
		{name: "SIGTERM", body: func(*testing.T) { kill(syscall.SIGTERM) }, expect: forkproc.Killed(syscall.SIGTERM), code: -1, signal: syscall.SIGTERM, phase: forkproc.PhaseBody, why: "a scheduler's signal"},
		{name: "SIGSEGV from outside", body: func(*testing.T) {
			kill(syscall.SIGSEGV)
		}, expect: forkproc.Panicked("SIGSEGV"), code: 2, phase: forkproc.PhaseBody, why: "the runtime reports it"},
		{name: "crash", body: func(*testing.T) { panic("dump") }, opts: []forkproc.Option{forkproc.Env("GOTRACEBACK=crash")}, expect: forkproc.Panicked("panic: dump"), code: -1, signal: syscall.SIGABRT, phase: forkproc.PhaseBody, why: "GOTRACEBACK=crash ends by SIGABRT"},
		{
			name: "no test matched", body: func(*testing.T) {}, opts: []forkproc.Option{forkproc.Args("-test.run=^$")},
			expect: forkproc.Ended(forkproc.StatusNotReached), code: 0, phase: forkproc.PhaseStart,
			tail: "no tests to run", why: "exit code 0 again",
		},
		{name: "127 is only a number", body: func(*testing.T) { os.Exit(127) }, expect: forkproc.Exited(127), code: 127, phase: forkproc.PhaseBody, why: "the linker's code without the linker's text"},
		{name: "66 is only a number", body: func(*testing.T) { os.Exit(66) }, expect: forkproc.Exited(66), code: 66, phase: forkproc.PhaseBody, why: "the race detector's code without a race"},
	}
	if raceBuild {
		ends = append(
			ends,
			end{
				name: "race", body: race, expect: forkproc.Failed("race detected during execution of test"), code: 1,
				phase: forkproc.PhaseExit, why: "normal end",
			},
			end{
				name: "race, halt_on_error", body: race,
				opts:   []forkproc.Option{forkproc.Env("GORACE=halt_on_error=1 atexit_sleep_ms=0")},
				expect: forkproc.Failed("data race"), code: 66, phase: forkproc.PhaseBody, why: "66 at once",
			},
			end{name: "race, os.Exit afterwards", body: func(t *testing.T) { race(t); os.Exit(0) }, opts: []forkproc.Option{forkproc.Args("-test.paniconexit0=false")}, expect: forkproc.Failed("data race"), code: 66, phase: forkproc.PhaseBody, why: "66 from the exit hook"},
		)
	}
	for _, e := range ends {
		t.Run(e.name, func(t *testing.T) {
			run := func(opts ...forkproc.Option) forkproc.Outcome {
				return forkproc.Run(t, e.body, slices.Concat(e.opts, opts,
					[]forkproc.Option{forkproc.Expect(e.expect)})...)
			}
			var o forkproc.Outcome
			if e.limited {
				o = withinEver(t, func(limit time.Duration) (forkproc.Outcome, bool) {
					o := run(forkproc.Timeout(limit))
					return o, o.Phase == e.phase
				})
			} else {
				o = run()
			}
			require.Equal(t, e.code, o.ExitCode, e.why)
			require.Equal(t, e.signal, o.Signal, e.why)
			require.Equal(t, e.phase, o.Phase, e.why)
			require.Contains(t, o.Tail, e.tail, e.why)
		})
	}
}

// withinEver runs a child with longer and longer time limits until one has led to what the test is
// about: a busy machine may take longer than a limit to start a child.
func withinEver(t *testing.T, run func(limit time.Duration) (forkproc.Outcome, bool)) forkproc.Outcome {
	t.Helper()
	for limit := 200 * time.Millisecond; ; limit *= 2 {
		o, ok := run(limit)
		if ok {
			return o
		}
		require.Less(t, limit, time.Minute, "the child never came so far: %+v", o)
	}
}

func kill(s syscall.Signal) {
	_ = syscall.Kill(os.Getpid(), s)
	time.Sleep(10 * time.Second)
}

func race(*testing.T) {
	n, done := 0, make(chan bool)
	go func() { n++; close(done) }()
	n++
	<-done
	_ = n
}

func TestPassAndSkipAreTold(t *testing.T) {
	o := forkproc.Run(t, func(t *testing.T) {
		t.Cleanup(func() {
			if t.Skipped() || t.Failed() {
				t.Error("the end of the body must not look like a skip to its cleanups")
			}
		})
	})
	require.Equal(t, forkproc.StatusPassed, o.Status)
	require.Equal(t, forkproc.PhaseExit, o.Phase)
}

func TestNothingToStart(t *testing.T) {
	// A wrapper that is missing, one that ends at once, one that ends with 127 for a reason of its
	// own.
	for _, w := range []struct {
		wrap   []string
		expect forkproc.Status
		why    string
	}{
		{[]string{"/no/such/wrapper"}, forkproc.StatusNotStarted, "no such file"},
		{[]string{"true"}, forkproc.StatusExited, "exit code 0 without a run"},
		{[]string{"sh", "-c", "exit 127"}, forkproc.StatusExited, "the shell's code for command not found"},
	} {
		t.Run(strings.Join(w.wrap, " "), func(t *testing.T) {
			o := forkproc.Run(t, func(*testing.T) {}, forkproc.Wrap(w.wrap...),
				forkproc.Expect(forkproc.Ended(w.expect)))
			require.Equal(t, w.expect, o.Status, w.why)
		})
	}
}

func TestWrap(t *testing.T) {
	o := forkproc.Run(t, func(t *testing.T) {
		if os.Getenv("WRAPPED") != "yes" {
			t.Error("not under the wrapper")
		}
	}, forkproc.Wrap("env", "WRAPPED=yes"))
	require.Equal(t, forkproc.StatusPassed, o.Status)

	// A wrapper that stays above the test.
	o = forkproc.Run(t, func(t *testing.T) { t.Log("under sh") }, forkproc.Wrap("sh", "-c", `"$@"; exit $?`, "sh"))
	require.Equal(t, forkproc.StatusPassed, o.Status)
	require.Contains(t, o.Tail, "under sh")

	// One that closes a descriptor: its number may be another file in the child.
	o = forkproc.Run(t, func(*testing.T) {}, forkproc.Wrap("sh", "-c", `"$@" 3>&-`, "sh"),
		forkproc.Expect(forkproc.Ended(forkproc.StatusExited)))
	require.Contains(t, o.Reason, `must hand on file descriptors 3 and up`)
}

func TestTimeoutThatTheChildCannotKeep(t *testing.T) {
	o := withinEver(t, func(limit time.Duration) (forkproc.Outcome, bool) {
		o := forkproc.Run(t, func(*testing.T) { time.Sleep(time.Hour) },
			forkproc.Args("-test.timeout=1h"), forkproc.Timeout(limit), forkproc.Grace(limit), forkproc.Expect(forkproc.TimedOut()))
		return o, o.Phase == forkproc.PhaseBody && o.Signal == 0
	})
	require.Contains(t, o.Reason, "got SIGQUIT")
	require.Contains(t, o.Tail, "rip", "the runtime's dump")

	o = withinEver(t, func(limit time.Duration) (forkproc.Outcome, bool) {
		o := forkproc.Run(t, func(*testing.T) { kill(syscall.SIGSTOP) },
			forkproc.Timeout(limit), forkproc.Grace(limit), forkproc.Expect(forkproc.TimedOut()))
		return o, o.Signal == syscall.SIGKILL
	})
	require.Contains(t, o.Reason, "and was killed")
}

func TestEnvironment(t *testing.T) {
	forkproc.Run(t, func(t *testing.T) {
		require.Equal(t, "GPU-1,GPU-2", os.Getenv("CUDA_VISIBLE_DEVICES"))
		require.Equal(t, "b", os.Getenv("A"))
		require.Equal(t, t.Name(), os.Getenv("FORKPROC_TEST"), "others find out which test a process belongs to")
		require.Contains(t, os.Getenv("GORACE"), "atexit_sleep_ms=0")
		require.Contains(t, os.Getenv("GODEBUG"), "tracebacklabels=1")
	}, forkproc.VisibleDevices("GPU-1", "GPU-2"), forkproc.Env("A=b"))
	forkproc.Run(t, func(t *testing.T) {
		require.Equal(t, "1", os.Getenv("CUDA_VISIBLE_DEVICES"))
		require.Equal(t, "PCI_BUS_ID", os.Getenv("CUDA_DEVICE_ORDER"))
	}, forkproc.VisibleDevices("1"))
	forkproc.Run(t, func(t *testing.T) {
		v, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES")
		require.True(t, ok && v == "")
	}, forkproc.VisibleDevices())
}

// The binary that a child starts is no child, although it has the environment of one.
func TestStrangerWithOurEnvironment(t *testing.T) {
	forkproc.Run(t, func(t *testing.T) {
		out, err := exec.Command(os.Args[0], "-test.run=^TestInChildOnly$", "-test.v").CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "PASS: TestInChildOnly")
	})
}

func TestInChildOnly(t *testing.T) {
	if forkproc.InChild() {
		t.Error("a grandchild by other means is taken for a child")
	}
}

func TestInline(t *testing.T) {
	t.Setenv("FORKPROC", "inline")
	pid := 0
	o := forkproc.Run(t, func(*testing.T) { pid = os.Getpid() })
	require.Equal(t, os.Getpid(), pid)
	require.Equal(t, forkproc.PhaseInline, o.Phase)
}

// An flock on an inherited file is held until the child is dead.
func TestFilesStayOpenUntilTheChildIsDead(t *testing.T) {
	dir := t.TempDir()
	lock := dir + "/lock"
	fd, err := syscall.Open(lock, syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(fd, syscall.LOCK_EX))
	f := os.NewFile(uintptr(fd), lock)
	kept = append(kept, f) // its number is closed below, behind its back
	held := make(chan bool, 1)
	meanwhile := func() {
		waitFor(dir + "/up")
		_ = syscall.Close(fd) // the parent lets go, the child still has it
		other, err := os.Open(lock)
		if err == nil {
			held <- syscall.Flock(int(other.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
			_ = other.Close()
		}
		close(held)
		touch(dir + "/go")
	}
	if !forkproc.InChild() {
		go meanwhile()
	}
	forkproc.Run(t, func(*testing.T) {
		touch(os.Getenv("MEETING") + "/up")
		waitFor(os.Getenv("MEETING") + "/go")
	}, forkproc.Files(f), forkproc.Env("MEETING="+dir))
	require.True(t, <-held, "the lock was free while the child lived")
	other, err := os.Open(lock)
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, syscall.Flock(int(other.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), "the lock outlived the child")
}

var kept []*os.File

// A long outcome of an earlier Run reaches the later child.
func TestLongPriorOutcome(t *testing.T) {
	first := forkproc.Run(t, func(t *testing.T) {
		for range 100 {
			fmt.Println(strings.Repeat("\x01", 70<<10))
		}
		t.Fatal("x")
	}, forkproc.Expect(forkproc.Failed("x")))
	require.Greater(t, len(first.Tail), 10000)
	forkproc.Run(t, func(*testing.T) {})
}

// Children at the same time do not mix, and none is taken for the leftover of another.
func TestParallelChildren(t *testing.T) {
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			mine := fmt.Sprintf("<%d>", i)
			o := forkproc.Run(t, func(t *testing.T) {
				for range 100 {
					fmt.Println(mine)
				}
			})
			require.Equal(t, 20, strings.Count(o.Tail, mine))
		})
	}
}

// Leak detectors see no goroutine of this package, neither in the body nor after Run.
func TestNoGoroutines(t *testing.T) {
	forkproc.Run(t, func(t *testing.T) { goleak.VerifyNone(t) })
	goleak.VerifyNone(t)
}
