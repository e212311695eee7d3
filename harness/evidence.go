package harness

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/enginetest/enginetest/internal/origin"
	"github.com/enginetest/enginetest/internal/proc"
	"github.com/enginetest/enginetest/internal/procfs"
	"github.com/enginetest/enginetest/leakcheck"
)

// evidence is what is known, from before the engine starts, of who made what in this process and in
// the folders that all processes use. What it cannot attribute to the fixture is not blamed on it.
type evidence struct {
	makers *origin.Makers
	dirs   []string      // that all processes use
	temp   func() string // the test's own folder for temporary files; "" while there is none
	forks  origin.Forks  // of the goroutine that opened the engine

	mu      sync.Mutex
	members map[process]string // the engine's processes, each with the reason
	marks   []string           // of their families
	used    map[string]string  // entries of dirs that one of them had open to write, mapped or bound
}

func gather(o *options) *evidence {
	e := &evidence{
		temp: o.temp, members: map[process]string{}, used: map[string]string{},
		dirs: slices.Compact([]string{sharedMemory, filepath.Clean(os.TempDir())}),
	}
	e.makers = origin.Watch(e.dirs...)
	return e
}

const sharedMemory = "/dev/shm"

// sample notes the engine's processes, those that they started, and what they use now.
func (e *evidence) sample(named []process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range named {
		if p.alive() {
			e.member(p, "a process of the engine")
			if m := proc.MarkOf(p.pid); m != "" && !slices.Contains(e.marks, m) {
				e.marks = append(e.marks, m)
			}
		}
	}
	for _, f := range e.forks.List() {
		e.member(process{f.PID, f.Started}, "started by the call that opened the engine")
	}
	for p := range e.members {
		for _, pid := range leakcheck.Tree(p.pid)()[1:] {
			if st, ok := procfs.StatOf(pid); ok && p.alive() {
				e.member(process{pid, st.Start}, fmt.Sprintf("a descendant of process %d of the engine", p.pid))
			}
		}
	}
	for p := range e.members {
		if p.alive() {
			e.uses(p)
		}
	}
}

func (e *evidence) member(p process, why string) {
	if _, ok := e.members[p]; !ok {
		e.members[p] = why
	}
}

// uses notes the entries of the shared folders that a process has open to write, has mapped to
// share, or is bound to.
func (e *evidence) uses(p process) {
	for path, how := range origin.Uses(p.pid, e.dirs) {
		e.used[path] = fmt.Sprintf("process %d of the engine %s it", p.pid, how)
	}
}

// process says why a child is the engine's: it was seen to be, or descends from one that was.
func (e *evidence) process(pid int, started int64) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if why := e.members[process{pid, started}]; why != "" {
		return why
	}
	if mark := proc.MarkOf(pid); mark != "" && slices.ContainsFunc(e.marks, func(m string) bool {
		return mark == m || strings.HasPrefix(mark, m+"/")
	}) {
		return "started in the family of the engine's processes"
	}
	for at, depth := pid, 0; at > 1 && at != os.Getpid() && depth < 64; depth++ {
		st, ok := procfs.StatOf(at)
		if !ok {
			return ""
		}
		if parent, ok := procfs.StatOf(st.Parent); ok && e.members[process{st.Parent, parent.Start}] != "" {
			return fmt.Sprintf("a descendant of process %d of the engine", st.Parent)
		}
		at = st.Parent
	}
	return ""
}

// path says why a file or socket that this process has open is the engine's.
func (e *evidence) path(watched []string) func(string) string {
	return func(path string) string {
		if temp := e.temp(); temp != "" && below(path, temp) {
			return "it is in the test's own temporary folder"
		}
		if slices.ContainsFunc(watched, func(dir string) bool { return below(path, dir) }) {
			return "it is in a folder that WatchDirs names"
		}
		return ""
	}
}

func below(path, dir string) bool { return strings.HasPrefix(path, strings.TrimRight(dir, "/")+"/") }

// entry says why a new entry of a shared folder is the engine's. foreign: it is another's.
func (e *evidence) entry(alone bool) func(path string) (why string, foreign bool) {
	return func(path string) (why string, foreign bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if origin.OfGo(path) {
			return "", true
		}
		pid, known := e.makers.Of(filepath.Dir(path), filepath.Base(path))
		switch {
		case known && pid == os.Getpid():
			if alone {
				return "made by this process, in which no other test ran", false
			}
			return "", false
		case known && pid > 0:
			for p, why := range e.members {
				if p.pid == pid {
					return fmt.Sprintf("made by process %d: %s", pid, why), false
				}
			}
		}
		if len(e.members) == 0 && known || !origin.OwnedByUs(path) {
			return "", true
		}
		why = cmp.Or(e.used[path], e.named(path, alone))
		if why == "" {
			return "", known && pid > 0 && e.stranger(pid)
		}
		if proc.InUse(path) {
			return "", false // not left behind
		}
		return why, false
	}
}

// stranger reports whether a process that is none of the engine's still runs.
func (e *evidence) stranger(pid int) bool {
	_, alive := procfs.StatOf(pid)
	return alive && !slices.Contains(leakcheck.Tree(os.Getpid())(), pid)
}

// named finds the id of one of the engine's processes in a file's name.
func (e *evidence) named(path string, alone bool) string {
	for _, number := range strings.FieldsFunc(filepath.Base(path), func(r rune) bool { return r < '0' || r > '9' }) {
		for p := range e.members {
			if number == fmt.Sprint(p.pid) && p.pid >= 100 {
				return fmt.Sprintf("named after process %d of the engine", p.pid)
			}
		}
		if alone && number == fmt.Sprint(os.Getpid()) && os.Getpid() >= 100 {
			return "named after this process, in which no other test ran"
		}
	}
	return ""
}

// unseen says what keeps the makers of files from being known; "" when they are.
func (e *evidence) unseen() string {
	for _, dir := range e.dirs {
		if err := e.makers.Err(dir); err != nil {
			return fmt.Sprintf("who makes files in %s is not known here (%v)", dir, err)
		}
	}
	return ""
}
