package engine

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/enginetest/enginetest/internal/alarm"
)

// watchdog fails an engine whose step does not end: callers are told while the loop still hangs.
type watchdog struct {
	cfg    *Config
	log    *slog.Logger
	life   *lifecycle
	phase  *phase
	drains *drainer

	timer *alarm.Alarm
	began time.Time // of the step; zero between steps; guarded by the lifecycle's lock, like fired
	fired error
}

// watch begins a step; the returned function ends it, and returns the error when it lasted too
// long: its results are discarded.
func (w *watchdog) watch(step int64) (end func() error) {
	limit := w.cfg.StepTimeout
	if limit == 0 {
		return func() error { return nil }
	}
	w.life.mu.Lock()
	w.began = time.Now()
	w.life.mu.Unlock()
	w.timer = alarm.After(limit, func() { w.hung(step, limit) })
	return func() error {
		w.timer.Stop()
		w.life.mu.Lock()
		defer w.life.mu.Unlock()
		w.began = time.Time{}
		return w.fired
	}
}

// hung is the timer's: it touches nothing that the loop owns.
func (w *watchdog) hung(step int64, limit time.Duration) {
	w.life.mu.Lock()
	if w.began.IsZero() || time.Since(w.began) < limit { // the step has ended meanwhile
		w.life.mu.Unlock()
		return
	}
	_, where, since := w.phase.now()
	w.fired = fmt.Errorf("step %d hangs: %s has been running for %s; Config.StepTimeout is %s",
		step, where, time.Since(since).Round(time.Millisecond), limit)
	w.life.cause = w.fired
	w.life.state.to(Failed)
	w.drains.finish(dead(w.fired))
	w.life.mu.Unlock()
	w.log.Error("engine failed", "model", w.cfg.Model, "error", w.fired)
	w.life.end()
}
