package forkproc

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/enginetest/enginetest/internal/origin"
	"github.com/enginetest/enginetest/internal/proc"
)

// A witness finds out which new entries of folders that other programs use too are the child's.
type witness struct {
	makers *origin.Makers
	family *proc.Family
	stop   chan struct{}

	mu   sync.Mutex
	made map[string]int    // by the child's own account: the process that made an entry
	used map[string]string // entries that a process of the child had open to write, mapped or bound
	pids []int             // of the child, as far as they were seen
}

const sharedMemory = "/dev/shm"

// sharedDirs are the folders in which leftovers are looked for.
func sharedDirs() []string {
	dirs := []string{sharedMemory, filepath.Clean(os.TempDir()), startDir}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

func newWitness() *witness {
	return &witness{
		makers: origin.Watch(sharedDirs()...), stop: make(chan struct{}),
		made: map[string]int{}, used: map[string]string{},
	}
}

// blind reports whether the kernel does not tell this process who made what in /dev/shm.
func (w *witness) blind() bool { return !w.makers.Every(sharedMemory) }

// follow begins with the family. Where the kernel does not tell who made an entry, the processes of
// the family are looked at: when one appears, or from time to time.
func (w *witness) follow(f *proc.Family) {
	w.family = f
	w.makers.Follow(w.look)
	if w.makers.Err(sharedMemory) == nil {
		return
	}
	go func() {
		for {
			select {
			case <-w.stop:
				return
			case <-time.After(250 * time.Millisecond):
				w.look()
			}
		}
	}()
}

func (w *witness) close() {
	close(w.stop)
	w.makers.Close()
}

// look takes what the kernel has reported, and notes what the processes of the family use now where
// that is not enough.
func (w *witness) look() {
	w.makers.Read()
	if !w.blind() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	processes, _ := w.family.Processes()
	for _, p := range processes {
		if !slices.Contains(w.pids, p.PID) {
			w.pids = append(w.pids, p.PID)
		}
		for path, how := range origin.Uses(p.PID, sharedDirs()) {
			w.used[path] = fmt.Sprintf("process %d (%s) of the child %s it", p.PID, p.Command, how)
		}
	}
}

// heard notes what the child says that it has made.
func (w *witness) heard(path string, pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.made[path] = pid
}

// A claim is an answer to whose an entry is: the child's with the evidence, another's, or neither.
type claim struct {
	why    string
	others bool
}

// claim answers for a child with this process id and command line.
func (w *witness) claim(path string, child int, command string) claim {
	w.mu.Lock()
	defer w.mu.Unlock()
	dir := filepath.Dir(path)
	maker, known := w.makers.Maker(dir, filepath.Base(path))
	switch {
	case known && maker.PID == os.Getpid():
		return claim{others: true}
	case known && maker.PID == child, w.made[path] == child:
		return claim{why: fmt.Sprintf("made by process %d (%s)", child, command)}
	case known && maker.PID > 0 && w.family.Has(maker.PID, maker.Parents, maker.Group):
		return claim{why: fmt.Sprintf("made by process %d (%s)", maker.PID, maker.Command)}
	case known && len(maker.Parents) > 0, known && maker.PID == 0 && w.makers.Every(dir):
		return claim{others: true}
	case w.used[path] != "":
		return claim{why: w.used[path]}
	}
	for _, number := range strings.FieldsFunc(filepath.Base(path), func(r rune) bool { return r < '0' || r > '9' }) {
		if pid, _ := strconv.Atoi(number); pid >= 100 && (pid == child || slices.Contains(w.pids, pid)) {
			return claim{why: fmt.Sprintf("named after process %d of the child", pid)}
		}
	}
	if dir == startDir && dir != filepath.Clean(os.TempDir()) && !w.makers.Every(dir) {
		return claim{why: "in the folder of the test's package"}
	}
	return claim{}
}

// unknown says why an entry has no claim.
func (w *witness) unknown(path string) string {
	dir := filepath.Dir(path)
	switch maker, known := w.makers.Maker(dir, filepath.Base(path)); {
	case w.makers.Err(dir) != nil:
		return fmt.Sprintf("who makes files in %s is not known here: %v", dir, w.makers.Err(dir))
	case !w.makers.Every(dir):
		return "without CAP_SYS_ADMIN the kernel does not tell who made it"
	case known:
		return fmt.Sprintf("made by process %d, which ended before it was seen", maker.PID)
	}
	return "the kernel did not tell who made it"
}

// command is the child's command line, which a dead process does not tell, at most 100 bytes of it.
func (c *child) command() string {
	args := slices.Clone(c.cmd.Args[len(c.cfg.wrap):])
	args[0] = filepath.Base(args[0])
	line := strings.Join(args, " ")
	if len(line) > 100 {
		line = strings.ToValidUTF8(line[:100], "") + "…"
	}
	return line
}

// ownMakers watches in a child whose parent is not told who makes what; nil elsewhere.
var ownMakers *origin.Makers

func watchOwn() { ownMakers = origin.Watch(sharedDirs()...) }

// tellMade tells the parent what this process made and left in the folders that others use too.
func tellMade() {
	if ownMakers == nil {
		return
	}
	for _, dir := range sharedDirs() {
		for _, e := range readDir(dir) {
			if pid, known := ownMakers.Of(dir, e.Name()); known && pid == os.Getpid() {
				note("made", strconv.Itoa(pid), strconv.Quote(filepath.Join(dir, e.Name())))
			}
		}
	}
}
