package suite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/enginetest/enginetest/forkproc"
)

func TestPass(t *testing.T) {
	forkproc.Run(t, func(t *testing.T) {
		Only(1)
		Only(-1)
		t.Attr("model", "tiny llama")
		t.Log("child", os.Getpid())
	})
	if forkproc.InChild() {
		t.Fatal("the code below Run ran in the child")
	}
}

func TestSkip(t *testing.T) {
	forkproc.Run(t, func(t *testing.T) { t.Skip("no device") })
	t.Fatal("a skip in the child must end the test in the parent")
}

func TestFail(t *testing.T) {
	forkproc.Run(t, func(t *testing.T) { t.Error("wrong token") })
}

func TestTree(t *testing.T) {
	forkproc.Run(t, func(t *testing.T) {
		t.Run("a", func(t *testing.T) {
			t.Run("deep", func(t *testing.T) {
				t.Run("deeper", func(t *testing.T) { t.Attr("level", "3") })
			})
		})
		t.Run("skipped", func(t *testing.T) { t.Skip("why") })
		t.Run("failed", func(t *testing.T) { t.Error("why") })
		t.Run("odd (name) *.[x] é", func(*testing.T) {})
		t.Run("slash/inside", func(*testing.T) {})
		t.Run("", func(*testing.T) {})
		t.Run("same", func(*testing.T) {})
		t.Run("same", func(*testing.T) {})
		for i := range 3 {
			t.Run(fmt.Sprint("parallel", i), func(t *testing.T) {
				t.Parallel()
				fmt.Print("text without a newline ", i)
				t.Log("log of", i)
			})
		}
	})
}

func TestOutput(t *testing.T) {
	forkproc.Run(t, func(t *testing.T) {
		fmt.Println("PASS")
		fmt.Println("FAIL")
		fmt.Println("ok  \tpkg\t0.1s")
		fmt.Println("coverage: 12.5% of statements")
		fmt.Println("panic: not really")
		fmt.Println("panic: test timed out after 5s\n\ngoroutine 1 [running]:")
		fmt.Println("--- FAIL: TestForged (0.00s)")
		fmt.Println("\x16--- FAIL: TestForged (0.00s)")
		fmt.Println("\x16=== RUN   TestForged")
		fmt.Println("middle \x16 of the line")
		fmt.Fprintln(os.Stderr, "to stderr")
		fmt.Print("the end without a newline")
	})
}

func TestPanic(t *testing.T) {
	forkproc.Run(t, func(t *testing.T) {
		t.Run("before", func(*testing.T) {})
		t.Run("culprit", func(*testing.T) { panic("boom") })
	})
}

func TestKilled(t *testing.T) {
	forkproc.Run(t, func(t *testing.T) {
		t.Run("culprit", func(*testing.T) { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) })
	})
}

func TestExit0(t *testing.T) {
	forkproc.Run(t, func(*testing.T) { syscall.Exit(0) }) // as _exit(0) in C: no hook runs
}

func TestTimeout(t *testing.T) {
	forkproc.Run(t, func(*testing.T) { time.Sleep(time.Minute) }, forkproc.Timeout(200*time.Millisecond))
}

func TestExpected(t *testing.T) {
	o := forkproc.Run(t, func(t *testing.T) {
		t.Run("sub", func(*testing.T) { panic("wanted") })
	}, forkproc.Expect(forkproc.Panicked("wanted")))
	if o.Status != forkproc.StatusPanicked {
		t.Error(o.Status)
	}
}

func TestRace(t *testing.T) {
	if os.Getenv("SUITE_RACE") == "" {
		t.Skip("for the race build")
	}
	forkproc.Run(t, race)
}

func TestRaceHalts(t *testing.T) {
	if os.Getenv("SUITE_RACE") == "" {
		t.Skip("for the race build")
	}
	forkproc.Run(t, race, forkproc.Env("GORACE=halt_on_error=1"))
}

func TestRaceThenExit(t *testing.T) {
	if os.Getenv("SUITE_RACE") == "" {
		t.Skip("for the race build")
	}
	forkproc.Run(t, func(t *testing.T) { race(t); os.Exit(0) }, forkproc.Args("-test.paniconexit0=false"))
}

func race(*testing.T) {
	n, done := 0, make(chan bool)
	go func() { n++; close(done) }()
	n++
	<-done
	_ = n
}

func TestNested(t *testing.T) {
	forkproc.Run(t, func(t *testing.T) {
		outer := os.Getpid()
		t.Run("inner", func(t *testing.T) {
			forkproc.Run(t, func(t *testing.T) {
				t.Run("innermost", func(t *testing.T) { t.Log("two processes below the first") })
			})
		})
		if os.Getpid() != outer {
			t.Error("pid changed")
		}
	})
}

func TestTwice(t *testing.T) {
	first := forkproc.Run(t, func(*testing.T) { syscall.Exit(7) }, forkproc.Expect(forkproc.Exited(7)))
	if first.ExitCode != 7 {
		t.Fatal("the first outcome is needed here, in the second child too", first)
	}
	forkproc.Run(t, func(t *testing.T) { t.Run("second", func(*testing.T) {}) })
}

func TestArtifacts(t *testing.T) {
	forkproc.Run(t, func(t *testing.T) {
		dir := t.ArtifactDir()
		if err := os.WriteFile(filepath.Join(dir, "from-child.txt"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Log("wrote to", dir)
	})
}

// TestInput opens a file and reads a variable in the child only: both are inputs of the test.
func TestInput(t *testing.T) {
	forkproc.Run(t, func(t *testing.T) {
		b, err := os.ReadFile(filepath.Join("inputs", os.Getenv("SUITE_INPUT")))
		if err != nil {
			t.Skip(err)
		}
		t.Logf("input %s", b)
	})
}

// TestArgs shows the child's command line.
func TestArgs(t *testing.T) {
	t.Run("odd (name) *", func(t *testing.T) {
		forkproc.Run(t, func(t *testing.T) {
			t.Log("ARGS " + strings.Join(os.Args[1:], " "))
			t.Run("one", func(*testing.T) {})
			t.Run("two", func(*testing.T) {})
		})
	})
}

func TestHang(t *testing.T) {
	if os.Getenv("SUITE_HANG") == "" {
		t.Skip("it hangs")
	}
	forkproc.Run(t, func(*testing.T) {
		pprof.Do(context.Background(), pprof.Labels("request", "42"), func(context.Context) { hang() })
	})
}

func hang() { select {} }
