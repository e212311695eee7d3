package modelrunner

import (
	"sync"

	"github.com/enginetest/enginetest/internal/cpu"
)

// meeting is the Link of CPU ranks: where they wait for each other, and see each other's memory.
type meeting struct {
	mu      sync.Mutex
	arrived int
	gate    chan struct{} // closed when all have come, or one is not coming
	broken  bool

	ranks int
	parts [2][][]float32 // of each rank; two, because a rank may be a meeting ahead of one that still reads
}

func newMeeting(ranks int) *meeting {
	return &meeting{gate: make(chan struct{}), ranks: ranks, parts: [2][][]float32{make([][]float32, ranks), make([][]float32, ranks)}}
}

// Mend implements [Link].
func (m *meeting) Mend() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.arrived, m.broken, m.gate = 0, false, make(chan struct{})
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

// wait returns when all ranks are in it.
func (m *meeting) wait() error {
	m.mu.Lock()
	gate := m.gate
	if m.arrived++; !m.broken && m.arrived == m.ranks {
		m.arrived, m.gate = 0, make(chan struct{})
		close(gate)
	}
	m.mu.Unlock()
	<-gate
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken {
		return ErrBroken
	}
	return nil
}

// allReduce gives every rank the sum of the parts of all: the same bits, because each adds them up in the order of the ranks. Turns are 0 and 1 in
// turn; a part must stay as it is until the meeting after.
func (m *meeting) allReduce(rank, turn int, p *cpu.Pool, sum, part []float32) error {
	parts := m.parts[turn]
	parts[rank] = part
	if err := m.wait(); err != nil {
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
	if err := m.wait(); err != nil {
		return err
	}
	if rank == 0 {
		take(parts)
	}
	return m.wait()
}
