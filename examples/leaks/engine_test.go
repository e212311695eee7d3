package leaks_test

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/enginetest/enginetest/ledger"
)

// The stand-ins below have the shape of an engine's parts, and nothing else of them.

// Model owns the weights: device memory that the ledger knows of.
type Model struct {
	name    string
	ledger  *ledger.Ledger
	weights ledger.ID
}

func load(l *ledger.Ledger, name string) *Model {
	return &Model{name: name, ledger: l, weights: l.Add(ledger.Holding{
		Owner: "weights", Kind: "plain", Device: "GPU-0",
		Bytes: 7 << 30,
	})}
}

func (m *Model) release() {
	if err := m.ledger.Remove(m.weights); err != nil {
		panic(err)
	}
}

// ModelRunner runs steps of a Model.
type ModelRunner struct{ model *Model }

// Forward is the method that gets bound.
func (r *ModelRunner) Forward(tokens []int) int { return len(r.model.name) + len(tokens) }

// A method value cannot be a key itself; a pointer to one can.
type bound struct{ call func(tokens []int) int }

var (
	supportsKwargs = map[*bound]bool{}   // wrong: the key is bound to a runner
	supportsByName = map[string]bool{}   // right: the answer depends on the method only
	_              = supportsByName["x"] // both caches outlive every engine
)

// ModelState and Speculator are helpers of a runner that point to its model.
type (
	ModelState struct{ model *Model }
	Speculator struct{ target *Model }
)

// Engine is what the user holds, before and after Shutdown.
type Engine struct {
	model *Model
	state *ModelState
	spec  *Speculator
}

func open(l *ledger.Ledger) *Engine {
	m := load(l, "llama")
	return &Engine{model: m, state: &ModelState{m}, spec: &Speculator{target: m}}
}

// shutdownModelOnly is the first fix that was tried: "del self.model".
func (e *Engine) shutdownModelOnly() { e.model = nil }

// shutdown lets go of everything that points to the model, and frees it.
func (e *Engine) shutdown() {
	e.model.release()
	e.model, e.state, e.spec = nil, nil, nil
}

// Request carries a large payload: an image, a long prompt.
type Request struct {
	id      int
	payload []byte
	hashes  []uint64
}

// PrefixCache maps blocks to what computes the hash of the next one.
type PrefixCache struct{ next map[uint64]func() uint64 }

// addClosure keeps the request: the closure needs only its hashes, but captures all of it.
func (c *PrefixCache) addClosure(r *Request) {
	c.next[r.hashes[0]] = func() uint64 { return r.hashes[len(r.hashes)-1] }
}

// addValue keeps the one number that is needed.
func (c *PrefixCache) addValue(r *Request) {
	last := r.hashes[len(r.hashes)-1]
	c.next[r.hashes[0]] = func() uint64 { return last }
}

// serve returns a function that answers four requests, each with an image of 1 MiB, and keeps their
// hashes for the next round.
//
//go:noinline
func serve(add func(*PrefixCache, *Request)) func(round int) {
	cache := &PrefixCache{next: map[uint64]func() uint64{}}
	return func(round int) {
		for i := range 4 {
			add(cache, &Request{id: i, payload: make([]byte, 1<<20), hashes: []uint64{uint64(4*round + i), 42}})
		}
	}
}

var errOutOfMemory = errors.New("out of memory")

// stepError remembers the engine "for debugging".
type stepError struct {
	engine *Engine
	cause  error
}

func (e *stepError) Error() string { return "step failed: " + e.cause.Error() }
func (e *stepError) Unwrap() error { return e.cause }

// generate fails, in the way of the bug or of its fix.
func (e *Engine) generate(keepEngine bool) error {
	if keepEngine {
		return &stepError{e, errOutOfMemory}
	}
	return fmt.Errorf("engine %q: step failed: %w", e.model.name, errOutOfMemory)
}

// results is what a client keeps of the requests that it sent.
var results []error

// ProcessGroup connects the workers of an engine: a store that listens, and a goroutine for every
// rank.
type ProcessGroup struct {
	store net.Listener
	stop  chan struct{}
	ranks sync.WaitGroup
}

func newProcessGroup(ranks int) (*ProcessGroup, error) {
	store, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := &ProcessGroup{store: store, stop: make(chan struct{})}
	for range ranks {
		g.ranks.Go(g.heartbeat)
	}
	return g, nil
}

func (g *ProcessGroup) heartbeat() { <-g.stop }

// destroy is what the engine's shutdown forgot to call.
func (g *ProcessGroup) destroy() error {
	close(g.stop)
	g.ranks.Wait()
	return g.store.Close()
}
