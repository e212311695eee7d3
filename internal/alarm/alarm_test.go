package alarm

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
)

func TestAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rang atomic.Int32
		After(time.Minute, func() { rang.Add(1) })
		stopped := After(time.Second, func() { rang.Add(10) })
		time.Sleep(time.Second / 2)
		stopped.Stop()
		time.Sleep(59 * time.Second)
		assert.Zero(t, rang.Load())
		time.Sleep(time.Minute)
		assert.EqualValues(t, 1, rang.Load())
	})
}

// A stopped alarm keeps nothing, also while the runtime and its owner keep the timer.
func TestStoppedKeepsNothing(t *testing.T) {
	alarm, engine := set()
	runtime.GC()
	assert.NotNil(t, engine.Value(), "while it is set")
	alarm.Stop()
	runtime.GC()
	assert.Nil(t, engine.Value())
	runtime.KeepAlive(alarm)
}

//go:noinline
func set() (*Alarm, weak.Pointer[[1 << 20]byte]) {
	engine := new([1 << 20]byte)
	return After(time.Hour, func() { engine[0]++ }), weak.Make(engine)
}
