//go:build linux

package cudafd_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/internal/cudafd"
)

// opened returns a pipe, an eventfd and an epoll that watches another eventfd.
func opened(t *testing.T) (fds []int) {
	t.Helper()
	pipe := make([]int, 2)
	require.NoError(t, unix.Pipe2(pipe, unix.O_CLOEXEC))
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	watched, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	require.NoError(t, err)
	e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(watched)} //nolint:gosec // a descriptor
	require.NoError(t, unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, watched, &e))
	fds = append(pipe, event, watched, epoll)
	t.Cleanup(func() {
		closeAll(fds)
		cudafd.Own() // forgets them: an epoll of a later test with the same number looks the same
	})
	return fds
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

func TestWhatADriverOpensAtItsStartIsItsOwn(t *testing.T) {
	mine := opened(t)
	var its []int
	cudafd.Starting(func() { its = opened(t) })
	own := cudafd.Own()
	for _, fd := range its {
		assert.Equal(t, "opened when the driver started", own[strconv.Itoa(fd)], fd)
	}
	for _, fd := range mine {
		assert.Empty(t, own[strconv.Itoa(fd)], fd)
	}
	closeAll(its)
	assert.Empty(t, cudafd.Own())
	for _, fd := range opened(t) {
		assert.Empty(t, cudafd.Own()[strconv.Itoa(fd)], "the same number, opened by another")
	}
}

// A driver that another library started is known by its threads.
func TestWhatADriversThreadWaitsForIsItsOwn(t *testing.T) {
	if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(unix.Gettid()) + "/syscall"); err != nil {
		t.Skip("this system does not say which call a thread is in: ", err)
	}
	for _, wait := range []func(fds []int, stop int){pollAll, epollAll} {
		mine, its := opened(t), opened(t)
		stop := make([]int, 2)
		require.NoError(t, unix.Pipe2(stop, unix.O_CLOEXEC))
		done := namedThread(t, "cuda-EvtHandlr", func() { wait(its, stop[0]) })
		require.Eventually(t, func() bool { return cudafd.Own()[strconv.Itoa(its[0])] != "" }, hang, tick)
		own := cudafd.Own()
		for _, fd := range mine {
			assert.Empty(t, own[strconv.Itoa(fd)], fd)
		}
		assert.Contains(t, own[strconv.Itoa(its[1])], "the other end of its fd "+strconv.Itoa(its[0]))
		require.NoError(t, unix.Close(stop[1])) // ends it
		<-done
		require.NoError(t, unix.Close(stop[0]))
		assert.Empty(t, cudafd.Own()[strconv.Itoa(its[0])], "the thread has ended")
	}
}

// The second of two pipes that were made one after the other is the first one's twin only when a
// device file comes next.
func TestTwinsAreNotGuessed(t *testing.T) {
	var its []int
	cudafd.Starting(func() { its = opened(t) })
	mine := make([]int, 2)
	require.NoError(t, unix.Pipe2(mine, unix.O_CLOEXEC))
	defer closeAll(mine)
	own := cudafd.Own()
	assert.NotEmpty(t, own[strconv.Itoa(its[0])])
	for _, fd := range mine {
		assert.Empty(t, own[strconv.Itoa(fd)], fd)
	}
}
