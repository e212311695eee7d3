//go:build linux

package cudafd_test

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"
)

const (
	hang = time.Minute
	tick = time.Millisecond
)

// namedThread runs f on a thread of this name, which ends with it.
func namedThread(t *testing.T, name string, f func()) <-chan struct{} {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		text, err := unix.BytePtrFromString(name)
		assert.NoError(t, err)
		assert.NoError(t, unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(text)), 0, 0, 0))
		f()
		old, err := unix.BytePtrFromString("test")
		assert.NoError(t, err)
		assert.NoError(t, unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(old)), 0, 0, 0))
	}()
	return done
}

func pollAll(fds []int, stop int) {
	for {
		wait := []unix.PollFd{{Fd: int32(stop), Events: unix.POLLIN}} //nolint:gosec // a descriptor
		for _, fd := range []int{fds[0], fds[2]} {
			wait = append(wait, unix.PollFd{Fd: int32(fd)}) //nolint:gosec // a descriptor
		}
		if _, err := unix.Poll(wait, -1); err == nil && wait[0].Revents != 0 {
			return
		}
	}
}

// epollAll waits in the epoll among fds, after adding the pipe's read end to it.
func epollAll(fds []int, stop int) {
	epoll := fds[len(fds)-1]
	for _, fd := range []int{fds[0], stop} {
		e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)} //nolint:gosec // a descriptor
		if unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &e) != nil {
			return
		}
	}
	for {
		got := make([]unix.EpollEvent, 1)
		if n, err := unix.EpollWait(epoll, got, -1); err == nil && n == 1 && got[0].Fd == int32(stop) { //nolint:gosec // a descriptor
			return
		}
	}
}
