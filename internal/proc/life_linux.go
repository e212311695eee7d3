package proc

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Missing is empty: everything that the package promises holds on Linux.
func Missing() string { return "" }

type lifeline struct {
	r, w *os.File
	info os.FileInfo // tells who holds it
}

func newLifeline() (*lifeline, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	info, err := r.Stat()
	return &lifeline{r, w, info}, err
}

func (l *lifeline) attach(cmd *exec.Cmd) {
	fd := 3 + len(cmd.ExtraFiles)
	cmd.ExtraFiles = append(cmd.ExtraFiles, l.r)
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d:%d", envLifeline, fd, Inode(int(l.r.Fd()))))
}

// arm lets the kernel watch for the parent's end. The settings belong to the open file, which lives on in the child.
func (l *lifeline) arm(pgid int) {
	_ = killOnHangup(int(l.r.Fd()), pgid) // Pdeathsig has it covered already
	_ = l.r.Close()
}

func (l *lifeline) close() {
	_ = l.r.Close()
	_ = l.w.Close()
}

func killOnHangup(fd, pgid int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETOWN, -pgid); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETSIG, int(unix.SIGKILL)); err != nil {
		return err
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_ASYNC)
	return err
}

// Inode identifies the open file behind a descriptor: the same number in another process is the same pipe. 0: none, or not known
// on this system.
func Inode(fd int) uint64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Ino
}

var adopted bool // this process was started by Start and holds its lifeline; written by init only

// IsChild reports whether this process was started by Start and still holds the descriptors that Start gave it. A process that
// merely inherited the environment is not a child.
func IsChild() bool { return adopted }

// The lifetime is armed in init: before main, before any test, before any device is touched.
func init() {
	env, ok := syscall.Getenv(envLifeline)
	if !ok {
		return
	}
	_ = os.Unsetenv(envLifeline) // not for the children of this process
	var fd int
	var ino uint64
	if n, _ := fmt.Sscanf(env, "%d:%d", &fd, &ino); n != 2 || ino == 0 || Inode(fd) != ino {
		return
	}
	adopted = true
	// The descriptor goes on to the processes that this one starts, on purpose. The death signal can come first, when the
	// forking thread of a killed parent ends before its files are closed: then they alone still hold the lifeline.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	// Again, with the group of this process: a wrapper may stand between it and the parent. Then look, because a parent that
	// died before this call sends nothing any more.
	_ = killOnHangup(fd, unix.Getpgrp())
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, _ := unix.Poll(poll, 0); n > 0 && poll[0].Revents&unix.POLLHUP != 0 {
		_ = unix.Kill(0, unix.SIGKILL)
	}
}

func ownGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

func killGroup(pgid int) { _ = unix.Kill(-pgid, unix.SIGKILL) }

// waitable returns when pid can be reaped, and leaves it unreaped: until then its number cannot be used again.
func waitable(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err == nil
		}
	}
}

var reaper struct {
	sync.Mutex
	users int
	mine  bool // the flag was off before
}

// beReaper makes this process the reaper of its orphaned descendants until the last release.
func beReaper() (release func()) {
	reaper.Lock()
	defer reaper.Unlock()
	if reaper.users++; reaper.users == 1 {
		if reaper.mine = !isReaper(); reaper.mine {
			_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
		}
	}
	return sync.OnceFunc(func() {
		reaper.Lock()
		defer reaper.Unlock()
		if reaper.users--; reaper.users == 0 && reaper.mine {
			_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
		}
	})
}

func isReaper() bool {
	was := new(int32) // on the heap: it must not move
	_ = unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(was)), 0, 0, 0)
	runtime.KeepAlive(was)
	return *was != 0
}
