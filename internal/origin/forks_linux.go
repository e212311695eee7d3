package origin

import (
	"os"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/internal/procfs"
)

// forker is a thread at one moment: its children, and what tells whether any thread ends.
type forker struct {
	children map[Process]bool
	main     bool
	threads  map[string]bool
	made     int // threads that Go ever made
}

func thisThread() forker {
	tid := unix.Gettid()
	f := forker{
		children: map[Process]bool{}, main: tid == os.Getpid(), threads: map[string]bool{},
		made: pprof.Lookup("threadcreate").Count(),
	}
	list, _ := os.ReadDir("/proc/self/task")
	for _, t := range list {
		f.threads[t.Name()] = true
	}
	text, _ := os.ReadFile("/proc/self/task/" + strconv.Itoa(tid) + "/children")
	for _, word := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(word); err == nil {
			if st, ok := procfs.StatOf(pid); ok {
				f.children[Process{pid, st.Start}] = true
			}
		}
	}
	return f
}

// ended reports whether a thread has ended since then. One that Go makes now is counted a moment
// before the kernel lists it.
func (f forker) ended(then forker) bool {
	for id := range then.threads {
		if !f.threads[id] {
			return true
		}
	}
	return len(f.threads)-len(then.threads) < f.made-then.made
}

// startedSince lists the children that came to the calling thread. The main thread inherits those
// of threads that end: it has an answer only when none did.
func startedSince(then forker) (out []Process) {
	now := thisThread()
	for range 50 {
		if !now.main || !now.ended(then) {
			break
		}
		time.Sleep(time.Millisecond)
		now = thisThread()
	}
	if now.main && now.ended(then) {
		return nil
	}
	for p := range now.children {
		if !then.children[p] {
			out = append(out, p)
		}
	}
	return out
}
