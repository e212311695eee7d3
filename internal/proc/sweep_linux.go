package proc

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/internal/procfs"
)

// Sweep ends what the child left behind: members of its process group, and processes that carry its identity in their
// environment or its lifeline among their files, or descend from one that does. They get the grace to end by themselves; the
// rest is named, killed and reaped. Call it after Done.
//
// Not found is a process that left the group, emptied its environment, closed its files and lost its ancestors: all four.
func (c *Child) Sweep(grace time.Duration) []Process {
	defer c.end()
	deadline := time.Now().Add(grace)
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		family := c.family()
		if len(family) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return finish(family, c.family)
		}
		time.Sleep(pause)
	}
}

// SweepHolders names and kills the processes, this one excepted, that hold the file f (a pipe or socket) open.
func SweepHolders(f *os.File) []Process {
	fi, err := f.Stat()
	if err != nil {
		return nil
	}
	find := func() []int {
		var pids []int
		for _, pid := range allPIDs() {
			if pid != os.Getpid() && holds(pid, fi) {
				pids = append(pids, pid)
			}
		}
		return pids
	}
	return finish(find(), find)
}

func holds(pid int, fi os.FileInfo) bool {
	fds, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	for _, fd := range fds {
		if other, err := os.Stat(fd); err == nil && os.SameFile(fi, other) {
			return true
		}
	}
	return false
}

// finish describes the processes, then kills and reaps until again finds none, for two seconds at most.
func finish(pids []int, again func() []int) []Process {
	var named []Process
	seen := map[int]bool{}
	end := time.Now().Add(2 * time.Second)
	for ; len(pids) > 0 && time.Now().Before(end); pids = again() {
		for _, pid := range pids {
			if !seen[pid] {
				seen[pid] = true
				named = append(named, Process{PID: pid, Command: procfs.CommandLine(pid), Listening: listening(pid)})
			}
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(time.Millisecond)
		for _, pid := range pids {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // ours when it was reparented to us
		}
	}
	for pid := range seen { // who is dying has lost what again knew it by, its environment and files, a moment before it is dead
		for alive(pid) && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
	return named
}

func alive(pid int) bool {
	st, ok := procfs.StatOf(pid)
	return ok && !st.Dead()
}

// family lists the living processes that belong to the reaped child.
func (c *Child) family() []int {
	groupGone := unix.Kill(-c.PID(), 0) == unix.ESRCH
	if groupGone && !haveChildren() {
		return nil // orphans would have become ours: one system call instead of a walk through /proc
	}
	stats := map[int]procfs.Stat{}
	for _, pid := range allPIDs() {
		if st, ok := procfs.StatOf(pid); ok && pid != os.Getpid() {
			stats[pid] = st
		}
	}
	member := map[int]bool{}
	for pid, st := range stats {
		if st.Group == c.PID() || descends(stats, pid) && c.marked(pid) {
			member[pid] = true
		}
	}
	for grew := true; grew; {
		grew = false
		for pid, st := range stats {
			if !member[pid] && member[st.Parent] {
				member[pid], grew = true, true
			}
		}
	}
	var living []int
	for pid := range member {
		if stats[pid].Dead() {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			continue
		}
		living = append(living, pid)
	}
	return living
}

// descends reports whether pid descends from this process.
func descends(stats map[int]procfs.Stat, pid int) bool {
	for range len(stats) {
		st, ok := stats[pid]
		if !ok {
			break
		}
		pid = st.Parent
	}
	return pid == os.Getpid()
}

// marked reports whether pid was started by the child or inside of it: it has the identity of the child in its environment, or
// the child's lifeline among its files.
func (c *Child) marked(pid int) bool {
	if id, ok := procfs.Variable(pid, envID); ok && (id == c.id || strings.HasPrefix(id, c.id+"/")) {
		return true
	}
	return holds(pid, c.life.info)
}

func haveChildren() bool {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WSTOPPED|unix.WCONTINUED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err != unix.ECHILD
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

// InUse reports whether a living process has the file mapped or open, or is bound to it as a socket.
func InUse(path string) bool {
	for _, f := range rows("/proc/self/net/unix") {
		if len(f) > 7 && f[7] == path {
			return true
		}
	}
	for _, pid := range allPIDs() {
		dir := "/proc/" + strconv.Itoa(pid)
		if maps, err := os.ReadFile(dir + "/maps"); err == nil && bytes.Contains(maps, []byte(" "+path+"\n")) {
			return true
		}
		fds, _ := filepath.Glob(dir + "/fd/*")
		for _, fd := range fds {
			if target, err := os.Readlink(fd); err == nil && target == path {
				return true
			}
		}
	}
	return false
}
