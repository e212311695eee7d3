package forkproc

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/enginetest/enginetest/internal/repro"
	"github.com/enginetest/enginetest/verdict"
)

func (c *child) outcome() Outcome {
	f := &c.facts
	o := Outcome{
		ExitCode: f.exitCode, Signal: f.signal, Phase: f.phase(), Tests: c.replay.tests, PID: c.pid,
		Tail: strings.Join(c.replay.tail, "\n"),
	}
	f.limit = c.limits.child.Round(time.Millisecond)
	v := f.judge()
	if o.Status, o.Reason, o.Note = v.status, v.reason, v.note; o.Status != StatusPassed && o.Status != StatusSkipped {
		o.During = f.running
	}
	if o.Status == StatusPanicked {
		o.Crash = f.panicLine
	}
	return o
}

func (c *child) notStarted(err error) Outcome {
	c.facts.startErr = err
	c.facts.exitCode = -1
	o := c.outcome()
	o.Duration = time.Since(c.start)
	return o
}

// report returns the parent's test the result.
func (c *child) report(o *Outcome) {
	t := c.t
	t.Helper()
	t.Attr("forkproc.status", string(o.Status))
	if e := c.cfg.expect; e != nil {
		if !e.met(o) {
			verdict.Record(t, verdict.Verdict{Class: verdict.ClassTest, Source: "forkproc", Message: o.Reason})
			t.Errorf("%s\n    expected: %s", c.message(o), e)
		} else {
			t.Logf("%s, as expected", c.headline(o))
		}
	} else if o.Status != StatusPassed && o.Status != StatusSkipped {
		verdict.Record(t, o.Verdicts()...)
		t.Error(c.message(o))
	}
	if len(o.Unattributed) > 0 {
		t.Logf("forkproc: %s: new while the child ran:\n    %s", c.name, list(o.Unattributed))
	}
	if len(o.Leftovers) > 0 && !c.cfg.keepQuiet {
		verdict.Record(t, o.leftovers()...)
		t.Error(c.leftBehind(o))
	}
	switch {
	case t.Failed():
		t.FailNow()
	case o.Status == StatusSkipped:
		t.SkipNow()
	}
}

// headline says who ended how.
func (c *child) headline(o *Outcome) string {
	if o.Status == StatusNotStarted && o.PID == 0 {
		return fmt.Sprintf("forkproc: %s: child %s", c.name, o.Reason)
	}
	return fmt.Sprintf("forkproc: %s: child (pid %d, %v) %s", c.name, o.PID, o.Duration.Round(time.Millisecond),
		o.Reason)
}

// message is the headline, what is behind it, and how to see it again.
func (c *child) message(o *Outcome) string {
	msg := c.headline(o)
	if o.Note != "" {
		msg += "\n    " + o.Note
	}
	return msg + "\n    to repeat: " + command(c.name)
}

func (c *child) leftBehind(o *Outcome) string {
	msg := fmt.Sprintf("forkproc: %s: child (pid %d, %s) left behind:\n    %s\n    to accept: forkproc.Accept(%s)",
		c.name, o.PID, o.Status, list(o.Leftovers), strings.Join(c.acceptable, ", "))
	if c.t != nil {
		msg += "\n    to repeat: " + command(c.name)
	}
	return msg
}

func list(leftovers []Leftover) string {
	lines := make([]string, len(leftovers))
	for i, l := range leftovers {
		lines[i] = l.Text
	}
	return strings.Join(lines, "\n    ")
}

func command(test string) string { return repro.Command(cmp.Or(repro.Package(), "."), test) }

// runInline runs the body in this process.
func runInline(t *testing.T, body func(*testing.T), cfg *config, why string) result {
	t.Helper()
	if cfg.expect != nil {
		t.Skipf("forkproc: %s, so there is no child that could end as expected (%s)", why, cfg.expect)
	}
	t.Logf("forkproc: %s: the body runs in this process, without isolation", why)
	start := time.Now()
	body(t)
	o := Outcome{
		Status: StatusPassed, Reason: "passed", Phase: phaseInline, PID: os.Getpid(),
		Duration: time.Since(start),
	}
	if t.Failed() {
		o.Status, o.Reason, o.ExitCode = StatusFailed, "failed", 1
	}
	remember(t, result{o, nil})
	return result{o, nil}
}

// inline says why the body should run in this process, if it should.
func inline() string {
	if os.Getenv(envMode) == "inline" {
		return envMode + "=inline"
	}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if pid, ok := strings.CutPrefix(line, "TracerPid:"); ok {
			if n, _ := strconv.Atoi(strings.TrimSpace(pid)); n != 0 {
				return fmt.Sprintf("a debugger (pid %d) is attached", n)
			}
		}
	}
	return ""
}

// moveContent moves what the child put in its artifact folder to the one of the parent's test.
func moveContent(from, to string) {
	entries, err := os.ReadDir(from)
	if err != nil {
		return
	}
	for _, e := range entries {
		_ = os.Rename(filepath.Join(from, e.Name()), filepath.Join(to, e.Name()))
	}
	_ = os.Remove(from) // stays when something in it could not be moved
}
