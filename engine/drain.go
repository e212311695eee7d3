package engine

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/enginetest/enginetest/llm"
)

// Drain refuses new work with [llm.ErrDraining] and lets the live requests finish. When ctx ends
// first, the engine aborts what is left: their outputs are what they have, their callers get
// [llm.ErrStopped]. Drain does not wait for a step that is in their way.
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

// drainer lets the requests of an engine finish.
type drainer struct {
	life *lifecycle
	box  *mailbox
	reqs *requestTable
	out  *outputProcessor

	now *drain // guarded by the lifecycle's lock; nil: none was asked for
}

// drain is one drain, from start to finish.
type drain struct {
	began time.Time
	live  int           // requests at the begin
	over  chan struct{} // closed when err is final
	err   error
}

func (d *drainer) drain(ctx context.Context) error {
	d.life.mu.Lock()
	one := d.now
	if one == nil {
		if !d.life.state.to(Draining) {
			defer d.life.mu.Unlock()
			return d.life.refusal()
		}
		one = &drain{began: time.Now(), live: len(d.reqs.live), over: make(chan struct{})}
		d.now = one
		if one.live == 0 {
			d.finish(nil)
		}
	}
	d.life.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { d.cut(context.Cause(ctx)) })
	defer stop()
	<-one.over
	return one.err
}

// cut aborts what has not finished.
func (d *drainer) cut(cause error) {
	d.life.mu.Lock()
	defer d.life.mu.Unlock()
	one := d.now
	if one.ended() {
		return
	}
	live := d.reqs.list()
	d.finish(fmt.Errorf("engine: drain: %d of %d requests aborted after %s: %w", len(live), one.live,
		time.Since(one.began).Round(time.Millisecond), cause))
	d.box.post(func() {
		for _, r := range live {
			d.out.end(r, llm.FinishAbort, fmt.Errorf("%w: the drain ended before request %s did", llm.ErrStopped, r.id))
		}
	})
}

// finish ends the drain, if there is one that goes on; the caller holds the lifecycle's lock.
func (d *drainer) finish(err error) {
	one := d.now
	if one == nil || one.ended() {
		return
	}
	detail := fmt.Sprintf("%d requests finished", one.live)
	if err != nil {
		detail = err.Error()
	}
	one.err = err
	d.life.report.Add("drain", one.began, detail)
	close(one.over)
}

func (d *drain) ended() bool {
	select {
	case <-d.over:
		return true
	default:
		return false
	}
}
