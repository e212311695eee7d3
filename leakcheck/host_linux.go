package leakcheck

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/enginetest/enginetest/internal/cudafd"
	"github.com/enginetest/enginetest/internal/origin"
	"github.com/enginetest/enginetest/internal/procfs"
	"github.com/enginetest/enginetest/leakcheck/internal/threads"
)

func snapshot(dirs []string) (*HostState, error) {
	h := &HostState{dirs: dirs, items: map[string]hostItem{}}
	pids := descendants(os.Getpid())
	h.processes(pids)
	h.threads()
	inUse, err := h.mappings()
	if err != nil {
		return nil, errors.Join(ErrNoHost, err)
	}
	if err := h.descriptors(inUse); err != nil {
		return nil, errors.Join(ErrNoHost, err)
	}
	all := append(pids, os.Getpid())
	h.folder("/dev/shm", KindSharedMemory, func(path string) bool { return inUse[path] || namesOne(path, all) })
	h.folder(os.TempDir(), KindTemporaryFile, func(string) bool { return false })
	for _, d := range dirs {
		h.tree(d)
	}
	h.segments(all)
	return h, nil
}

// most entries of a folder and its subfolders that are listed.
const mostFiles = 10_000

// tree lists a folder and its subfolders.
func (h *HostState) tree(dir string) {
	listed := 0
	filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error { //nolint:errcheck // what cannot be read is not listed
		switch {
		case err != nil || path == dir:
			return nil
		case listed == mostFiles:
			return filepath.SkipAll
		}
		listed++
		h.items["file "+path] = hostItem{kind: KindTemporaryFile, what: path, path: path}
		return nil
	})
}

// segments lists the System V shared memory that one of the processes made: it stays until someone
// removes it.
func (h *HostState) segments(pids []int) {
	for _, s := range procfs.Segments() {
		if !slices.Contains(pids, s.Maker) {
			continue
		}
		what := fmt.Sprintf("SysV segment with key %#x", s.Key)
		maker, _ := procfs.StatOf(s.Maker)
		h.items[fmt.Sprintf("segment %d", s.ID)] = hostItem{
			kind: KindSharedMemory, what: what, pid: s.Maker, started: maker.Start,
			name: fmt.Sprintf("%s is left behind: id %d, %d bytes, made by pid %d, %d attached (ipcrm -m %d removes it)",
				what, s.ID, s.Size, s.Maker, s.Attached, s.ID),
		}
	}
}

// descriptors lists /proc/self/fd. A descriptor number that was reused for something else counts as
// new.
func (h *HostState) descriptors(inUse map[string]bool) error {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return err
	}
	defer dir.Close()
	own := strconv.Itoa(int(dir.Fd()))
	fds, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	var sockets, driver map[string]string
	var poller map[string]bool
	for _, fd := range fds {
		target, err := os.Readlink("/proc/self/fd/" + fd)
		if number, _ := strconv.Atoi(fd); err != nil || fd == own || origin.Own(number) {
			continue
		}
		kind, what, path := KindDescriptor, target, ""
		switch class, rest, _ := strings.Cut(target, ":"); {
		case class == "socket":
			if sockets == nil {
				sockets = readSockets()
			}
			inode := strings.Trim(rest, "[]")
			if kind, what = KindSocket, "socket: "+sockets[inode]; sockets[inode] == "" {
				what = "socket: of a kind that /proc/net does not list"
			}
			if name, ok := strings.CutPrefix(what, "socket: unix /"); ok {
				path = "/" + strings.TrimSuffix(name, " listening")
			}
		case class == "pipe":
			what = "pipe:"
		case class == "anon_inode":
			what = "anon_inode:" + rest
			if strings.Contains(rest, "eventpoll") || strings.Contains(rest, "eventfd") {
				if poller == nil {
					poller = runtimePoller()
				}
				if poller[fd] {
					continue // opened once, at the first use of a file or socket that can block
				}
			}
		case strings.HasPrefix(target, "/"):
			path = strings.TrimSuffix(target, " (deleted)")
			inUse[path] = true
		}
		key, name := "fd "+fd+" "+target, "fd "+fd+" is open: "+describeFD(what, target)
		if strings.HasPrefix(what, "pipe:") || strings.HasPrefix(what, "anon_inode:") {
			if driver == nil {
				driver = cudafd.Own()
			}
			if why := driver[fd]; why != "" {
				what, name = what+" of the CUDA driver", name+" of the CUDA driver ("+why+")"
			}
		}
		h.items[key] = hostItem{kind: kind, name: name, what: what, path: path}
	}
	return nil
}

