package popped

import (
	"runtime"
	"testing"
	"unsafe"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type engine struct{ _ [64]byte }

func (*engine) close() {}

//go:noinline
func open() *engine { return &engine{} }

// gone reports whether w is collected after clear. The cleanups of a test run in the reverse order
// of their registration.
func gone[T any](w weak.Pointer[T]) bool {
	runtime.GC()
	return w.Value() == nil
}

// wrapped is how other packages pass a test on.
type wrapped struct{ testing.TB }

func TestClear(t *testing.T) {
	require.True(t, layout().ok, "this release of Go lays testing.T out in another way")
	for name, wrap := range map[string]func(*testing.T) any{
		"a test":            func(t *testing.T) any { return t },
		"a wrapper":         func(t *testing.T) any { return wrapped{t} },
		"a pointer to one":  func(t *testing.T) any { return &wrapped{t} },
		"a wrapped wrapper": func(t *testing.T) any { return wrapped{&wrapped{t}} },
	} {
		t.Run(name, func(t *testing.T) {
			var engines []weak.Pointer[engine]
			t.Cleanup(func() {
				Clear(wrap(t))
				for _, w := range engines {
					assert.True(t, gone(w))
				}
			})
			for range 3 {
				e := open()
				engines = append(engines, weak.Make(e))
				t.Cleanup(e.close)
			}
		})
	}
}

// TestPoppedStays: without Clear the engine stays. Should this fail, testing clears its slots by
// itself, and this package can go.
func TestPoppedStays(t *testing.T) {
	var w weak.Pointer[engine]
	t.Cleanup(func() { assert.False(t, gone(w)) })
	e := open()
	w = weak.Make(e)
	t.Cleanup(e.close)
}

func TestParallelSubtests(t *testing.T) {
	var engines [3]weak.Pointer[engine]
	t.Cleanup(func() {
		Clear(t)
		for _, w := range engines {
			assert.True(t, gone(w))
		}
	})
	for i := range engines {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			e := open()
			engines[i] = weak.Make(e)
			t.Cleanup(e.close)
		})
	}
}

func TestOtherValues(t *testing.T) {
	for _, v := range []any{nil, 1, "", (*testing.T)(nil), struct{ *testing.T }{}, &struct{ x *testing.T }{t}} {
		assert.NotPanics(t, func() { Clear(v) })
	}
}

func TestSlots(t *testing.T) {
	t.Cleanup(func() {})
	addr, length, capacity, ok := Slots(unsafe.Slice((*byte)(unsafe.Pointer(t)), unsafe.Sizeof(*t)))
	assert.True(t, ok)
	assert.NotZero(t, addr)
	assert.Equal(t, uint64(1), length)
	assert.GreaterOrEqual(t, capacity, length)
	_, _, _, ok = Slots(nil)
	assert.False(t, ok)
}
