package forkproc

import (
	"bufio"
	"context"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/enginetest/enginetest/internal/proc"
)

// watch sees the child to its end, within its limits, and ends what it leaves running. It returns
// when both pipes are read.
func (c *child) watch(ctx context.Context, f *proc.Family, hello <-chan int, out, notes *os.File, outRead,
	notesRead <-chan struct{},
) []proc.Process {
	quit, kill, giveUp := after(c.limits.quit), after(c.limits.kill), after(c.limits.giveUp)
	limit, canceled := c.limits.grace, ctx.Done()
	for alive := true; alive; {
		select {
		case <-f.Done():
			alive = false
		case c.pid = <-hello:
		case <-quit:
			c.facts.quit = true
			c.askForStacks(f)
		case <-canceled:
			canceled = nil
			c.facts.canceled = context.Cause(ctx)
			f.Kill()
		case <-kill:
			c.facts.killed = true
			f.Kill()
		case <-giveUp:
			c.facts.stuck = true
			alive = false
			limit = 0
		}
	}
	c.witness.look() // while those that outlive the child are there
	settle := min(c.cfg.waitDelay, c.limits.grace)
	report := f.Stop(context.Background(), proc.StopOptions{
		Signal: syscall.SIGKILL, Settle: settle,
		Limit: max(limit, minGrace/4),
	})
	for _, pipe := range []struct {
		r    *os.File
		read <-chan struct{}
	}{{out, outRead}, {notes, notesRead}} {
		if !soon(pipe.read, minGrace) { // a process that is none of the family has it
			_ = pipe.r.SetReadDeadline(time.Now())
			<-pipe.read
		}
	}
	return survivors(report)
}

// survivors are the processes that outlived the child and the time that it leaves them.
func survivors(r proc.StopReport) (left []proc.Process) {
	for _, o := range r.Orphans {
		if o.Fate == proc.FateKilled || o.Fate == proc.FateLeft {
			left = append(left, o.Process)
		}
	}
	return left
}

// askForStacks sends SIGQUIT to the test binary, which may run under a wrapper that would not
// survive the signal.
func (c *child) askForStacks(f *proc.Family) {
	if c.pid == f.Leader() {
		_ = f.Signal(syscall.SIGQUIT)
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
		case "made":
			pid, path, _ := strings.Cut(rest, " ")
			n, _ := strconv.Atoi(pid)
			if path, err := strconv.Unquote(path); err == nil {
				c.witness.heard(path, n)
			}
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

func (f *facts) setExit(e proc.Exit, ok bool) {
	f.exitCode = -1
	if ok {
		f.exitCode, f.signal, f.oom = e.Code, e.Signal, e.OOM
	}
}
