package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/enginetest/enginetest/report"
)

// liveOutput shows a run while it goes on: the output of failed tests, and on a terminal one line
// of progress.
type liveOutput struct {
	stdout, stderr  io.Writer
	quiet, github   bool
	terminal, drawn bool
	tests, failed   int
	start           time.Time
	last            time.Time
}

func (l *liveOutput) ended(t report.Test) {
	if l.start.IsZero() {
		l.start = time.Now()
	}
	l.tests++
	if t.Status.Failed() {
		l.failed++
		l.failure(t)
	}
	if l.terminal && time.Since(l.last) > progressEvery {
		l.last, l.drawn = time.Now(), true
		fmt.Fprintf(l.stderr, "\r\x1b[K%d tests, %d failed, %s  %s", l.tests, l.failed,
			time.Since(l.start).Round(time.Second), t.ID())
	}
}

func (l *liveOutput) failure(t report.Test) {
	if l.quiet || strings.TrimSpace(t.Output) == "" {
		return
	}
	l.clear()
	if l.github {
		fmt.Fprintf(l.stdout, "::group::FAIL %s\n%s::endgroup::\n", t.ID(), t.Output)
		return
	}
	fmt.Fprintf(l.stdout, "FAIL %s\n%s", t.ID(), t.Output)
}

// clear removes the line of progress.
func (l *liveOutput) clear() {
	if l.drawn {
		fmt.Fprint(l.stderr, "\r\x1b[K")
		l.drawn = false
	}
}
