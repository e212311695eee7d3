package modelrunner

import (
	"slices"
	"sync"
)

// Barrier is a [Link] whose ranks wait for each other; it carries no data.
type Barrier struct {
	mu      sync.Mutex
	here    []bool        // ranks that wait for the others
	gate    chan struct{} // closed when all ranks have come, or the barrier is aborted
	aborted bool
}

// NewBarrier makes a barrier for the ranks of a group.
func NewBarrier(ranks int) *Barrier {
	return &Barrier{gate: make(chan struct{}), here: make([]bool, ranks)}
}

// Reset implements [Link].
func (b *Barrier) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.aborted, b.gate = false, make(chan struct{})
	clear(b.here)
}

// Abort implements [Link].
func (b *Barrier) Abort() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.aborted {
		b.aborted = true
		close(b.gate)
	}
}

// Waiting reports whether a rank waits for others.
func (b *Barrier) Waiting(rank int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.here[rank]
}

// Wait returns when every rank has called it, or with [ErrAborted].
func (b *Barrier) Wait(rank int) error {
	b.mu.Lock()
	gate := b.gate
	if b.here[rank] = true; !b.aborted && !slices.Contains(b.here, false) {
		clear(b.here)
		b.gate = make(chan struct{})
		close(gate)
	}
	b.mu.Unlock()
	<-gate
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.aborted {
		b.here[rank] = false
		return ErrAborted
	}
	return nil
}
