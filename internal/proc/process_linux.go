package proc

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/internal/procfs"
)

// Unseen says what a family may hide on this system; empty on Linux.
func Unseen() string { return "" }

// Processes lists the living processes of the family, oldest first. The supervisor is not one.
func (f *Family) Processes() ([]Process, error) {
	select {
	case <-f.gone:
		return nil, nil
	default:
	}
	var list []Process
	for _, m := range f.members() {
		list = append(list, f.describe(m))
	}
	slices.SortFunc(list, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.PID, b.PID))
	})
	return list, nil
}

func (f *Family) describe(m member) Process {
	p := Process{
		PID: m.pid, Parent: m.Parent, start: m.Start, Started: startTime(m.Start),
		Command: procfs.CommandLine(m.pid), Listening: listening(m.pid),
	}
	if m.pid == f.leader {
		return p
	}
	switch {
	case m.Session != f.session():
		p.Escapes = append(p.Escapes, EscapeSession)
	case m.Group != f.leader:
		p.Escapes = append(p.Escapes, EscapeGroup)
	}
	if m.Parent == f.guard.process.Pid {
		p.Escapes = append(p.Escapes, EscapeParent)
	}
	if env := procfs.Read(m.pid, "environ"); env != nil && !f.marked(m.pid) {
		p.Escapes = append(p.Escapes, EscapeEnvironment)
	}
	return p
}

// session is the session that the family was started in.
func (f *Family) session() int {
	if f.guard.setsid {
		return f.leader
	}
	sid, _ := unix.Getsid(0)
	return sid
}

// marked reports whether the process has the family's identity, or one that is inside of it, in the
// environment that it was started with.
func (f *Family) marked(pid int) bool {
	id, ok := procfs.Variable(pid, envID)
	return ok && (id == f.id || strings.HasPrefix(id, f.id+"/"))
}

// Has reports whether a process, of which this is what was seen, is or was one of the family: its
// parents, from the closest on, and its control groups.
func (f *Family) Has(pid int, parents []int, groups string) bool {
	if pid == f.leader || slices.Contains(parents, f.leader) || slices.Contains(parents, f.guard.process.Pid) {
		return true
	}
	return f.guard.group != "" && strings.Contains(groups, "/"+filepath.Base(string(f.guard.group)))
}

// startTime converts ticks since boot: user space sees 100 per second.
func startTime(ticks int64) time.Time {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(ticks)*10*time.Millisecond - time.Duration(now.Nano()))
}

// finish kills what the group or the mark finds, for the time that limit allows.
func (f *Family) finish(limit time.Duration) {
	for end := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		left := f.members()
		if len(left) == 0 || time.Now().After(end) {
			return
		}
		f.guard.group.kill()
		for _, m := range left {
			m.signal(unix.SIGKILL)
		}
	}
}

// pending returns how many bytes are in the pipe.
func pending(r *os.File) (n int) {
	conn, err := r.SyscallConn()
	if err != nil {
		return 0
	}
	_ = conn.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return n
}
