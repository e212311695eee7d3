package gpuwait

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/enginetest/enginetest/internal/procfs"
)

// Lessee is the holder of a lease: the line in the lock file.
type Lessee struct {
	PID     int       `json:"pid"`
	Start   int64     `json:"start,omitempty"` // of the process, in clock ticks since boot: PIDs are used again
	Program string    `json:"program"`
	Name    string    `json:"name"` // the test's, usually
	Since   time.Time `json:"since"`
	Gone    bool      `json:"gone,omitempty"` // PID has ended; children that inherited the lease hold it
	// the processes that have the lock file open, as far as this user can see
	Holding []int `json:"holding,omitempty"`
}

// String returns "pid 21293 (llm.test) TestLoad since 07:15:29 (3m0s)".
func (l *Lessee) String() string {
	if l.PID == 0 {
		return "a process that left no name"
	}
	s := fmt.Sprintf("pid %d (%s) %s since %s", l.PID, l.Program, l.Name, l.Since.Format(time.TimeOnly))
	if d := time.Since(l.Since); d >= 0 { // the clock may have been set back
		s += fmt.Sprintf(" (%s)", age(d.Round(time.Second)))
	}
	if l.Gone {
		s += fmt.Sprintf(", which is gone; held on by pid %s, which inherited it",
			strings.Trim(fmt.Sprint(l.Holding), "[]"))
	}
	return s
}

func (l *Lessee) covers(pid int) bool { return l.PID == pid || slices.Contains(l.Holding, pid) }

func (l *Lessee) write(f *os.File) error {
	line, err := json.Marshal(l)
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(append(line, '\n'), 0)
	}
	if err != nil {
		return fmt.Errorf("gpuwait: lock file: %w", err)
	}
	return nil
}

// leaseFolder returns the folder of the lock files, and makes it when create is set. Otherwise it
// returns "" when the folder does not exist.
func leaseFolder(dir string, create bool) (string, error) {
	if dir == "" {
		dir = os.Getenv(leaseDirEnv)
	}
	if dir == "" {
		if run := os.Getenv("XDG_RUNTIME_DIR"); run != "" {
			dir = filepath.Join(run, "gpuwait")
		} else {
			dir = filepath.Join(os.TempDir(), "gpuwait-"+strconv.Itoa(os.Getuid()))
		}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("gpuwait: lease folder: %w", err)
	}
	if create {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", fmt.Errorf("gpuwait: lease folder: %w (another: %s)", err, leaseDirEnv)
		}
	}
	switch err := ownFolder(dir); {
	case errors.Is(err, os.ErrNotExist) && !create:
		return "", nil
	case err != nil:
		return "", fmt.Errorf("gpuwait: lease folder: %w (another: %s)", err, leaseDirEnv)
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real // as /proc names it
	}
	return dir, nil
}

func gatePath(dir string) string { return filepath.Join(dir, "gate") }

const lockSuffix = ".lock"

func lockPath(dir, uuid string) (string, error) {
	foreign := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-.:_", r)
	}
	if strings.ContainsFunc(uuid, foreign) || strings.Trim(uuid, ".") == "" {
		return "", fmt.Errorf("gpuwait: %w: %q cannot be a UUID", ErrBadSelector, uuid)
	}
	return filepath.Join(dir, uuid+lockSuffix), nil
}

func trimLock(path string) string { return strings.TrimSuffix(path, lockSuffix) }

// leaseOn returns the holder of a device's lease, nil when it has none.
func leaseOn(dir, uuid string) (*Lessee, error) {
	dir, err := leaseFolder(dir, false)
	if err != nil || dir == "" {
		return nil, err
	}
	path, err := lockPath(dir, uuid)
	if err != nil {
		return nil, err
	}
	if free, err := isFree(dir, path); free || err != nil {
		return nil, err
	}
	l := readLessee(path)
	if st, ok := procfs.StatOf(l.PID); l.PID != 0 && (!ok || st.Dead() || st.Start != l.Start) {
		l.Holding = opened(path)
		l.Gone = len(l.Holding) > 0
	}
	return l, nil
}

// readLessee reads the line of a lock file; it returns the zero Lessee when there is none yet.
func readLessee(path string) *Lessee {
	var l Lessee
	if err := json.Unmarshal([]byte(readAll(path)), &l); err != nil {
		return &Lessee{}
	}
	return &l
}

// opened lists the processes that have a file open.
func opened(path string) []int {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	var pids []int
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || target != path {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
		if err == nil && (len(pids) == 0 || pids[len(pids)-1] != pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}
