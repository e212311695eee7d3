package cuda

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/enginetest/enginetest/internal/dynlib"
)

// calls makes the driver calls of a worker, on its thread and without garbage. It knows which one
// is running, and which error was the last that the context could take.
type calls struct {
	d      *Driver
	worker string
	dead   atomic.Pointer[Error]
	driver atomic.Pointer[symbol] // the call that is running

	// What follows is touched on the thread only. Being preallocated, it makes calls free of
	// garbage.
	args   [16]uintptr // of the call that is running
	out    [4]uint64   // results of the call that is running
	config launchConfig
	rows   copy2D
}

// call calls the driver. Args are plain values, or addresses in objects that are on the heap for
// sure: the worker itself, an Args block. For others there is callWith.
func (c *calls) call(s *symbol, args ...uintptr) error {
	if s.addr == 0 {
		return c.d.failure(s, codeNotSupported)
	}
	n := copy(c.args[:], args)
	c.driver.Store(s)
	r := Code(int32(dynlib.Call(s.addr, c.args[:n])))
	c.driver.Store(nil)
	if r == 0 {
		return nil
	}
	err := c.d.failure(s, r)
	if r.sticky() {
		c.dead.CompareAndSwap(nil, err)
	}
	if r.endsProcess() && s != &c.d.fn.primaryRetain {
		c.d.rememberDeath(c.worker, err)
	}
	return err
}

// callWith is call for arguments that convert pointers: see Driver.call. The pragma costs an
// allocation.
//
//go:uintptrescapes
func (c *calls) callWith(s *symbol, args ...uintptr) error { return c.call(s, args...) }

// result is the address of the i-th result word. The worker is on the heap, so it does not move.
func (c *calls) result(i int) uintptr {
	c.out[i] = 0
	return uintptr(unsafe.Pointer(&c.out[i]))
}

// running returns the name of the call that is running, if any. It can be called from anywhere.
func (c *calls) running() string {
	if s := c.driver.Load(); s != nil {
		return s.name
	}
	return ""
}

// trimDevicePool trims the device's pool and what graphs with allocations of their own keep:
// libraries in this process use both.
func (c *calls) trimDevicePool(dev int32) error {
	err := c.call(&c.d.fn.devicePool, c.result(0), uintptr(dev))
	if err == nil {
		err = c.call(&c.d.fn.poolTrim, uintptr(c.out[0]), 0)
	}
	graphs := c.call(&c.d.fn.graphMemTrim, uintptr(dev))
	for _, e := range []error{err, graphs} {
		if e != nil && !errors.Is(e, codeNotSupported) {
			return e
		}
	}
	return nil
}
