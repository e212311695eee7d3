// Package logbook keeps what a server prints, without its secrets.
package logbook

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Line is a line that a server printed.
type Line struct {
	After time.Duration // since the server was started
	Text  string        // masked
}

func (l Line) String() string { return fmt.Sprintf("%8s  %s", Round(l.After), l.Text) }

// Round keeps two or three digits: "1.2s", "350µs".
func Round(d time.Duration) time.Duration {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 10)
		}
	}
	return d
}

const (
	maxLine = 8 << 10 // longer lines are cut in pieces
	kept    = 200     // lines in memory, at least
)

// Book keeps what a server prints: the last lines stay in memory, all of it goes to a file and a
// writer when there are any.
type Book struct {
	started time.Time
	mask    *strings.Replacer
	path    string // of the file

	mu     sync.Mutex
	rest   []byte // an incomplete line
	ring   []Line
	last   time.Time
	file   *os.File
	out    io.Writer
	failed error         // of the file
	more   chan struct{} // closed with each line
}

// New returns a book that masks with mask, copies to out unless that is nil, and writes a file named
// after the server in dir unless that is "".
func New(name, dir string, out io.Writer, mask *strings.Replacer) (*Book, error) {
	l := &Book{started: time.Now(), mask: mask, out: out, more: make(chan struct{})}
	if dir == "" {
		return l, nil
	}
	var err error
	if l.file, err = os.CreateTemp(dir, "server-"+filepath.Base(name)+"-*.log"); err != nil {
		return nil, fmt.Errorf("server: log: %w", err)
	}
	l.path = l.file.Name()
	return l, nil
}

// Write takes what the server printed.
func (l *Book) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest[:0], l.split(append(l.rest, b...))...)
	return len(b), nil
}

// split adds the complete lines of b and returns the rest. A carriage return ends a line too: a
// progress bar prints no other.
func (l *Book) split(b []byte) []byte {
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

func (l *Book) add(text []byte) {
	now := time.Now()
	line := Line{now.Sub(l.started), l.mask.Replace(strings.ToValidUTF8(string(text), "�"))}
	l.ring = append(l.ring, line)
	if len(l.ring) > 2*kept {
		l.ring = append([]Line(nil), l.ring[kept:]...)
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

// Path returns the path of the file with the whole log; "" when there is none.
func (l *Book) Path() string { return l.path }

// Tail returns the last n lines; all that are in memory for 0, at least 200 when there were as many.
func (l *Book) Tail(n int) []Line {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n == 0 {
		n = len(l.ring)
	}
	return append([]Line(nil), l.ring[max(0, len(l.ring)-n):]...)
}

// Next returns a channel that is closed when there is another line.
func (l *Book) Next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.more
}

// Silent returns how long nothing has been printed.
func (l *Book) Silent() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.IsZero() {
		return time.Since(l.started)
	}
	return time.Since(l.last)
}

// Flush adds a last line that had no end.
func (l *Book) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.rest) > 0 {
		l.add(l.rest)
		l.rest = nil
	}
}

// Close closes the file; what is printed later stays in memory only.
func (l *Book) Close() error {
	l.Flush()
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
