package forkproc

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/enginetest/enginetest/internal/proc"
	"github.com/enginetest/enginetest/internal/procfs"
	"github.com/enginetest/enginetest/ledger"
)

// A snapshot is what was there before the child: the names of shared memory of both kinds, and when
// the folders last changed in which sockets are looked for.
type snapshot struct {
	shm     map[string]bool
	folders map[string]int64
}

func (c *child) snapshot() snapshot {
	s := snapshot{map[string]bool{}, map[string]int64{}}
	for _, e := range readDir("/dev/shm") {
		s.shm["/dev/shm/"+e.Name()] = true
	}
	for _, seg := range procfs.Segments() {
		s.shm[segmentName(seg)] = true
	}
	for _, dir := range []string{startDir, os.TempDir()} {
		s.folders[dir] = changed(dir)
	}
	return s
}

func changed(dir string) int64 {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return 0
	}
	return st.Mtim.Nano()
}

// candidates are the names of new shared memory, sockets and FIFOs.
func (c *child) candidates(before snapshot) []string {
	var names []string
	for _, e := range readDir("/dev/shm") {
		if name := "/dev/shm/" + e.Name(); !before.shm[name] {
			names = append(names, name)
		}
	}
	// A socket's inode does not change after it is made; file times lag behind the clock by a tick
	// of the kernel.
	since := c.start.Add(-20 * time.Millisecond).UnixNano()
	for dir, when := range before.folders {
		if changed(dir) == when {
			continue
		}
		for _, e := range readDir(dir) {
			if e.Type()&(fs.ModeSocket|fs.ModeNamedPipe) == 0 {
				continue
			}
			var st unix.Stat_t
			if name := filepath.Join(dir, e.Name()); unix.Lstat(name, &st) == nil && st.Ctim.Nano() >= since {
				names = append(names, name)
			}
		}
	}
	return names
}

// readDir is os.ReadDir without a note in the test log: what is in the working folder is no input
// of the test.
func readDir(dir string) []fs.DirEntry {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	entries, _ := f.ReadDir(-1)
	return entries
}

// newFiles are the names that are there now, were not before, belong to this user, and that no
// living process uses: those that evidence attributes to the child, and those that nothing
// attributes to any program.
func (c *child) newFiles(before snapshot) (mine, unknown []leftover) {
	for _, path := range c.candidates(before) {
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil || int(st.Uid) != os.Getuid() || proc.InUse(path) {
			continue
		}
		claim := c.witness.claim(path, c.pid, c.command())
		if claim.others {
			continue
		}
		l, remove := Leftover{Kind: leftoverSocket, Name: path, Text: "socket " + path}, "rm "
		if filepath.Dir(path) == sharedMemory {
			l.Kind, remove = leftoverSharedMemory, "rm -r "
			l.Text = fmt.Sprintf("shared memory %s (%s)", path, ledger.FormatBytes(st.Size))
		}
		if claim.why == "" {
			l.Text += ", not attributed: " + c.witness.unknown(path)
			unknown = append(unknown, leftover{Leftover: l})
			continue
		}
		l.Text += fmt.Sprintf(", %s; to remove it: %s", claim.why, remove+path)
		mine = append(mine, leftover{Leftover: l})
	}
	return append(mine, c.newSegments(before)...), unknown
}

func (c *child) newSegments(before snapshot) (found []leftover) {
	for _, seg := range procfs.Segments() {
		// A segment names no other owner than its maker. What a process below the test binary made
		// cannot be told from another program's, so it is not blamed.
		if before.shm[segmentName(seg)] || seg.Maker != c.pid || unix.Kill(seg.Maker, 0) == nil {
			continue
		}
		text := fmt.Sprintf("System V shared memory %d (%s, made by pid %d, attached %d times); to remove it: ipcrm -m %d",
			seg.ID, ledger.FormatBytes(seg.Size), seg.Maker, seg.Attached, seg.ID)
		found = append(found, leftover{Leftover: Leftover{Kind: leftoverSharedMemory, Name: segmentName(seg), Text: text}})
	}
	return found
}

func segmentName(s procfs.Segment) string { return "shm " + strconv.Itoa(s.ID) }

// tempFiles are what a child that ended well left in the temporary folder that only it used.
func (c *child) tempFiles() []leftover {
	var found []leftover
	for _, e := range readDir(c.tmp) {
		if strings.HasPrefix(e.Name(), ownFiles) {
			continue
		}
		var size int64
		var files int
		_ = filepath.WalkDir(filepath.Join(c.tmp, e.Name()), func(_ string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil
			}
			if fi, err := d.Info(); err == nil {
				size += fi.Size()
				files++
			}
			return nil
		})
		text := fmt.Sprintf("temporary file %s (%s), removed now", e.Name(), ledger.FormatBytes(size))
		if e.IsDir() {
			text = fmt.Sprintf("temporary folder %s (%d files, %s), removed now", e.Name(), files, ledger.FormatBytes(size))
		}
		found = append(found, leftover{Leftover: Leftover{Kind: leftoverTempFile, Name: e.Name(), Text: text}})
	}
	return found
}
