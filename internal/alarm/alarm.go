// Package alarm calls a function when something has taken too long.
//
// It is time.AfterFunc, but what was stopped keeps nothing: the runtime drops a stopped timer only
// when the processor that has it looks at its timers again, which an idle one does when the timer
// was due. Until then the timer's function is reachable, and everything that it captured, which in
// an engine is the engine.
package alarm

import (
	"sync/atomic"
	"time"
)

// Alarm is a call to come.
type Alarm struct {
	timer *time.Timer
	call  atomic.Pointer[func()]
}

// After calls f in a goroutine of its own when d has passed, unless it is stopped before.
func After(d time.Duration, f func()) *Alarm {
	a := &Alarm{}
	a.call.Store(&f)
	a.timer = time.AfterFunc(d, func() {
		if f := a.call.Swap(nil); f != nil {
			(*f)()
		}
	})
	return a
}

// Stop lets go of the function. It does not wait for a call that has begun.
func (a *Alarm) Stop() {
	a.call.Store(nil)
	a.timer.Stop()
}
