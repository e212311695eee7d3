package cuda

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Rows go where they should and nothing else is touched: within the driver's largest pitch and
// beyond it, on the thread of the memory's own worker and on another's.
func TestCopyRows(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		owner, other := r.worker(t, 0), r.worker(t, 0)
		far := owner.Device().maxPitch + 512
		for _, c := range []struct {
			why  string
			w    *Worker
			rows Rows
		}{
			{"own memory", owner, Rows{Off: 512, Pitch: 4096, Width: 1000, N: 7}},
			{"another's memory", other, Rows{Off: 512, Pitch: 4096, Width: 1000, N: 7}},
			{"rows that touch", other, Rows{Pitch: 64, Width: 64, N: 100}},
			{"one row", other, Rows{Off: 3, Pitch: 64, Width: 64, N: 1}},
			{"further apart than a strided copy goes", other, Rows{Off: 100, Pitch: far, Width: 300, N: 3}},
		} {
			t.Run(c.why, func(t *testing.T) {
				size := c.rows.Off + int64(c.rows.N)*c.rows.Pitch
				var m *Memory
				do(t, owner, func() {
					var err error
					m, err = owner.Alloc("kv", size)
					require.NoError(t, err)
					require.NoError(t, m.Fill(0, size, 0xEE, nil))
					require.NoError(t, owner.Synchronize())
				})
				defer do(t, owner, func() { require.NoError(t, m.Free()) })
				in, n := pattern(int(c.rows.bytes())), c.rows.bytes()
				do(t, c.w, func() {
					s, err := c.w.NewStream("copies")
					require.NoError(t, err)
					p, err := c.w.AllocPinned("copies", 2*n+8)
					require.NoError(t, err)
					copy(p.Bytes()[8:], in)
					require.NoError(t, s.CopyRowsToDevice(m, c.rows, p, 8))
					require.NoError(t, s.CopyRowsToHost(p, 8+n, m, c.rows))
					require.NoError(t, s.Synchronize())
					require.Equal(t, in, p.Bytes()[8+n:])
					require.NoError(t, p.Free())
					require.NoError(t, s.Close())
				})
				do(t, owner, func() {
					row, gap := make([]byte, c.rows.Width), make([]byte, min(16, c.rows.Pitch-c.rows.Width))
					for i := range c.rows.N {
						at := c.rows.Off + int64(i)*c.rows.Pitch
						require.NoError(t, m.CopyTo(row, at))
						require.Equal(t, in[i*len(row):(i+1)*len(row)], row)
						require.NoError(t, m.CopyTo(gap, at+c.rows.Width))
						for _, b := range gap {
							require.Equal(t, byte(0xEE), b, "behind row %d", i)
						}
					}
				})
			})
		}
	})
}

func TestCopyRowsMisuse(t *testing.T) {
	r := stubRig(t, 2, 64<<20)
	w, other := r.worker(t, 0), r.worker(t, 1)
	var far, freed *Memory
	do(t, other, func() {
		var err error
		far, err = other.Alloc("kv", 100)
		require.NoError(t, err)
	})
	do(t, w, func() {
		s, err := w.NewStream("s")
		require.NoError(t, err)
		p, err := w.AllocPinned("p", 100)
		require.NoError(t, err)
		m, err := w.Alloc("kv", 100)
		require.NoError(t, err)
		freed, err = w.Alloc("kv", 100)
		require.NoError(t, err)
		require.NoError(t, freed.Free())
		good := Rows{Pitch: 20, Width: 10, N: 5}
		calls := r.calls()
		checkMisuse(t, "memory of another device", errWrongWorker, s.CopyRowsToHost(p, 0, far, good))
		checkMisuse(t, "freed", ErrUseAfterFree, s.CopyRowsToHost(p, 0, freed, good))
		checkMisuse(t, "nil memory", errArguments, s.CopyRowsToHost(p, 0, nil, good))
		checkMisuse(t, "nil pinned memory", errArguments, s.CopyRowsToHost(nil, 0, m, good))
		checkMisuse(t, "overlapping rows", errArguments, s.CopyRowsToHost(p, 0, m, Rows{Pitch: 9, Width: 10, N: 5}))
		checkMisuse(t, "negative", errArguments, s.CopyRowsToHost(p, 0, m, Rows{Pitch: 9, Width: 10, N: -1}))
		checkMisuse(t, "a pitch that overflows", errArguments,
			s.CopyRowsToHost(p, 0, m, Rows{Pitch: 1 << 62, Width: 10, N: 5}))
		checkMisuse(t, "one row too many", errRange, s.CopyRowsToDevice(m, Rows{Pitch: 20, Width: 10, N: 6}, p, 0))
		checkMisuse(t, "host memory too small", errRange, s.CopyRowsToDevice(m, good, p, 51))
		require.NoError(t, s.CopyRowsToHost(p, 0, m, Rows{}), "nothing")
		require.Equal(t, calls, r.calls(), "the driver was not asked")
		require.NoError(t, s.CopyRowsToHost(p, 50, m, good))
		for _, f := range []func() error{m.Free, p.Free, s.Close} {
			require.NoError(t, f())
		}
	})
	do(t, other, func() { require.NoError(t, far.Free()) })
}

// Two threads in one context: each copies its own rows of the same memory.
func TestCopyRowsSideBySide(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		ws := []*Worker{r.worker(t, 0), r.worker(t, 0), r.worker(t, 0)}
		var m *Memory
		do(t, ws[0], func() {
			var err error
			m, err = ws[0].Alloc("kv", 3<<20)
			require.NoError(t, err)
		})
		var wg sync.WaitGroup
		for i, w := range ws {
			wg.Go(func() {
				do(t, w, func() {
					s, err := w.NewStream("copies")
					require.NoError(t, err)
					p, err := w.AllocPinned("copies", 2048)
					require.NoError(t, err)
					rows := Rows{Off: int64(i) << 20, Pitch: 512, Width: 256, N: 4}
					for round := range 50 {
						for j := range 1024 {
							p.Bytes()[j] = byte(i + j + round)
						}
						require.NoError(t, s.CopyRowsToDevice(m, rows, p, 0))
						require.NoError(t, s.CopyRowsToHost(p, 1024, m, rows))
						require.NoError(t, s.Synchronize())
						require.Equal(t, p.Bytes()[:1024], p.Bytes()[1024:])
					}
					require.NoError(t, p.Free())
					require.NoError(t, s.Close())
				})
			})
		}
		wg.Wait()
		do(t, ws[0], func() { require.NoError(t, m.Free()) })
	})
}
