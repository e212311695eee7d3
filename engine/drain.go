package engine

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// Drain refuses new work with [ErrDraining] and lets the live requests finish. When ctx ends first,
// the engine aborts what is left: their outputs are what they have, their callers get [ErrStopped].
// Drain does not wait for a step that is in their way.
//
// The engine stays in Draining until Shutdown, which ends a drain at once. Every call takes part in
// the same drain and gets its result: nil when all requests finished, else how many did not, and
// why.
func (e *Engine) Drain(ctx context.Context) error {
	defer runtime.KeepAlive(e)
	if err := checkContext(ctx); err != nil {
		return err
	}
	return e.b.drain(ctx)
}

// drain is a core's drain, from start to finish.
type drain struct {
	began time.Time
	live  int           // requests at the begin
	over  chan struct{} // closed when err is final
	err   error
}

func (c *core) drain(ctx context.Context) error {
	c.mu.Lock()
	d := c.draining
	if d == nil {
		if !c.state.to(Draining) {
			defer c.mu.Unlock()
			return c.state.refusal(c.cause)
		}
		d = &drain{began: time.Now(), live: len(c.requests), over: make(chan struct{})}
		c.draining = d
		if d.live == 0 {
			c.drained(nil)
		}
	}
	c.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { c.cutDrain(context.Cause(ctx)) })
	defer stop()
	<-d.over
	return d.err
}

// cutDrain aborts what has not finished.
func (c *core) cutDrain(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.draining
	if d.ended() {
		return
	}
	var live []*request
	for _, r := range c.requests {
		live = append(live, r)
	}
	c.drained(fmt.Errorf("engine: drain: %d of %d requests aborted after %s: %w", len(live), d.live,
		time.Since(d.began).Round(time.Millisecond), cause))
	c.post(func() {
		for _, r := range live {
			c.endRequest(r, FinishAbort, fmt.Errorf("%w: the drain ended before request %s did", ErrStopped, r.id))
		}
	})
}

// drained ends the drain, if there is one that goes on; the caller holds the lock.
func (c *core) drained(err error) {
	d := c.draining
	if d == nil || d.ended() {
		return
	}
	detail := fmt.Sprintf("%d requests finished", d.live)
	if err != nil {
		detail = err.Error()
	}
	d.err = err
	c.report.Add("drain", d.began, detail)
	close(d.over)
}

func (d *drain) ended() bool {
	select {
	case <-d.over:
		return true
	default:
		return false
	}
}
