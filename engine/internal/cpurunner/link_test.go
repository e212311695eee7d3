package cpurunner

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine/internal/cpu"
)

// eachRank calls do for every rank, each in a goroutine of its own.
func eachRank(ranks int, do func(rank int) error) error {
	errs := make([]error, ranks)
	var wg sync.WaitGroup
	for rank := range ranks {
		wg.Go(func() { errs[rank] = do(rank) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// TestAllReduce: sums are the same bits on every rank, added in the order of the ranks, over many
// turns without a pause.
func TestAllReduce(t *testing.T) {
	const ranks, rounds, n = 3, 400, 8
	m := newLink(ranks)
	values := []float32{1e8, -1e8, 1} // (1e8 - 1e8) + 1 is 1; in another order it is 0
	require.NoError(t, eachRank(ranks, func(rank int) error {
		pool, err := cpu.NewPool(1)
		if err != nil {
			return err
		}
		defer pool.Close()
		sum, parts := make([]float32, n), [2][]float32{make([]float32, n), make([]float32, n)}
		for round := range rounds {
			part := parts[round%2]
			for i := range part {
				part[i] = values[rank] * float32(round+i)
			}
			if err := m.allReduce(rank, round%2, pool, sum, part); err != nil {
				return err
			}
			for i := range sum {
				if want := float32(round + i); sum[i] != want {
					return fmt.Errorf("round %d: sum %v, want %v", round, sum[i], want)
				}
			}
			if rank == round%ranks {
				time.Sleep(time.Microsecond) // now and then a rank is late
			}
		}
		return nil
	}))
}

// TestGather: the first rank sees all parts, and no rank changes them meanwhile.
func TestGather(t *testing.T) {
	const ranks = 3
	m := newLink(ranks)
	require.NoError(t, eachRank(ranks, func(rank int) (err error) {
		part := []float32{0}
		for round := range 200 {
			part[0] = float32(round*10 + rank)
			taken := m.gather(rank, part, func(parts [][]float32) {
				for i, p := range parts {
					if p[0] != float32(round*10+i) {
						err = fmt.Errorf("round %d has %v of rank %d", round, p[0], i)
					}
				}
			})
			if err = errors.Join(err, taken); err != nil {
				return err
			}
		}
		return nil
	}))
}
