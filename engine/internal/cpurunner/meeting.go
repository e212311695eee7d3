package modelrunner

import (
	"slices"
	"sync"

	"github.com/enginetest/enginetest/engine/internal/cpu"
)

// meeting is the Link of CPU ranks: where they wait for each other, and see each other's memory.
type meeting struct {
	mu     sync.Mutex
	here   []bool        // ranks that wait for the others
	gate   chan struct{} // closed when all have come, or one is not coming
	broken bool

	parts [2][][]float32 // of each rank; two, because a rank may be a meeting ahead of one that still reads
}

func newMeeting(ranks int) *meeting {
	return &meeting{gate: make(chan struct{}), here: make([]bool, ranks), parts: [2][][]float32{make([][]float32, ranks), make([][]float32, ranks)}}
}

// Mend implements [Link].
func (m *meeting) Mend() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken, m.gate = false, make(chan struct{})
	clear(m.here)
}

// Break implements [Link].
func (m *meeting) Break() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.broken {
		m.broken = true
		close(m.gate)
	}
}

// Waiting says whether a rank waits for others.
func (m *meeting) Waiting(rank int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.here[rank]
}

// wait returns when all ranks are in it.
func (m *meeting) wait(rank int) error {
	m.mu.Lock()
	gate := m.gate
	if m.here[rank] = true; !m.broken && !slices.Contains(m.here, false) {
		clear(m.here)
		m.gate = make(chan struct{})
		close(gate)
	}
	m.mu.Unlock()
	<-gate
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken {
		m.here[rank] = false
		return ErrBroken
	}
	return nil
}

// allReduce gives every rank the sum of the parts of all: the same bits, because each adds them up in the order of the ranks. Turns are 0 and 1 in
// turn; a part must stay as it is until the meeting after.
func (m *meeting) allReduce(rank, turn int, p *cpu.Pool, sum, part []float32) error {
	parts := m.parts[turn]
	parts[rank] = part
	if err := m.wait(rank); err != nil {
		return err
	}
	copy(sum, parts[0])
	for _, part := range parts[1:] {
		cpu.Add(p, sum, part)
	}
	return nil
}

// gather hands the parts of all ranks to the first one, and keeps the others until it has taken them.
func (m *meeting) gather(rank int, part []float32, take func(parts [][]float32)) error {
	parts := m.parts[0]
	parts[rank] = part
	if err := m.wait(rank); err != nil {
		return err
	}
	if rank == 0 {
		take(parts)
	}
	return m.wait(rank)
}
