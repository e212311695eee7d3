package harness

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// start calls open under the start timeout, and within the time that the test has for it. A call
// that goes on after that is left behind.
func (f *Fixture) start(ctx context.Context, open func(context.Context) (Engine, error)) (err error) {
	limit := f.opts.start
	cause := fmt.Errorf("start timeout of %s reached; %s.StartTimeout sets it", limit, f.opts.pkg)
	if !f.opts.startBy.IsZero() && time.Until(f.opts.startBy) < limit {
		limit, cause = time.Until(f.opts.startBy), errDeadline
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, cause)
	defer cancel()
	defer func() {
		if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", err, cause)
		}
	}()
	defer recovered("open", &err)
	l := &launch{open: open}
	run := func() { l.run(ctx) }
	if !f.host.alone() || !f.sole() { // then the thread tells whose a child is
		run = func() { f.evidence.forks.During(func() { l.run(ctx) }) }
	}
	if stuck := within(ctx, func() { f.scope.Do(run) }); stuck != nil && l.abandon() {
		return stuck.of(ctx, "open")
	}
	if f.engine = l.engine; f.engine != nil {
		f.watch(f.engine)
	}
	return l.err
}

// launch is a call of open. One that was left behind may return an engine later: that is shut down.
type launch struct {
	open func(context.Context) (Engine, error)

	mu             sync.Mutex
	ended, tooLate bool
	engine         Engine
	err            error
}

func (l *launch) run(ctx context.Context) {
	e, err := l.open(ctx)
	l.mu.Lock()
	l.ended = true
	tooLate := l.tooLate
	if !tooLate {
		l.engine, l.err = e, err
	}
	l.mu.Unlock()
	if tooLate && e != nil {
		_ = e.Shutdown(context.WithoutCancel(ctx)) // no one is left to hear of it
	}
}

// abandon gives the call up, and reports whether it was still running.
func (l *launch) abandon() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tooLate = true
	return !l.ended
}
