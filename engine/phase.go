package engine

import (
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// phase is what the loop does now. Its methods are safe for concurrent use.
type phase struct {
	mu    sync.Mutex
	name  string
	since time.Time
	busy  func() []string // the devices that do not just wait for the others; nil: there is one
}

// enter says what the loop does now.
func (p *phase) enter(name string) {
	p.mu.Lock()
	p.name, p.since = name, time.Now()
	p.mu.Unlock()
}

// on sets how to find out which devices are busy.
func (p *phase) on(busy func() []string) {
	p.mu.Lock()
	p.busy = busy
	p.mu.Unlock()
}

// now returns what the loop does, as a name and with the busy devices, and since when.
func (p *phase) now() (name, where string, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	where = p.name
	if p.busy != nil {
		if busy := p.busy(); len(busy) > 0 {
			where += " on " + strings.Join(busy, ", ")
		}
	}
	return p.name, where, p.since
}

// recovered makes an error of a panic.
func (p *phase) recovered(v any) error {
	name, _, _ := p.now()
	return panicError(name, v, debug.Stack())
}

// unfinished says how far the loop has come with what it was asked for.
func (p *phase) unfinished(what string, cause error) error {
	how := "not begun"
	name, where, since := p.now()
	if name == what {
		how = "not finished"
	}
	return fmt.Errorf("engine: %s %s (%s, for %s): %w", what, how, where, time.Since(since).Round(time.Millisecond),
		cause)
}
