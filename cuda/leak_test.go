package cuda

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/ledger"
)

const leakBytes = 32 << 20

// leaks plants one of each kind.
var leaks = map[string]func(t *testing.T, w *Worker){
	kindPlain: func(t *testing.T, w *Worker) {
		_, err := w.Alloc("culprit", leakBytes)
		require.NoError(t, err)
	},
	kindPinned: func(t *testing.T, w *Worker) {
		_, err := w.AllocPinned("culprit", leakBytes)
		require.NoError(t, err)
	},
	kindStream: func(t *testing.T, w *Worker) {
		_, err := w.NewStream("culprit")
		require.NoError(t, err)
	},
	kindEvent: func(t *testing.T, w *Worker) {
		_, err := w.NewEvent("culprit")
		require.NoError(t, err)
	},
	kindModule: func(t *testing.T, w *Worker) {
		_, err := w.LoadModule("culprit", "test.ptx", []byte(testPTX))
		require.NoError(t, err)
	},
	kindGraph: func(t *testing.T, w *Worker) {
		_, m := fillGraph(t, w, "culprit")
		require.NoError(t, m.Free())
	},
	kindExec: func(t *testing.T, w *Worker) {
		g, m := fillGraph(t, w, "innocent")
		_, err := g.Instantiate("culprit")
		require.NoError(t, err)
		require.NoError(t, g.Close())
		require.NoError(t, m.Free())
	},
}

// fillGraph captures a fill of memory that is innocent's.
func fillGraph(t *testing.T, w *Worker, owner string) (*Graph, *Memory) {
	m, err := w.Alloc("innocent", leakBytes)
	require.NoError(t, err)
	s, err := w.NewStream("innocent")
	require.NoError(t, err)
	g, err := s.Capture(owner, func() error { return m.Fill(0, 4096, 1, s) })
	require.NoError(t, err)
	require.NoError(t, s.Close())
	return g, m
}

// A leak of each kind is named with owner, kind and stack, and given back: the device's free memory
// is what it was, and the context is gone.
func TestLeaksAreNamedAndFreed(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		vs, err := r.d.Devices()
		require.NoError(t, err)
		before := freeMemory(t, vs[0])
		for kind, leak := range leaks {
			t.Run(kind, func(t *testing.T) {
				l := ledger.New(false)
				w := newWorker(t, vs[0], Config{Name: "rank 0", Ledger: l, Stacks: true})
				do(t, w, func() { leak(t, w) })
				require.Len(t, l.Holdings(), 2, "the leak and the context")

				err := closeSoon(w)
				var e *LeakError
				require.ErrorAs(t, err, &e)
				t.Log(err)
				require.Len(t, e.Freed, 1)
				require.Empty(t, e.Kept)
				h := e.Freed[0]
				assert.Equal(t, "culprit", h.Owner)
				assert.Equal(t, kind, h.Kind)
				if slices.Contains([]string{kindPlain, kindPinned}, kind) {
					assert.EqualValues(t, leakBytes, h.Bytes)
				} else {
					assert.Zero(t, h.Bytes)
				}
				if kind == kindPinned {
					assert.Equal(t, HostDevice, h.Device)
				} else {
					assert.Equal(t, vs[0].UUID, h.Device)
				}
				assert.Contains(t, h.Stack[0], "cuda.", "the first frame is the caller's")
				assert.Contains(t, h.Stack[0], "leak_test.go:")
				assert.NotContains(t, h.Stack[len(h.Stack)-1], "worker.go", "the thread's own frames are no news")
				assert.Empty(t, l.Holdings())
				if r.stub != nil {
					assert.Zero(t, r.stub.Used(0))
					assert.Zero(t, r.stub.Objects(0))
					assert.False(t, r.stub.Active(0))
				}
			})
		}
		after := freeMemory(t, vs[0])
		require.InDelta(t, before, after, 2<<20, "bytes free before and after")
	})
}

// freeMemory reads the device's free memory in a context of its own.
func freeMemory(t *testing.T, v Device) int64 {
	w := newWorker(t, v, Config{})
	var free int64
	do(t, w, func() {
		var err error
		free, _, err = w.MemInfo()
		require.NoError(t, err)
	})
	require.NoError(t, closeSoon(w))
	return free
}

func TestOwnersThatFreeEverythingLeaveNothing(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		vs, err := r.d.Devices()
		require.NoError(t, err)
		l := ledger.New(false)
		w := newWorker(t, vs[0], Config{Ledger: l})
		require.Equal(t, []ledger.Holding{{Owner: "cuda:0", Kind: kindContext, Device: vs[0].UUID, Addr: w.Handle()}},
			l.Holdings(),
			"an open worker is itself a holding")
		do(t, w, func() {
			m, err := w.Alloc("weights", 1<<20)
			require.NoError(t, err)
			require.EqualValues(t, 1<<20, l.Bytes())
			require.NoError(t, m.Free())
		})
		require.NoError(t, closeSoon(w))
		require.Empty(t, l.Holdings())
		require.Zero(t, w.Handle())
	})
}
