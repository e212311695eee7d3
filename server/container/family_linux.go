package container

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/internal/procfs"
)

// family is a container's processes as this machine numbers them. One is known by the namespaces
// of the container's first process, by its control group, or by the mark in its environment.
type family struct {
	mark   string
	id     string // of the container
	init   int
	start  int64
	pidNS  string // "" when it is this process's own
	mntNS  string
	unseen string // why the processes cannot be seen
	seen   map[member]string
}

type member struct {
	pid   int
	start int64
}

func (m member) alive() bool {
	st, ok := procfs.StatOf(m.pid)
	return ok && st.Start == m.start && !st.Dead()
}

// begin takes the number of the container's first process, as the container engine has it.
func (f *family) begin(id string, init int) {
	f.id, f.init, f.seen = id, init, map[member]string{}
	st, ok := procfs.StatOf(init)
	switch {
	case init == 0:
		f.unseen = "the container had ended before its processes could be read"
	case !ok:
		f.unseen = fmt.Sprintf("the container engine's process %d is not on this machine", init)
	case !f.awaitMark():
		f.unseen = fmt.Sprintf("process %d does not show the container's environment: it is another user's, or the container engine runs in another PID namespace", init)
	}
	f.start = st.Start
	f.pidNS, f.mntNS = foreign(init, "pid"), foreign(init, "mnt")
}

// awaitMark waits until the container's first process shows the mark. Just after the start it is the
// container engine's own program.
func (f *family) awaitMark() bool {
	for end := time.Now().Add(settleTime); ; time.Sleep(time.Millisecond) {
		if mark, _ := procfs.Variable(f.init, markVariable); mark == f.mark {
			return true
		}
		if st, ok := procfs.StatOf(f.init); !ok || st.Dead() || time.Now().After(end) {
			return false
		}
	}
}

// foreign is a namespace of a process, "" when it is this process's own.
func foreign(pid int, kind string) string {
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	own, _ := os.Readlink("/proc/self/ns/" + kind)
	if err != nil || theirs == own {
		return ""
	}
	return theirs
}

// look lists the living processes, oldest first, and remembers them.
func (f *family) look() []member {
	if f.unseen != "" || f.seen == nil {
		return nil
	}
	entries, _ := os.ReadDir("/proc")
	var found []member
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !f.has(pid) {
			continue
		}
		if st, ok := procfs.StatOf(pid); ok && !st.Dead() {
			m := member{pid, st.Start}
			f.seen[m] = procfs.CommandLine(pid)
			found = append(found, m)
		}
	}
	for m := range f.seen { // one that has left every namespace since
		if m.alive() && !slices.Contains(found, m) {
			found = append(found, m)
		}
	}
	slices.SortFunc(found, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.pid, b.pid))
	})
	return found
}

func (f *family) has(pid int) bool {
	if ns := foreign(pid, "pid"); ns != "" && ns == f.pidNS {
		return true
	}
	if ns := foreign(pid, "mnt"); ns != "" && ns == f.mntNS {
		return true
	}
	if bytes.Contains(procfs.Read(pid, "cgroup"), []byte(f.id)) && foreign(pid, "mnt") != "" {
		return true
	}
	mark, ok := procfs.Variable(pid, markVariable)
	return ok && mark == f.mark
}

// awaitInit returns when the container's first process has ended; at once when it cannot be seen.
func (f *family) awaitInit() {
	if f.unseen != "" {
		return
	}
	fd, err := unix.PidfdOpen(f.init, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if st, ok := procfs.StatOf(f.init); !ok || st.Start != f.start {
		return
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(poll, -1); err != unix.EINTR {
			return
		}
	}
}

// gone names what outlived the removal of the container, and ends it.
func (f *family) gone() (string, error) {
	if f.unseen != "" {
		return "not seen: " + f.unseen, nil
	}
	began := time.Now()
	left := f.look()
	for ; len(left) > 0 && time.Since(began) < settleTime; left = f.look() {
		time.Sleep(time.Millisecond)
	}
	var errs []error
	for _, m := range left {
		command := f.seen[m]
		fate := "killed"
		if !m.kill() {
			fate = "does not die"
		}
		errs = append(errs, fmt.Errorf("outlived the container, %s: process %d (%s)", fate, m.pid, command))
	}
	return fmt.Sprintf("%d processes were seen, none is left", len(f.seen)), errors.Join(errs...)
}

const (
	settleTime = time.Second
	killTime   = 10 * time.Second
)

// kill ends a process and reports whether it has ended.
func (m member) kill() bool {
	fd, err := unix.PidfdOpen(m.pid, 0)
	if err != nil {
		return !m.alive()
	}
	defer unix.Close(fd)
	for end := time.Now().Add(killTime); m.alive(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
	return true
}
