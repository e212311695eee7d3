package proc

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
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
				named = append(named, describe(pid))
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
	st, ok := readStat(pid)
	return ok && !st.zombie
}

// family lists the living processes that belong to the reaped child.
func (c *Child) family() []int {
	groupGone := unix.Kill(-c.PID(), 0) == unix.ESRCH
	if groupGone && !haveChildren() {
		return nil // orphans would have become ours: one system call instead of a walk through /proc
	}
	stats := map[int]stat{}
	for _, pid := range allPIDs() {
		if st, ok := readStat(pid); ok && pid != os.Getpid() {
			stats[pid] = st
		}
	}
	member := map[int]bool{}
	for pid, st := range stats {
		if st.group == c.PID() || below(stats, pid) && c.marked(pid) {
			member[pid] = true
		}
	}
	for grew := true; grew; {
		grew = false
		for pid, st := range stats {
			if !member[pid] && member[st.parent] {
				member[pid], grew = true, true
			}
		}
	}
	var living []int
	for pid := range member {
		if stats[pid].zombie {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			continue
		}
		living = append(living, pid)
	}
	return living
}

// below reports whether pid descends from this process.
func below(stats map[int]stat, pid int) bool {
	for range len(stats) {
		st, ok := stats[pid]
		if !ok {
			break
		}
		pid = st.parent
	}
	return pid == os.Getpid()
}

// marked reports whether pid was started by the child or inside of it: it has the identity of the child in its environment, or
// the child's lifeline among its files.
func (c *Child) marked(pid int) bool {
	env, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if id, ok := lookup(env, envID); ok && (id == c.id || strings.HasPrefix(id, c.id+"/")) {
		return true
	}
	return holds(pid, c.life.info)
}

// lookup finds a variable in a NUL-separated environment; the last one wins, as in os/exec.
func lookup(env []byte, name string) (value string, ok bool) {
	for _, kv := range bytes.Split(env, []byte{0}) {
		if v, found := bytes.CutPrefix(kv, []byte(name+"=")); found {
			value, ok = string(v), true
		}
	}
	return value, ok
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

type stat struct {
	parent, group int
	zombie        bool
}

// readStat reads /proc/PID/stat; the command in it may hold spaces and parentheses.
func readStat(pid int) (stat, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, false
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 3 {
		return stat{}, false
	}
	parent, _ := strconv.Atoi(f[1])
	group, _ := strconv.Atoi(f[2])
	return stat{parent, group, f[0] == "Z" || f[0] == "X"}, true
}

func describe(pid int) Process {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	cmd := strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
	if cmd == "" {
		name, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
		cmd = strings.TrimSpace(string(name))
	}
	if len(cmd) > 120 {
		cmd = strings.ToValidUTF8(cmd[:120], "") + "…"
	}
	return Process{PID: pid, Command: cmd, Listening: listening(pid)}
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
