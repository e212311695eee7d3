package origin

import "golang.org/x/sys/unix"

// follower reads the kernel's reports as they come: a process that ends at once can then still be
// looked at.
type follower struct {
	wake int // the end of a pipe that, once closed, ends it
	done chan struct{}
}

// Follow reads reports as they come, until Close, and calls seen after each.
func (m *Makers) Follow(seen func()) {
	polled := []unix.PollFd{}
	watched.Lock()
	for _, f := range m.folders {
		if f.err == nil {
			polled = append(polled, unix.PollFd{Fd: int32(f.group), Events: unix.POLLIN}) //nolint:gosec // a descriptor
		}
	}
	watched.Unlock()
	var pipe [2]int
	if len(polled) == 0 || unix.Pipe2(pipe[:], unix.O_CLOEXEC) != nil {
		return
	}
	polled = append(polled, unix.PollFd{Fd: int32(pipe[0]), Events: unix.POLLIN}) //nolint:gosec // a descriptor
	m.follower = follower{wake: pipe[1], done: make(chan struct{})}
	go func() {
		defer close(m.follower.done)
		defer unix.Close(pipe[0])
		for m.await(polled) {
			seen()
		}
	}()
}

// await waits for a report and reads all; false when the watch ends.
func (m *Makers) await(polled []unix.PollFd) bool {
	for {
		_, err := unix.Poll(polled, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil || polled[len(polled)-1].Revents != 0 {
			return false
		}
		m.Read()
		return true
	}
}

func (f *follower) stop() {
	if f.done != nil {
		_ = unix.Close(f.wake)
		<-f.done
	}
}
