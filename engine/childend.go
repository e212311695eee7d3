package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/enginetest/enginetest/engine/internal/connector"
	"github.com/enginetest/enginetest/internal/proc"
	"github.com/enginetest/enginetest/llm"
)

// The budgets of a child core's shutdown when the context leaves room for all of them; else they
// shrink together.
const (
	releaseBudget = 30 * time.Second       // until the core says that it has given everything back
	exitBudget    = 5 * time.Second        // until its process ends by itself
	termBudget    = 5 * time.Second        // after SIGTERM, for the stacks of what hangs
	reapBudget    = 2 * time.Second        // after SIGKILL
	twoWitnesses  = time.Second            // a process and its link end together, or are ended
	lastWords     = 200 * time.Millisecond // for the rest of the log, when the process is gone
)

// waitProcess waits for the end of the process and tells everybody.
func (c *child) waitProcess() {
	defer close(c.dead)
	select {
	case <-c.proc.Done():
	case <-c.silent:
		if !c.stopping() {
			select {
			case <-c.proc.Done():
			case <-time.After(twoWitnesses):
				_ = c.proc.Signal(syscall.SIGKILL) // without a link it is of no use
			}
		}
		<-c.proc.Done()
	}
	select {
	case <-c.silent:
	case <-time.After(twoWitnesses): // something else holds its socket
		_ = c.link.Close()
		<-c.silent
	}
	c.tail.finish(lastWords)
	c.mu.Lock()
	c.ended = fmt.Sprintf("core process %d %s", c.proc.Leader(), c.howEnded())
	surprise := !c.expected && c.cause == nil
	if surprise {
		c.cause = fmt.Errorf("%s%s", c.ended, c.tail.quote())
		c.state.to(Failed)
	}
	left, err, model := c.requests, c.state.refusal(c.cause), c.cfg.Model
	c.requests = map[uint64]*request{}
	c.stats.over()
	for _, r := range left {
		r.out, r.err = r.lost(), err
		if r.id != "" { // else it had not been started
			c.stats.Errored++
		}
	}
	c.mu.Unlock()
	if surprise {
		c.log.Error("engine failed", "model", model, "error", c.cause)
	}
	for _, r := range left {
		close(r.done)
	}
	c.ending.Do(func() { close(c.done) })
}

func (c *child) stopping() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state == ShuttingDown
}

// howEnded puts the end of the process into words.
func (c *child) howEnded() string {
	e, _ := c.proc.Exit()
	return e.String()
}

func (c *child) succeeded() bool {
	e, ok := c.proc.Exit()
	return ok && e == proc.Exit{At: e.At}
}

// giveUp ends a core whose Open failed; it may end by itself in the grace.
func (c *child) giveUp(grace time.Duration) error {
	c.mu.Lock()
	c.state.to(ShuttingDown)
	c.expected = true
	c.mu.Unlock()
	_ = c.link.Close()
	if !within(c.dead, grace) {
		_ = c.proc.Signal(syscall.SIGKILL)
		<-c.dead
	}
	return c.sweep()
}

// askForStacks ends a core that hangs while it loads, and returns what it prints then: what its
// goroutines do.
func (c *child) askForStacks() error {
	c.mu.Lock()
	c.expected = true
	c.mu.Unlock()
	if c.proc.Signal(syscall.SIGTERM) != nil || !within(c.dead, twoWitnesses) {
		return nil // it is stopped
	}
	return fmt.Errorf("engine: %s, told to show where it hangs%s", c.ended, c.tail.quote())
}

// within waits for something to happen.
func within(happened <-chan struct{}, limit time.Duration) bool {
	select {
	case <-happened:
		return true
	case <-time.After(limit):
		return false
	}
}

func (c *child) shutdown(ctx context.Context) error {
	c.mu.Lock()
	if c.state.to(ShuttingDown) {
		go c.end(ctx)
	}
	c.mu.Unlock()
	select {
	case <-c.stopped:
		return c.result
	case <-ctx.Done():
	}
	if within(c.stopped, reapBudget) { // the core is being killed
		return c.result
	}
	return &ShutdownTimeoutError{
		Phase: fmt.Sprintf("the end of core process %d", c.proc.Leader()), Running: reapBudget,
		Cause: ctx.Err(),
	}
}