func describeFD(what, target string) string {
	if what != target && !strings.HasPrefix(what, "socket") {
		return target
	}
	if n, ok := strings.CutSuffix(target, " (deleted)"); ok {
		return n + ", a file that was removed while open: its space is not free"
	}
	return what
}

// runtimePoller finds the descriptors of the Go runtime's network poller: the epoll descriptor that
// watches what Go opens, and the eventfd that wakes it, which alone is not watched for edges.
func runtimePoller() map[string]bool {
	out := map[string]bool{}
	r, w, err := os.Pipe() // Go watches it
	if err != nil {
		return out
	}
	defer r.Close()
	defer w.Close()
	var probe string
	if c, err := r.SyscallConn(); err == nil {
		c.Control(func(fd uintptr) { probe = strconv.Itoa(int(fd)) }) //nolint:errcheck // without it nothing is found
	}
	all, _ := filepath.Glob("/proc/self/fdinfo/*")
	for _, info := range all {
		text, _ := os.ReadFile(info)
		watched := map[string]uint64{} // descriptor → events
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 3 && f[0] == "tfd:" && f[2] == "events:" {
				watched[f[1]], _ = strconv.ParseUint(f[3], 16, 64)
			}
		}
		if _, ok := watched[probe]; !ok {
			continue
		}
		out[filepath.Base(info)] = true
		for fd, events := range watched {
			target, _ := os.Readlink("/proc/self/fd/" + fd)
			if events&edgeTriggered == 0 && strings.Contains(target, "eventfd") {
				out[fd] = true
			}
		}
	}
	return out
}

// edgeTriggered is EPOLLET.
const edgeTriggered = 1 << 31

// readSockets maps inodes to "tcp 127.0.0.1:8080 listening", "unix /run/x.sock".
func readSockets() map[string]string {
	out := map[string]string{}
	for _, s := range procfs.Sockets(os.Getpid()) {
		out[s.Inode] = s.String()
	}
	return out
}

// mappings counts the mapped files, devices and shared memory; anonymous memory is Growth's matter.
func (h *HostState) mappings() (inUse map[string]bool, err error) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	inUse = map[string]bool{}
	seen := map[string]int{}
	for line := range strings.SplitSeq(string(text), "\n") {
		f := strings.Fields(line)
		if len(f) < 6 || !strings.HasPrefix(f[5], "/") {
			continue
		}
		path := strings.Join(f[5:], " ")
		if strings.Contains(f[1], "x") && kindOfFile(path) == KindMapping || isLibrary(path) {
			continue // programs and libraries stay for good; code in shared memory is a compiler's, of this process
		}
		file := strings.TrimSuffix(path, " (deleted)")
		inUse[file] = true
		seen[path]++
		lo, hi, _ := strings.Cut(f[0], "-")
		a, _ := strconv.ParseUint(lo, 16, 64)
		b, _ := strconv.ParseUint(hi, 16, 64)
		h.items[fmt.Sprintf("mapping %d of %s", seen[path], path)] = hostItem{
			kind: kindOfFile(path), name: fmt.Sprintf("%s is mapped (%d KiB at %#x)", path, (b-a)>>10, a),
			what: path, path: file,
		}
	}
	return inUse, nil
}

// ephemeral is the range of the ports that the kernel gives out.
var ephemeral = sync.OnceValue(func() (r [2]int) {
	r = [2]int{32768, 60999}
	text, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	fmt.Sscan(string(text), &r[0], &r[1]) //nolint:errcheck // the defaults stand when it cannot be read
	return r
})

var endpoint = regexp.MustCompile(`:(\d+)( |$)`)

// pattern is what Allow takes for a thing in every run: ports that the kernel picked, process ids
// and the long numbers that temporary files get are "*".
func pattern(what string) string {
	if strings.HasPrefix(what, "socket: tcp") || strings.HasPrefix(what, "socket: udp") {
		return endpoint.ReplaceAllStringFunc(what, func(s string) string {
			port, _ := strconv.Atoi(strings.Trim(s, ": "))
			if r := ephemeral(); port < r[0] || port > r[1] {
				return s
			}
			return strings.Replace(s, strconv.Itoa(port), "*", 1)
		})
	}
	return number.ReplaceAllStringFunc(what, func(n string) string {
		if len(n) > 4 || n == strconv.Itoa(os.Getpid()) {
			return "*"
		}
		return n
	})
}

