package proc

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/internal/procfs"
)

// A group is the control group (version 2) of a family: its folder, or "" where this process may
// make none. A process that does not mean to leave it stays, whatever becomes of its parents; the
// kernel lists those in it, and kills them in one step, however fast they start others.
type group string

const groupPrefix = "enginetest-"

// home is the folder of this process's own control group; "" where version 2 is not mounted.
var home = sync.OnceValue(func() string {
	own := ""
	for line := range strings.Lines(string(procfs.Read(os.Getpid(), "cgroup"))) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			own = strings.TrimSpace(path)
		}
	}
	for line := range strings.Lines(string(procfs.Read(os.Getpid(), "mountinfo"))) {
		f := strings.Fields(line) // id, parent, device, root, mount point, options, …, "-", type, source, options
		if i := slices.Index(f, "-"); i < 5 || i+1 == len(f) || f[i+1] != "cgroup2" {
			continue
		}
		if below, err := filepath.Rel(f[3], own); own != "" && err == nil && filepath.IsLocal(below) {
			return filepath.Join(f[4], below)
		}
	}
	return ""
})

var sweepOnce sync.Once

// newGroup makes a group for the family with this identity and locks it. The lock belongs to the
// open file: while any process has that open, nobody sweeps the group.
func newGroup(id string) (group, *os.File) {
	if home() == "" {
		return "", nil
	}
	sweepOnce.Do(func() { sweep(home()) })
	for _, again := range []string{"", "-1", "-2"} { // a sweep may take a group that is not locked yet
		g := group(filepath.Join(home(), groupPrefix+id[strings.LastIndexByte(id, '/')+1:]+again))
		if os.Mkdir(string(g), 0o755) != nil {
			break // the folder belongs to another user, or is mounted to be read
		}
		if lock := g.lock(); lock != nil {
			return g, lock
		}
		g.remove()
	}
	return "", nil
}

// lock locks the group, unless another process has.
func (g group) lock() *os.File {
	file, err := os.Open(string(g))
	if err != nil {
		return nil
	}
	if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		there, err := os.Stat(string(g))
		opened, openedErr := file.Stat()
		if err == nil && openedErr == nil && os.SameFile(there, opened) {
			return file
		}
	}
	_ = file.Close()
	return nil
}

// sweep ends the groups whose test process and supervisor were both killed.
func sweep(dir string) {
	stale, _ := filepath.Glob(filepath.Join(dir, groupPrefix+"*"))
	for _, path := range stale {
		g := group(path)
		if lock := g.lock(); lock != nil {
			g.kill()
			g.remove()
			_ = lock.Close()
		}
	}
}

// kill kills what is in the group. Before Linux 5.14 it does nothing.
func (g group) kill() {
	if g != "" {
		_ = os.WriteFile(filepath.Join(string(g), "cgroup.kill"), []byte("1"), 0)
	}
}

// members lists the living processes of the group and of the groups in it.
func (g group) members() (found []member) {
	_ = filepath.WalkDir(string(g), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil
		}
		b, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for _, word := range strings.Fields(string(b)) {
			pid, _ := strconv.Atoi(word)
			if st, ok := procfs.StatOf(pid); ok && !st.Dead() {
				found = append(found, member{pid, st})
			}
		}
		return nil
	})
	return found
}

// remove removes the group and those in it, once they are empty: the killed take a moment to end.
// What is left is swept by a later process.
func (g group) remove() {
	if g == "" {
		return
	}
	for range 50 {
		var inside []string
		_ = filepath.WalkDir(string(g), func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				inside = append(inside, path)
			}
			return nil
		})
		for i := len(inside) - 1; i >= 0; i-- {
			_ = unix.Rmdir(inside[i])
		}
		if _, err := os.Lstat(string(g)); errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}
