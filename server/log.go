package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// Line is a line that a server printed.
type Line struct {
	After time.Duration // since the server was started
	Text  string        // masked
}

func (l Line) String() string { return fmt.Sprintf("%8s  %s", round(l.After), l.Text) }

const maxLine = 8 << 10 // longer lines are cut in pieces

// logbook keeps what a server prints: the last lines stay in memory, all of it goes to a file and a
// writer when there are any.
type logbook struct {
	started time.Time
	mask    *strings.Replacer
	path    string // of the file with the whole log; "" when there is none

	mu     sync.Mutex
	rest   []byte // an incomplete line
	ring   []Line
	last   time.Time
	file   *os.File
	out    io.Writer
	failed error         // of the file
	more   chan struct{} // closed with each line
}

func newLogbook(cfg *config, mask *strings.Replacer) (*logbook, error) {
	l := &logbook{started: time.Now(), mask: mask, out: cfg.log, more: make(chan struct{})}
	if cfg.logDir == "" {
		return l, nil
	}
	var err error
	if l.file, err = os.CreateTemp(cfg.logDir, "server-"+base(cfg.name)+"-*.log"); err != nil {
		return nil, fmt.Errorf("server: log: %w", err)
	}
	l.path = l.file.Name()
	return l, nil
}

// Write takes what the server printed.
func (l *logbook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest[:0], l.split(append(l.rest, b...))...)
	return len(b), nil
}

// split adds the complete lines of b and returns the rest. A carriage return ends a line too: a
// progress bar prints no other.
func (l *logbook) split(b []byte) []byte {
	for {
		i := bytes.IndexAny(b, "\r\n")
		if i < 0 && len(b) < maxLine {
			return b
		}
		if i < 0 {
			i = maxLine - 1
			l.add(b[:i])
			b = b[i:]
			continue
		}
		if i > 0 {
			l.add(b[:min(i, maxLine)])
		}
		b = b[i+1:]
	}
}

func (l *logbook) add(text []byte) {
	now := time.Now()
	line := Line{now.Sub(l.started), l.mask.Replace(strings.ToValidUTF8(string(text), "�"))}
	l.ring = append(l.ring, line)
	if len(l.ring) > 2*ringLines {
		l.ring = append([]Line(nil), l.ring[ringLines:]...)
	}
	l.last = now
	if l.file != nil {
		_, err := fmt.Fprintln(l.file, line)
		l.failed = errors.Join(l.failed, err)
	}
	if l.out != nil {
		_, _ = fmt.Fprintln(l.out, line)
	}
	close(l.more)
	l.more = make(chan struct{})
}

// tail returns the last n lines.
func (l *logbook) tail(n int) []Line {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Line(nil), l.ring[max(0, len(l.ring)-n):]...)
}

// next returns a channel that is closed when there is another line.
func (l *logbook) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.more
}

// silent is how long nothing has been printed.
func (l *logbook) silent() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.IsZero() {
		return time.Since(l.started)
	}
	return time.Since(l.last)
}

// flush adds a last line that had no end.
func (l *logbook) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.rest) > 0 {
		l.add(l.rest)
		l.rest = nil
	}
}

// close closes the file; what is printed later stays in memory only.
func (l *logbook) close() error {
	l.flush()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out = nil
	if l.file == nil {
		return nil
	}
	err := errors.Join(l.failed, l.file.Close())
	l.file = nil
	return err
}
