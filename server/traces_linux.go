package server

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/internal/proc"
	"github.com/enginetest/enginetest/internal/procfs"
)

// traces are what a server's processes use outside of themselves: what must be gone when they are.
// What was there before the server is not its own. What no process of it was seen to use is no
// one's: it is not reported.
type traces struct {
	before map[string]bool // shared memory
	pids   map[int]bool    // all that were seen
	files  map[string]string
	ports  []int
}

func newTraces() *traces {
	t := &traces{before: map[string]bool{}, pids: map[int]bool{}, files: map[string]string{}}
	entries, _ := os.ReadDir(shmDir)
	for _, e := range entries {
		t.before[filepath.Join(shmDir, e.Name())] = true
	}
	for _, seg := range procfs.Segments() {
		t.before[segmentName(seg)] = true
	}
	return t
}

const shmDir = "/dev/shm"

// observe notes what the living processes use.
func (t *traces) observe(f *proc.Family) {
	list, _ := f.Processes()
	if len(list) == 0 {
		return
	}
	locks := lockInodes()
	for _, p := range list {
		t.pids[p.PID] = true
		for _, l := range p.Listening {
			t.listening(p.PID, l)
		}
		t.mapped(p.PID)
		t.open(p.PID, locks[p.PID])
	}
}

// listening takes "tcp 127.0.0.1:8080" and "unix /tmp/x.sock".
func (t *traces) listening(pid int, socket string) {
	kind, addr, _ := strings.Cut(socket, " ")
	switch kind {
	case "tcp":
		port, err := strconv.Atoi(addr[strings.LastIndexByte(addr, ':')+1:])
		if err == nil && !slices.Contains(t.ports, port) {
			t.ports = append(t.ports, port)
		}
	case "unix":
		if filepath.IsAbs(addr) {
			t.files[addr] = "unix socket"
		} else if dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil && addr != "" &&
			addr[0] != '@' {
			t.files[filepath.Join(dir, addr)] = "unix socket"
		}
	}
}

// mapped notes shared memory and named semaphores among the mappings.
func (t *traces) mapped(pid int) {
	for line := range bytes.Lines(procfs.Read(pid, "maps")) {
		if i := bytes.Index(line, []byte(" "+shmDir+"/")); i >= 0 {
			t.shm(string(bytes.TrimSpace(line[i:])))
		}
	}
}

func (t *traces) shm(name string) {
	name = strings.TrimSuffix(name, " (deleted)")
	if t.before[name] {
		return
	}
	t.files[name] = "shared memory"
	if strings.HasPrefix(filepath.Base(name), "sem.") {
		t.files[name] = "semaphore"
	}
}

// open notes shared memory and locked files among the descriptors. A file that is older than the
// server is not its own.
func (t *traces) open(pid int, locks map[uint64]bool) {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !filepath.IsAbs(target) {
			continue
		}
		if strings.HasPrefix(target, shmDir+"/") {
			t.shm(target)
			continue
		}
		var st unix.Stat_t
		if len(locks) > 0 && unix.Stat(fd, &st) == nil && locks[st.Ino] && isLockName(target) {
			t.files[target] = "lock file"
		}
	}
}

// isLockName tells a lock file from a data file that is locked.
func isLockName(name string) bool {
	return slices.Contains([]string{".lock", ".lck", ".pid"}, filepath.Ext(name))
}

// lockInodes reads who has locked what: "1: FLOCK ADVISORY WRITE 4121 fe:00:1234 0 EOF".
func lockInodes() map[int]map[uint64]bool {
	locks := map[int]map[uint64]bool{}
	b, _ := os.ReadFile("/proc/locks")
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 6 {
			continue
		}
		pid, err := strconv.Atoi(f[4])
		ino, err2 := strconv.ParseUint(f[5][strings.LastIndexByte(f[5], ':')+1:], 10, 64)
		if err != nil || err2 != nil {
			continue
		}
		if locks[pid] == nil {
			locks[pid] = map[uint64]bool{}
		}
		locks[pid][ino] = true
	}
	return locks
}

// left lists what of it is still there and that no other living process uses.
func (t *traces) left() (found []leftover) {
	for name, what := range t.files {
		if _, err := os.Lstat(name); err == nil && !proc.InUse(name) {
			found = append(found, leftover{name, fmt.Sprintf("%s %s is left; to remove it: rm %s", what, name, name)})
		}
	}
	for _, seg := range procfs.Segments() {
		if !t.before[segmentName(seg)] && t.pids[seg.Maker] && unix.Kill(seg.Maker, 0) != nil {
			found = append(found,
				leftover{
					segmentName(seg),
					fmt.Sprintf("System V shared memory %d, made by process %d of the server, is left; to remove it: ipcrm -m %d",
						seg.ID, seg.Maker, seg.ID),
				})
		}
	}
	slices.SortFunc(found, func(a, b leftover) int { return strings.Compare(a.path, b.path) })
	return found
}

func segmentName(s procfs.Segment) string { return "shared memory " + strconv.Itoa(s.ID) }
