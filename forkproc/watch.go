package forkproc

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/enginetest/enginetest/internal/proc"
)

// watch sees the child to its end, within its limits, and ends what it leaves running. It returns when both pipes are read.
func (c *child) watch(p *proc.Child, hello <-chan int, out, notes *os.File, outRead, notesRead <-chan struct{}) []proc.Process {
	quit, kill, giveUp := after(c.limits.quit), after(c.limits.kill), after(c.limits.giveUp)
	for alive := true; alive; {
		select {
		case <-p.Done():
			alive = false
		case c.pid = <-hello:
		case <-quit:
			c.facts.quit = true
			c.askForStacks(p)
		case <-kill:
			c.facts.killed = true
			p.Kill()
		case <-giveUp:
			c.facts.stuck = true
			alive = false
		}
	}
	survivors := p.Sweep(min(c.cfg.waitDelay, c.limits.grace))
	if !soon(outRead, c.limits.grace/2) {
		survivors = append(survivors, proc.SweepHolders(out)...)
		if !soon(outRead, minGrace) {
			_ = out.SetReadDeadline(time.Now())
			<-outRead
		}
	}
	if !soon(notesRead, minGrace) {
		_ = notes.SetReadDeadline(time.Now())
		<-notesRead
	}
	return survivors
}

// askForStacks sends SIGQUIT to the test binary, which may run under a wrapper that would not survive the signal.
func (c *child) askForStacks(p *proc.Child) {
	if c.pid == p.PID() {
		_ = p.Signal(syscall.SIGQUIT)
	} else if other, err := os.FindProcess(c.pid); err == nil {
		_ = other.Signal(syscall.SIGQUIT)
	}
}

func soon(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// readNotes reads what the child says about its own progress.
func (c *child) readNotes(r io.Reader, hello chan<- int) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "hello":
			if pid, err := strconv.Atoi(rest); err == nil && !c.facts.ready {
				hello <- pid
			}
			c.facts.ready = true
		case "begin":
			c.facts.begun = true
		case "body":
			c.facts.bodyDone = true
		case "pass":
			c.facts.bodyPass = true
		case "end":
			c.facts.ended = true
		}
	}
}

func (f *facts) setState(s *os.ProcessState) {
	f.exitCode = -1
	if s == nil {
		return
	}
	f.exitCode = s.ExitCode()
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		f.signal = ws.Signal()
	}
}