// end ends the core by the gentlest means that works, within the context.
func (c *child) end(ctx context.Context) {
	scale := 1.0
	if deadline, ok := ctx.Deadline(); ok {
		scale = min(1, float64(time.Until(deadline))/float64(releaseBudget+exitBudget+termBudget+reapBudget))
	}
	budget := func(d time.Duration) time.Duration { return time.Duration(float64(d) * scale) }
	c.mu.Lock()
	ended := c.ended != ""
	c.mu.Unlock()
	var err error
	if ended {
		<-c.dead
	} else {
		err = c.endGently(ctx, budget)
	}
	if !c.gone() {
		err = errors.Join(err, c.endByForce(ctx, budget(termBudget)))
	}
	began := time.Now()
	if swept := c.sweep(); swept != nil {
		err = errors.Join(err, swept)
	}
	c.mu.Lock()
	c.report.Add("reap", began, c.ended)
	c.result = err
	c.held = nil
	c.state.to(Stopped)
	c.mu.Unlock()
	c.entry.Close()
	c.ending.Do(func() { close(c.done) })
	close(c.stopped)
}

// endGently has the core shut itself down and waits for its end.
func (c *child) endGently(ctx context.Context, budget func(time.Duration) time.Duration) error {
	began := time.Now()
	inner, cancel := context.WithTimeout(ctx, budget(releaseBudget))
	defer cancel()
	out, err := call[closed](inner, c, "shutdown", none{})
	if err != nil {
		detail, _, _ := strings.Cut(err.Error(), "\n")
		c.phase("abort", began, detail)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.ended != "" && c.expected {
			return fmt.Errorf("engine: shutdown: %s%s", c.ended, c.tail.quote())
		}
		return nil // it had died before, or the next means will say what is wrong
	}
	c.mu.Lock()
	c.report.Phases = append(c.report.Phases, out.Report.Phases...)
	c.faults, c.stats = out.Faults, out.Stats
	if out.Failed != nil && c.cause == nil {
		c.cause = out.Failed.unpack()
	}
	c.mu.Unlock()
	err = out.Err.unpack()
	if _, ok := errors.AsType[*ShutdownTimeoutError](err); ok {
		c.phase("release", began, err.Error())
		return nil // the next means will say where it hangs
	}
	began = time.Now()
	_ = c.link.Close() // which ends it
	if !waitFor(ctx, c.dead, budget(exitBudget)) {
		c.phase("exit", began, "it did not")
		return err
	}
	c.phase("exit", began, c.howEnded())
	if !c.succeeded() {
		err = errors.Join(err, fmt.Errorf("engine: shutdown: %s%s", c.ended, c.tail.quote()))
	}
	return err
}

// endByForce sends SIGTERM, upon which the core prints what hangs, and then SIGKILL.
func (c *child) endByForce(ctx context.Context, grace time.Duration) error {
	began := time.Now()
	c.mu.Lock()
	c.expected = true
	c.mu.Unlock()
	_ = c.proc.Signal(syscall.SIGTERM)
	how, over := "SIGTERM", waitFor(ctx, c.dead, grace)
	if over {
		c.phase(how, began, c.howEnded())
	} else {
		c.phase(how, began, "no reaction")
		began = time.Now()
		how = "SIGKILL"
		_ = c.proc.Signal(syscall.SIGKILL)
		<-c.dead
		c.phase(how, began, c.howEnded())
	}
	if c.succeeded() {
		return nil // it was about to end by itself
	}
	return fmt.Errorf("%w: %s ended it, because it did not shut down by itself:\n%s%s", llm.ErrKilled, how,
		strings.TrimRight(c.shutdownReport().String(), "\n"), c.tail.quote())
}

// waitFor waits for something to happen, until the limit or the end of the context.
func waitFor(ctx context.Context, happened <-chan struct{}, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-happened:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *child) phase(name string, began time.Time, detail string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Add(name, began, detail)
}

// sweep ends what the dead core's process left behind, and lets go of what Start took.
func (c *child) sweep() error {
	_ = c.link.Close()
	var errs []error
	for _, o := range c.proc.Stop(context.Background(), proc.StopOptions{Settle: lastWords}).Orphans {
		if o.Fate != proc.FateEnded {
			errs = append(errs, fmt.Errorf("engine: the core left %v behind, %s now", o.Process, o.Fate))
		}
	}
	if path := c.cfg.Connector.Path; path != "" { // a core that was killed could not
		errs = append(errs, connector.Remove(path))
	}
	return errors.Join(errs...)
}
