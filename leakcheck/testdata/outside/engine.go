// Package guard uses leakcheck as the tests of another module do. The first word of a test's name is its verdict: Clean passes, Skip is
// skipped, Fail fails without a finding of leakcheck, Leak fails with one that names the global kept.
package guard

import (
	"sync"
	"time"
)

// Engine stands for an engine that a test loads.
type Engine struct {
	weights []byte
	stop    chan bool
	peer    *Engine
}

// Open starts an engine with one goroutine.
//
//go:noinline
func Open() *Engine {
	e := &Engine{weights: make([]byte, 1<<16), stop: make(chan bool)}
	stop := e.stop
	go func() { <-stop }()
	return e
}

// Close stops it. A second call has no effect.
func (e *Engine) Close() {
	if e.stop != nil {
		close(e.stop)
		e.stop = nil
	}
}

// CloseSlowly is Close of an engine that takes its time.
func (e *Engine) CloseSlowly() { time.Sleep(10 * time.Millisecond); e.Close() }

// Use keeps the compiler from dropping an engine early.
//
//go:noinline
func (e *Engine) Use() int { return len(e.weights) }

var (
	mu   sync.Mutex
	kept []*Engine
)

// Keep is the leak: a registry that no one clears.
func Keep(e *Engine) {
	mu.Lock()
	defer mu.Unlock()
	kept = append(kept, e)
}
