package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// Shutdown ends the engine: running requests end with FinishAbort, their callers get
// [llm.ErrStopped], and everything that the engine holds is given back, whatever fails on the way.
// It works in every state, and every call gives the same result. To let running requests finish,
// call [Engine.Drain] before. An engine that is still loading is ended by the context of Open.
//
// Errors: what a release step said, and [*LeakError] when device memory is left. When ctx ends
// first, [*ShutdownTimeoutError] names what is still running; the shutdown goes on, and another
// call waits for it again. The core of a [ChildProcess] engine is killed instead, within the
// context: then the error is [llm.ErrKilled], with what it was doing.
func (e *Engine) Shutdown(ctx context.Context) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	err := e.b.shutdown(ctx)
	if _, ok := errors.AsType[*ShutdownTimeoutError](err); !ok {
		e.dropped.Stop()
	}
	runtime.KeepAlive(e)
	return err
}

func (c *core) shutdown(ctx context.Context) error {
	c.mu.Lock()
	if c.state.to(ShuttingDown) {
		c.faults.hangUntil(ctx)
		c.ordered = time.Now()
	}
	c.mu.Unlock()
	c.cancel()
	select {
	case <-c.stopped:
	default:
		select {
		case <-c.stopped:
		case <-ctx.Done():
			return c.late(ctx.Err())
		}
	}
	return c.result
}

// late says what the engine is doing instead of being stopped.
func (c *core) late(cause error) error {
	_, where, since := c.loop.phase.now()
	return &ShutdownTimeoutError{Phase: where, Running: time.Since(since), Cause: cause}
}

// release ends all requests, releases everything, and checks that nothing is left. It runs last
// in the loop, or in an Open that failed.
func (c *core) release() {
	c.mu.Lock()
	if c.state.to(ShuttingDown) { // an Open that failed
		c.ordered = time.Now()
	}
	live := len(c.loop.reqs.live)
	c.mu.Unlock()
	c.cancel()
	c.loop.endAll(llm.FinishAbort, llm.ErrStopped)
	c.phaseOver("abort", c.ordered, fmt.Sprintf("%d requests ended", live))
	c.loop.phase.enter("release of the model runner")
	held, began := ledger.ByDevice(c.ledger.Holdings()), time.Now()
	err := errors.Join(c.offload.close(), c.loop.closeRunner())
	err = errors.Join(err, c.inputProcessor.grammars.drop(true))
	if left := c.ledger.Holdings(); len(left) > 0 {
		err = errors.Join(err, &LeakError{Holdings: left})
	}
	c.phaseOver("release", began, givenBack(held, ledger.ByDevice(c.ledger.Holdings())))
	c.mu.Lock()
	c.offload.tier, c.offload.connect, c.tok = nil, nil, nil
	c.loop.forgetRunner()
	c.result = err
	c.state.to(Stopped)
	c.mu.Unlock()
	c.entry.Close()
	c.faults.hangUntil(c.ctx) // the caller's context is not ours to keep
	close(c.stopped)
}

// givenBack is "13.5 MiB of 13.5 MiB given back", and of several devices how much each: "(cpu:0 6.8
// MiB of 6.8 MiB, cpu:1 0 B of 6.7 MiB)".
func givenBack(before, after map[string]int64) string {
	var had, left int64
	var each []string
	for _, device := range slices.Sorted(maps.Keys(before)) {
		b, a := before[device], after[device]
		had, left = had+b, left+a
		each = append(each, fmt.Sprintf("%s %s of %s", device, ledger.FormatBytes(b-a), ledger.FormatBytes(b)))
	}
	s := fmt.Sprintf("%s of %s given back", ledger.FormatBytes(had-left), ledger.FormatBytes(had))
	if len(each) > 1 {
		s += " (" + strings.Join(each, ", ") + ")"
	}
	return s
}

// reportDropped says that no one can shut this engine down any more.
func (c *core) reportDropped() {
	c.mu.Lock()
	state := c.state
	c.mu.Unlock()
	if state == Stopped {
		return
	}
	held := c.ledger.Holdings()
	var sum int64
	for _, h := range held {
		sum += h.Bytes
	}
	c.log.Error("engine dropped without Shutdown: it keeps its memory until the process ends",
		"model", c.cfg.Model, "state", state.String(), "held", ledger.FormatBytes(sum), "opened_at", c.openedAt)
}

// callers returns the stack above, innermost first, one frame in a line.
func callers(skip int) string {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(skip, pcs)])
	var b strings.Builder
	for {
		f, more := frames.Next()
		if f.Function == "" || strings.HasPrefix(f.Function, "runtime.") {
			break
		}
		fmt.Fprintf(&b, "%s %s:%d\n", f.Function, f.File, f.Line)
		if !more {
			break
		}
	}
	return strings.TrimSpace(b.String())
}

var _ ledger.Reporter = (*Engine)(nil)
