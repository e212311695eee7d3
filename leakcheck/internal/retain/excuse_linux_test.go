package retain

import (
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// after sets a timer whose function holds an object, and returns it with the object.
//
//go:noinline
func after(d time.Duration) (*time.Timer, Target) {
	held := new([1 << 10]byte)
	alive := weak.Make(held)
	return time.AfterFunc(d, func() { held[0]++ }), Target{
		Addr: uint64(uintptr(unsafe.Pointer(held))), Alive: func() bool { return alive.Value() != nil },
	}
}

//go:noinline
func stop(timer *time.Timer) { timer.Stop() }

// TestStoppedTimer: a timer that was stopped stays with its function on the processor on which it
// was set. That is no one's leak; a pending timer is.
func TestStoppedTimer(t *testing.T) {
	pending, first := after(time.Hour)
	defer pending.Stop()
	var stopped, last Target
	func() {
		var timer *time.Timer
		timer, stopped = after(2 * time.Hour)
		other, a := after(3 * time.Hour)
		t.Cleanup(func() { other.Stop() })
		stop(timer)
		last = a
	}()
	paths, err := Explain([]Target{first, stopped, last}, Options{})
	require.NoError(t, err)
	assert.False(t, paths[0].Excused)
	assert.NotEmpty(t, paths[0].Steps)
	assert.True(t, paths[1].Excused || paths[1].Gone, "%v", paths[1])
	assert.False(t, paths[2].Excused)
}