var library = regexp.MustCompile(`\.so(\.[0-9.]+)?$|/locale-archive$|/gconv-modules\.cache$`)

func isLibrary(path string) bool {
	exe, _ := os.Readlink("/proc/self/exe")
	return path == exe || library.MatchString(path)
}

// folder lists the entries of a folder that other processes use too. Those that mine vouches for
// are this process's.
func (h *HostState) folder(dir string, kind Kind, mine func(path string) bool) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer f.Close()
	names, _ := f.Readdirnames(mostShared)
	if len(names) == mostShared {
		return // another part of them may be listed next time
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		h.items["file "+path] = hostItem{kind: kind, what: path, path: path, shared: true, sure: mine(path)}
	}
}

// mostShared is more entries of a shared folder than are looked at.
const mostShared = 100_000

// describe writes the name of an entry of a folder. It reports whether the thing is still there.
func (it *hostItem) describe() bool {
	if it.name != "" {
		return true
	}
	info, err := os.Lstat(it.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	what, size := "file", ""
	switch {
	case err != nil:
	case info.IsDir():
		what = "folder"
	case info.Mode()&fs.ModeSocket != 0:
		what = "unix socket"
	case info.Mode().IsRegular():
		size = fmt.Sprintf(" (%d bytes)", info.Size())
	}
	it.name = fmt.Sprintf("%s %s is left behind%s", what, it.path, size)
	return true
}

var number = regexp.MustCompile(`[0-9]+`)

// namesOne reports whether a file's name holds one of the process ids.
func namesOne(path string, pids []int) bool {
	for _, n := range number.FindAllString(filepath.Base(path), -1) {
		if id, err := strconv.Atoi(n); err == nil && slices.Contains(pids, id) {
			return true
		}
	}
	return false
}

// descendants lists the children of a process, their children and so on.
func descendants(pid int) (out []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, t := range tasks {
		text, _ := os.ReadFile(t)
		for _, f := range strings.Fields(string(text)) {
			if id, err := strconv.Atoi(f); err == nil {
				out = append(append(out, id), descendants(id)...)
			}
		}
	}
	return out
}

func (h *HostState) processes(pids []int) {
	self := os.Getpid()
	for _, pid := range pids {
		stat, ok := procfs.StatOf(pid)
		if !ok {
			continue // gone meanwhile
		}
		relation := "child"
		if stat.Parent != self {
			relation = fmt.Sprintf("descendant (parent %d)", stat.Parent)
		}
		name := fmt.Sprintf("%s process %d runs, and is left running: %s", relation, pid, procfs.CommandLine(pid))
		if stat.Dead() {
			name = fmt.Sprintf("%s process %d (%s) has exited but nobody waited for it (zombie)", relation, pid,
				stat.Command)
		}
		h.items[fmt.Sprintf("pid %d started %d", pid, stat.Start)] = hostItem{
			kind: KindProcess, name: name, what: stat.Command, pid: pid, started: stat.Start,
		}
	}
}

// threads lists all of them: those that C code started are findings when they were not there before.
func (h *HostState) threads() {
	for _, t := range threads.All() {
		it := hostItem{kind: KindThread, hidden: !t.Left}
		if t.Left {
			it.what = strconv.Quote(t.Name) + " in " + t.Code
			it.name = fmt.Sprintf("C thread %d %s still runs, %s after its start", t.ID, it.what, round(t.Age))
		}
		h.items[fmt.Sprintf("thread %d started %d", t.ID, t.Start)] = it
	}
}

// residentBytes is the memory of this process that is in use (RSS).
func residentBytes() int64 {
	var size, resident int64
	text, _ := os.ReadFile("/proc/self/statm")
	fmt.Sscan(string(text), &size, &resident) //nolint:errcheck // 0 when it cannot be read
	return resident * int64(os.Getpagesize())
}

func openDescriptors() int64 {
	fds, _ := os.ReadDir("/proc/self/fd")
	return int64(len(fds))
}
