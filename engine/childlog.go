package engine

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// logTail keeps the end of what a process writes.
type logTail struct {
	r    *os.File
	over chan struct{}

	mu  sync.Mutex
	buf []byte
}

const (
	tailBytes = 256 << 10
	tailLines = 40
	dumpLines = 150 // of a crash, whose goroutines may all matter
)

// crashes are how the lines begin that say what a Go process died of.
var crashes = []string{"panic: ", "fatal error: ", "SIG", "WARNING: DATA RACE", "runtime: ", sigtermDump}

// follow reads a log to its end, so that its writer never blocks.
func follow(r *os.File) *logTail {
	l := &logTail{r: r, over: make(chan struct{})}
	go func() {
		defer close(l.over)
		_, _ = io.Copy(l, r)
	}()
	return l
}

func (l *logTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if len(l.buf) > 2*tailBytes {
		l.buf = append(l.buf[:0], l.buf[len(l.buf)-tailBytes:]...)
	}
	return len(p), nil
}

// finish waits for the log's end, but not for one who holds it open.
func (l *logTail) finish(grace time.Duration) {
	within(l.over, grace)
	_ = l.r.Close()
	<-l.over
}

// quote is the crash that the log ends with, or else its last lines, for the end of an error
// message; "" when there are none.
func (l *logTail) quote() string {
	l.mu.Lock()
	lines := strings.Split(strings.TrimSpace(string(l.buf)), "\n")
	l.mu.Unlock()
	if lines[0] == "" {
		return ""
	}
	head := "its log"
	if at := slices.IndexFunc(lines, isCrash); at >= 0 {
		head, lines = "its log, from the crash on", lines[at:]
		lines = lines[:min(len(lines), dumpLines)]
	} else if len(lines) > tailLines {
		head, lines = fmt.Sprintf("the last %d lines of its log", tailLines), lines[len(lines)-tailLines:]
	}
	return "; " + head + ":\n    " + strings.Join(lines, "\n    ")
}

func isCrash(line string) bool {
	return slices.ContainsFunc(crashes, func(begin string) bool { return strings.HasPrefix(line, begin) })
}
