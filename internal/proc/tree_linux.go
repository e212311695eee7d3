package proc

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/internal/procfs"
)

// A member is a process of a family at one moment.
type member struct {
	pid int
	procfs.Stat
}

// signal sends sig to the member, and to no later process with its number.
func (m member) signal(sig syscall.Signal) {
	fd, err := unix.PidfdOpen(m.pid, 0)
	if err != nil {
		if err == unix.ENOSYS {
			_ = unix.Kill(m.pid, sig)
		}
		return
	}
	defer unix.Close(fd)
	if st, ok := procfs.StatOf(m.pid); ok && st.Start == m.Start {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// descendants lists the living processes below root. A process that loses its parent during the
// look is in it: where a parent is missing, it looks again.
func descendants(root int) []member {
	var found []member
	for range 5 {
		stats := allStats()
		found = found[:0]
		whole := true
		for pid, st := range stats {
			if st.Dead() {
				continue
			}
			switch below(stats, pid, root) {
			case yes:
				found = append(found, member{pid, st})
			case unknown:
				whole = false
			}
		}
		if whole {
			break
		}
	}
	return found
}

func allStats() map[int]procfs.Stat {
	stats := map[int]procfs.Stat{}
	for _, pid := range allPIDs() {
		if st, ok := procfs.StatOf(pid); ok {
			stats[pid] = st
		}
	}
	return stats
}

type answer int

const (
	no answer = iota
	yes
	unknown
)

// below reports whether pid descends from root: unknown when an ancestor is missing.
func below(stats map[int]procfs.Stat, pid, root int) answer {
	for range len(stats) {
		st, ok := stats[pid]
		switch {
		case !ok:
			return unknown
		case st.Parent == root:
			return yes
		case st.Parent <= 1:
			return no
		}
		pid = st.Parent
	}
	return no
}

// members lists the living processes of the family, this process and the supervisor excepted.
func (f *Family) members() []member {
	f.mu.Lock()
	lost := f.lost
	f.mu.Unlock()
	switch {
	case !lost:
		return descendants(f.guard.process.Pid)
	case f.guard.group != "":
		return f.guard.group.members()
	}
	var found []member
	stats := allStats()
	for pid, st := range stats {
		if pid == os.Getpid() || st.Dead() {
			continue
		}
		for at := pid; at > 1; at = stats[at].Parent {
			if f.marked(at) {
				found = append(found, member{pid, st})
				break
			}
		}
	}
	return found
}

func alive(pid int) bool {
	st, ok := procfs.StatOf(pid)
	return ok && !st.Dead()
}

func allPIDs() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
