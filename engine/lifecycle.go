package engine

import (
	"sync"
	"time"

	"github.com/enginetest/enginetest/llm"
)

// lifecycle is where an engine stands: its state, what it failed of, how it ended.
type lifecycle struct {
	done    chan struct{} // closed when the engine takes no more work, ever
	stopped chan struct{} // closed when everything has been given back
	ending  sync.Once

	mu      sync.Mutex // guards the table of requests, too: a state decides what it takes
	state   State
	cause   error     // what the engine failed of
	ordered time.Time // when it was to stop
	report  llm.ShutdownReport
	result  error // of the shutdown
}

func newLifecycle() *lifecycle {
	return &lifecycle{done: make(chan struct{}), stopped: make(chan struct{})}
}

// refusal returns why the engine takes no new work; nil when it does. The caller holds the lock.
func (l *lifecycle) refusal() error { return l.state.refusal(l.cause) }

func (l *lifecycle) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.end(l.cause, l.done)
}

// failure is what the engine failed of, if it did.
func (l *lifecycle) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// fail notes what the engine failed of. It reports whether that is news: the watchdog may have
// been first.
func (l *lifecycle) fail(cause error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause != nil {
		return false
	}
	l.cause = cause
	l.state.to(Failed) // it stays at ShuttingDown when that came first
	return true
}

func (l *lifecycle) over() <-chan struct{} { return l.done }

// end closes done.
func (l *lifecycle) end() { l.ending.Do(func() { close(l.done) }) }

func (l *lifecycle) phaseOver(name string, began time.Time, detail string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report.Add(name, began, detail)
}

func (l *lifecycle) shutdownReport() llm.ShutdownReport {
	l.mu.Lock()
	defer l.mu.Unlock()
	return llm.ShutdownReport{Phases: append([]llm.ShutdownPhase(nil), l.report.Phases...)}
}
