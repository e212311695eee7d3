// Package procfs reads what Linux says of other processes (proc(5)). Elsewhere, and of a process
// that is gone or not visible, it has nothing.
package procfs

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Read returns a file of /proc/PID, nil when it cannot be read.
func Read(pid int, name string) []byte {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), name))
	return b
}

// Stat is what /proc/PID/stat says.
type Stat struct {
	Command                string // the program's name, 15 bytes of it
	State                  byte
	Parent, Group, Session int
	Start                  int64 // in clock ticks since boot: tells a process from a later one with its number
}

// Dead is a zombie, or about to be one: it holds nothing and waits for its parent to ask.
func (s Stat) Dead() bool { return s.State == 'Z' || s.State == 'X' }

// StatOf reads it. The command, in parentheses, may hold anything: fields count from the last ")".
func StatOf(pid int) (s Stat, ok bool) {
	_, rest, ok := bytes.Cut(Read(pid, "stat"), []byte("("))
	end := bytes.LastIndexByte(rest, ')')
	if !ok || end < 0 {
		return s, false
	}
	f := strings.Fields(string(rest[end+1:]))
	if len(f) < 20 {
		return s, false
	}
	s.Command, s.State = string(rest[:end]), f[0][0]
	s.Parent, _ = strconv.Atoi(f[1])
	s.Group, _ = strconv.Atoi(f[2])
	s.Session, _ = strconv.Atoi(f[3])
	s.Start, _ = strconv.ParseInt(f[19], 10, 64)
	return s, true
}

// CommandLine is the command and its arguments, without the program's folder and what is beyond 100
// bytes; the program's name where there is none: just after a fork, and of the dead.
func CommandLine(pid int) string {
	args := strings.Split(strings.TrimRight(string(Read(pid, "cmdline")), "\x00"), "\x00")
	if args[0] == "" {
		return strings.TrimSpace(string(Read(pid, "comm")))
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

// Variable is a variable of the environment that the process was started with; the last one wins,
// as in os/exec.
func Variable(pid int, name string) (value string, ok bool) {
	for kv := range bytes.SplitSeq(Read(pid, "environ"), []byte{0}) {
		if v, found := bytes.CutPrefix(kv, []byte(name+"=")); found {
			value, ok = string(v), true
		}
	}
	return value, ok
}

// Writable reports whether a descriptor of a process was opened to write.
func Writable(pid int, fd string) bool {
	for line := range strings.Lines(string(Read(pid, filepath.Join("fdinfo", fd)))) {
		if octal, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseUint(strings.TrimSpace(octal), 8, 64)
			return err == nil && flags&3 != 0 // O_WRONLY, O_RDWR
		}
	}
	return false
}
