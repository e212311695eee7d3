package gpuwait

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/enginetest/enginetest/internal/procfs"
)

// Process is a holder joined with what /proc says about it.
type Process struct {
	Holder
	Command  string    `json:"command,omitempty"` // its command line; "" when it is not visible from here
	Started  time.Time `json:"started,omitzero"`
	Test     string    `json:"test,omitempty"`     // the test that it runs (FORKPROC_TEST in its environment)
	State    string    `json:"state,omitempty"`    // "exiting" or "not visible"; "" when it runs
	Relation string    `json:"relation,omitempty"` // to this process: "this process", "child of this process", "orphan"
	Leased   bool      `json:"leased,omitempty"`   // covered by the device's lease
	Grew     int64     `json:"grew,omitempty"`     // bytes, since the wait began
}

// The states that matter to a wait.
const (
	exiting    = "exiting" // a zombie, or dying: it is about to let go
	notVisible = "not visible"
)

// testEnv is the environment variable in which a test's child process carries the test's name;
// forkproc sets it.
const testEnv = "FORKPROC_TEST"

func (p Process) bytes() string {
	if !p.Known {
		return "n/a"
	}
	return size(p.Bytes)
}

// String returns "pid 26825  llm.test -test.run=^TestLoad$  TestLoad  started 3m0s ago  child of
// this process".
func (p Process) String() string {
	parts := []string{fmt.Sprintf("pid %d", p.PID)}
	if p.State == notVisible {
		parts = append(parts, "(not in this PID namespace, or gone since)")
	}
	if p.Command != "" {
		parts = append(parts, p.Command)
	}
	if p.Test != "" {
		parts = append(parts, p.Test)
	}
	if !p.Started.IsZero() && p.Started.Before(time.Now()) {
		parts = append(parts, fmt.Sprintf("started %s ago", age(time.Since(p.Started).Round(time.Second))))
	}
	if p.State == exiting {
		parts = append(parts, "exiting")
	}
	switch {
	case p.Relation == "orphan" && p.Test != "":
		parts = append(parts, "← left over from a test whose process is gone")
	case p.Relation == "orphan":
		parts = append(parts, "← its parent is gone")
	case p.Relation != "":
		parts = append(parts, "← "+p.Relation)
	}
	if p.Leased {
		parts = append(parts, "(under the lease)")
	}
	return strings.Join(parts, "  ")
}

func state(pid int) string {
	st, ok := procfs.StatOf(pid)
	switch {
	case !ok:
		return notVisible
	case st.Dead():
		return exiting
	}
	return ""
}

// userHZ is the unit of times in /proc on every architecture that Go runs on.
const userHZ = 100

func process(h Holder) Process {
	p := Process{Holder: h, State: state(h.PID)}
	st, ok := procfs.StatOf(h.PID)
	if !ok {
		return p
	}
	p.Command = procfs.CommandLine(h.PID)
	if boot := bootTime(); boot > 0 {
		p.Started = time.Unix(boot, 0).Add(time.Duration(st.Start) * time.Second / userHZ)
	}
	p.Test, _ = procfs.Variable(h.PID, testEnv)
	p.Relation = relation(h.PID)
	// a service leads a session of its own
	if p.Relation == "" && adopted(st.Parent) && (p.Test != "" || st.Session != h.PID) {
		p.Relation = "orphan"
	}
	return p
}

func bootTime() int64 {
	b, _ := os.ReadFile("/proc/stat")
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "btime "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n
		}
	}
	return 0
}

// adopted: the parent is a process whose business is to take orphans in.
func adopted(parent int) bool {
	comm := strings.TrimSpace(string(procfs.Read(parent, "comm")))
	return parent == 1 || slices.Contains([]string{"systemd", "tini", "dumb-init", "docker-init", "catatonit"}, comm)
}

func relation(pid int) string {
	switch {
	case pid == os.Getpid():
		return "this process"
	case descends(pid, os.Getpid()):
		return "child of this process"
	case descends(os.Getpid(), pid):
		return "parent of this process"
	}
	return ""
}

// descends walks up the parents of pid.
func descends(pid, ancestor int) bool {
	for range 100 {
		st, ok := procfs.StatOf(pid)
		if !ok || st.Parent <= 1 {
			return false
		}
		if st.Parent == ancestor {
			return true
		}
		pid = st.Parent
	}
	return false
}
