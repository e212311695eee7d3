package engine

import (
	"fmt"
	"time"

	"github.com/enginetest/enginetest/internal/alarm"
)

// watchdog fails an engine whose step does not end: callers are told while the loop still hangs.
// The zero value watches nothing.
type watchdog struct {
	timer *alarm.Alarm
	began time.Time // of the step; zero between steps; guarded by core.mu
	fired error
}

// watch begins a step; the returned function ends it, and returns the error when it lasted too
// long: its results are discarded.
func (c *core) watch(step int64) (end func() error) {
	limit := c.cfg.StepTimeout
	if limit == 0 {
		return func() error { return nil }
	}
	w := &c.watchdog
	c.mu.Lock()
	w.began = time.Now()
	c.mu.Unlock()
	w.timer = alarm.After(limit, func() { c.hung(step, limit) })
	return func() error {
		w.timer.Stop()
		c.mu.Lock()
		defer c.mu.Unlock()
		w.began = time.Time{}
		return w.fired
	}
}

// hung is the timer's: it touches nothing that the loop owns.
func (c *core) hung(step int64, limit time.Duration) {
	c.mu.Lock()
	w := &c.watchdog
	if w.began.IsZero() || time.Since(w.began) < limit { // the step has ended meanwhile
		c.mu.Unlock()
		return
	}
	w.fired = fmt.Errorf("step %d hangs: %s has been running for %s; Config.StepTimeout is %s",
		step, c.current(), time.Since(c.since).Round(time.Millisecond), limit)
	c.cause = w.fired
	c.state.to(Failed)
	c.drained(dead(w.fired))
	c.mu.Unlock()
	c.log.Error("engine failed", "model", c.cfg.Model, "error", w.fired)
	c.ending.Do(func() { close(c.done) })
}
