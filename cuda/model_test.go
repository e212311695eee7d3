package cuda

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/enginetest/enginetest/ledger"
)

// Whatever is done in whatever order, whichever driver calls fail: the ledger says what the driver
// says, and Close leaves nothing.
func TestLedgerEqualsTheDriver(t *testing.T) {
	r := stubRig(t, 1, 64<<20)
	failing := []string{
		"cuMemAlloc_v2", "cuMemFree_v2", "cuStreamCreateWithPriority", "cuStreamDestroy_v2",
	}
	rapid.Check(t, func(t *rapid.T) {
		s := r.stub
		s.Reset(1, 64<<20)
		d, err := Open(Library(s.Path))
		require.NoError(t, err)
		v, err := d.Device("0")
		require.NoError(t, err)
		w, err := NewWorker(v, Config{})
		require.NoError(t, err)
		defer func() { _ = closeSoon(w) }() // when the test fails: shrinking runs it many times
		var live []*Memory
		var streams []*Stream
		keep := func(m *Memory, err error) {
			if err == nil {
				live = append(live, m)
			}
		}
		size := rapid.Int64Range(1, 8<<20)
		pick := func(t *rapid.T) (int, bool) {
			if len(live) == 0 {
				return 0, false
			}
			return rapid.IntRange(0, len(live)-1).Draw(t, "which"), true
		}
		on := func(f func(t *rapid.T)) func(t *rapid.T) {
			return func(t *rapid.T) { require.NoError(t, w.Do(func() error { f(t); return nil })) }
		}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": on(func(t *rapid.T) { keep(w.Alloc("o", size.Draw(t, "bytes"))) }),
			"stream": on(func(*rapid.T) {
				if x, err := w.NewStream("o"); err == nil {
					streams = append(streams, x)
				}
			}),
			"close stream": on(func(t *rapid.T) {
				if len(streams) > 0 && streams[0].Close() == nil {
					streams = streams[1:]
				}
			}),
			"free": on(func(t *rapid.T) {
				if i, ok := pick(t); ok && live[i].Free() == nil {
					require.ErrorIs(t, live[i].Free(), ErrDoubleFree)
					live = append(live[:i], live[i+1:]...)
				}
			}),
			"fault": func(t *rapid.T) {
				s.Fail(rapid.SampledFrom(failing).Draw(t, "call"), rapid.IntRange(1, 3).Draw(t, "nth"),
					int(ErrOutOfMemory))
			},
			"": func(t *rapid.T) { // after each step
				if w.dead.Load() == nil && s.Used(0) != w.ledger.Bytes() {
					t.Fatalf("the driver has %d bytes, the ledger %d:\n%s", s.Used(0), w.ledger.Bytes(),
						ledger.Format(w.Holdings()))
				}
			},
		})
		s.Forgive()
		err = closeSoon(w)
		if leak, ok := errAs[*LeakError](err); ok {
			require.Empty(t, leak.Kept, "%v", err)
		} else {
			require.NoError(t, err)
			require.Empty(t, live)
		}
		require.Zero(t, s.Used(0))
		require.Zero(t, s.Objects(0))
		require.Empty(t, w.Holdings())
	})
}

func TestCloseWhileOthersWork(t *testing.T) {
	r := stubRig(t, 1, 8<<20)
	for range 50 {
		w := r.worker(t, 0)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					err := w.Do(func() error {
						m, err := w.Alloc("x", 100)
						return errors.Join(err, m.Free())
					})
					if errors.Is(err, ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 2 {
			wg.Go(func() {
				if err := closeSoon(w); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.False(t, r.stub.Active(0))
	}
}
