package origin

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/internal/procfs"
)

// lockThread locks the calling goroutine to a thread whose children are those that it started
// itself, and reports whether there is one. The main thread is not: it inherits the children of
// threads that end. A goroutine that finds itself there moves, while others hold that thread.
func lockThread() bool {
	for range 3 {
		runtime.LockOSThread()
		if !onMainThread() {
			return true
		}
		runtime.UnlockOSThread()
		held, release := make(chan bool), make(chan bool)
		go holdMainThread(held, release, 64)
		<-held
		runtime.LockOSThread()
		close(release)
		if !onMainThread() {
			return true
		}
		runtime.UnlockOSThread()
	}
	runtime.LockOSThread()
	return false
}

// holdMainThread occupies threads, at most limit, until one of them is the main one, closes held,
// and frees them at release.
func holdMainThread(held, release chan bool, limit int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if limit == 1 || onMainThread() {
		close(held)
	} else {
		go holdMainThread(held, release, limit-1)
	}
	<-release
}

func onMainThread() bool { return unix.Gettid() == os.Getpid() }

// threadChildren lists the children of the calling thread.
func threadChildren() map[Process]bool {
	children := map[Process]bool{}
	text, _ := os.ReadFile("/proc/self/task/" + strconv.Itoa(unix.Gettid()) + "/children")
	for _, word := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(word); err == nil {
			if st, ok := procfs.StatOf(pid); ok {
				children[Process{pid, st.Start}] = true
			}
		}
	}
	return children
}
