package gpuwait

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
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

// TestEnv is the environment variable in which a test's child process carries the test's name; forkproc sets it.
const TestEnv = "FORKPROC_TEST"

func (p Process) bytes() string {
	if !p.Known {
		return "n/a"
	}
	return size(p.Bytes)
}

// String gives "pid 26825  llm.test -test.run=^TestLoad$  TestLoad  started 3m0s ago  child of this process".
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

// procFS is a mounted /proc; elsewhere than on Linux it is missing, and processes are "not visible".
type procFS string

func (fs procFS) read(pid int, name string) []byte {
	b, _ := os.ReadFile(filepath.Join(string(fs), strconv.Itoa(pid), name))
	return b
}

type procStat struct {
	state   byte
	parent  int
	session int
	start   int64 // clock ticks since boot
}

// stat parses /proc/PID/stat (proc(5)); the command name may hold spaces and parentheses, so fields count from the last ")".
func (fs procFS) stat(pid int) (st procStat, ok bool) {
	_, rest, ok := bytes.Cut(fs.read(pid, "stat"), []byte("("))
	i := bytes.LastIndexByte(rest, ')')
	if !ok || i < 0 {
		return st, false
	}
	f := strings.Fields(string(rest[i+1:]))
	if len(f) < 20 {
		return st, false
	}
	st.state = f[0][0]
	st.parent, _ = strconv.Atoi(f[1])
	st.session, _ = strconv.Atoi(f[3])
	st.start, _ = strconv.ParseInt(f[19], 10, 64)
	return st, true
}

func (fs procFS) state(pid int) string {
	st, ok := fs.stat(pid)
	switch {
	case !ok:
		return notVisible
	case st.state == 'Z' || st.state == 'X':
		return exiting
	}
	return ""
}

// userHZ is the unit of times in /proc on every architecture that Go runs on.
const userHZ = 100

func (fs procFS) process(h Holder) Process {
	p := Process{Holder: h, State: fs.state(h.PID)}
	st, ok := fs.stat(h.PID)
	if !ok {
		return p
	}
	p.Command = fs.command(h.PID)
	if boot := fs.boot(); boot > 0 {
		p.Started = time.Unix(boot, 0).Add(time.Duration(st.start) * time.Second / userHZ)
	}
	for kv := range bytes.SplitSeq(fs.read(h.PID, "environ"), []byte{0}) {
		if v, ok := bytes.CutPrefix(kv, []byte(TestEnv+"=")); ok {
			p.Test = string(v)
		}
	}
	p.Relation = fs.relation(h.PID)
	if p.Relation == "" && fs.adopted(st.parent) && (p.Test != "" || st.session != h.PID) { // a service leads a session of its own
		p.Relation = "orphan"
	}
	return p
}

func (fs procFS) boot() int64 {
	b, _ := os.ReadFile(filepath.Join(string(fs), "stat"))
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "btime "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n
		}
	}
	return 0
}

// command is the command line, with the program's folder and what is beyond 100 bytes left out.
func (fs procFS) command(pid int) string {
	args := strings.Split(strings.TrimRight(string(fs.read(pid, "cmdline")), "\x00"), "\x00")
	if args[0] == "" {
		return strings.TrimSpace(string(fs.read(pid, "comm")))
	}
	args[0] = filepath.Base(args[0])
	line := strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, strings.Join(args, " "))
	if len(line) > 100 {
		line = strings.ToValidUTF8(line[:100], "") + "…"
	}
	return line
}

// adopted: the parent is a process whose business is to take orphans in.
func (fs procFS) adopted(parent int) bool {
	comm := strings.TrimSpace(string(fs.read(parent, "comm")))
	return parent == 1 || slices.Contains([]string{"systemd", "tini", "dumb-init", "docker-init", "catatonit"}, comm)
}

func (fs procFS) relation(pid int) string {
	switch {
	case pid == os.Getpid():
		return "this process"
	case fs.descends(pid, os.Getpid()):
		return "child of this process"
	case fs.descends(os.Getpid(), pid):
		return "parent of this process"
	}
	return ""
}

// descends walks up the parents of pid.
func (fs procFS) descends(pid, ancestor int) bool {
	for range 100 {
		st, ok := fs.stat(pid)
		if !ok || st.parent <= 1 {
			return false
		}
		if st.parent == ancestor {
			return true
		}
		pid = st.parent
	}
	return false
}
