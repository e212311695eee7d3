package cthreads

import (
	"context"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/enginetest/enginetest/leakcheck"
)

// host fails a test that leaves something of the host's.
func host(t *testing.T, patience time.Duration) {
	before, err := leakcheck.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := before.Restored(context.Background(), leakcheck.Patience(patience)); err != nil {
			t.Error(err)
		}
	})
}

func TestLeakNamed(t *testing.T) {
	host(t, 10*time.Millisecond)
	start("decoder", false)
	asleep(t, "decoder")
}

// A thread without a name of its own may be a helper of the C library: nothing is said of it.
func TestCleanNameless(t *testing.T) {
	host(t, long())
	start("", false)
}

// A thread that called Go is still C's, although the runtime has a descriptor for it.
func TestLeakCallsGo(t *testing.T) {
	host(t, 10*time.Millisecond)
	start("caller", true)
	asleep(t, "caller")
}

// asleep waits until a thread sleeps: what one that computes runs cannot be seen.
func asleep(t *testing.T, name string) {
	for t.Context().Err() == nil {
		tasks, _ := filepath.Glob("/proc/self/task/*/stat")
		for _, path := range tasks {
			if stat, _ := os.ReadFile(path); strings.Contains(string(stat), "("+name+") S ") {
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// long is the patience of tests that leave nothing; a campaign sets a shorter one.
func long() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("CTHREADS_PATIENCE")); err == nil {
		return d
	}
	return time.Minute
}

// Threads that were there before are no one's here; the one that is joined is gone.
func TestCleanJoined(t *testing.T) {
	defer start("older", true)()
	host(t, long())
	start("younger", false)()
}

// Threads of Go's own are not C's, whether they are in a call of C, have a signal to wait for, or end
// with a goroutine.
func TestCleanGo(t *testing.T) {
	host(t, long())
	notes := make(chan os.Signal, 1)
	signal.Notify(notes, os.Interrupt)
	defer signal.Stop(notes)
	for range 8 {
		go nap()
		go runtime.LockOSThread()
	}
	old := runtime.GOMAXPROCS(16)
	runtime.GC()
	runtime.GOMAXPROCS(old)
	if _, err := exec.Command("true").Output(); err != nil {
		t.Fatal(err)
	}
	if _, err := net.LookupHost("localhost"); err != nil {
		t.Log(err)
	}
}

// A thread that computed at the baseline, where what it is cannot be seen, is known later.
func TestCleanSpinning(t *testing.T) {
	startSpinning()
	host(t, long())
	stopSpinning()
}

// The C library keeps the thread of its timers.
func TestCleanTimer(t *testing.T) {
	host(t, long())
	if !setTimer() {
		t.Skip("no timers here")
	}
}
