package cpurunner

import (
	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
)

// link is the modelrunner.Link of CPU ranks: a barrier, and a view of each other's memory.
type link struct {
	*modelrunner.Barrier
	parts [2][][]float32 // of each rank; two, because a rank may be a turn ahead of one that still reads
}

func newLink(ranks int) *link {
	return &link{
		Barrier: modelrunner.NewBarrier(ranks),
		parts:   [2][][]float32{make([][]float32, ranks), make([][]float32, ranks)},
	}
}

// allReduce sets sum, on every rank, to the sum of the parts of all ranks. The bits are the same
// everywhere, because each rank adds the parts in rank order. Turns alternate between 0 and 1; a
// part must not change until the call after the next.
func (l *link) allReduce(rank, turn int, p *cpu.Pool, sum, part []float32) error {
	parts := l.parts[turn]
	parts[rank] = part
	if err := l.Wait(rank); err != nil {
		return err
	}
	copy(sum, parts[0])
	for _, part := range parts[1:] {
		cpu.Add(p, sum, part)
	}
	return nil
}

// gather passes the parts of all ranks to take on rank 0; the other ranks wait until it returns.
func (l *link) gather(rank int, part []float32, take func(parts [][]float32)) error {
	parts := l.parts[0]
	parts[rank] = part
	if err := l.Wait(rank); err != nil {
		return err
	}
	if rank == 0 {
		take(parts)
	}
	return l.Wait(rank)
}
