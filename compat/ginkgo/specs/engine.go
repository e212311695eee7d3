// Package specs is a Ginkgo suite that uses leakcheck. The first word of a spec's text is its verdict.
package specs

// Engine stands for an engine that a spec loads.
type Engine struct {
	weights []byte
	stop    chan bool
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

// Close stops it.
func (e *Engine) Close() { close(e.stop) }

// Use keeps the compiler from dropping an engine early.
//
//go:noinline
func (e *Engine) Use() int { return len(e.weights) }

var kept []*Engine

// Keep is the leak: a registry that no one clears.
func Keep(e *Engine) { kept = append(kept, e) }
