package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/enginetest/enginetest/internal/cudafd"
)

// A primary context belongs to the process, and so do these two lists: how many workers share each,
// and whose thread is whose. They hold numbers and names, nothing that keeps an engine alive.
var (
	process struct {
		sync.Mutex
		contexts map[contextKey]int
	}
	threads sync.Map // thread id -> worker's name
	deaths  sync.Map // library -> *deadProcessError: the first error of this process after which it gets no context
)

type contextKey struct {
	lib     uintptr
	ordinal int
}

func registerThread(tid uintptr, name string) { threads.Store(tid, name) }
func unregisterThread(tid uintptr)            { threads.Delete(tid) }

func threadOwner(tid uintptr) string {
	name, _ := threads.Load(tid)
	s, _ := name.(string)
	return s
}

// primaryContext is a device's primary context, which all workers of the process on it share.
type primaryContext struct {
	dev     Device
	calls   *calls
	context atomic.Uintptr // 0: not held
}

// acquire takes the context and makes it current on this thread.
func (p *primaryContext) acquire() error {
	process.Lock()
	defer process.Unlock()
	c, dev := p.calls, uintptr(p.dev.handle)
	var err error
	cudafd.Starting(func() { err = c.call(&c.d.fn.primaryRetain, c.result(0), dev) })
	if err != nil {
		return c.d.whyNoContext(err)
	}
	p.context.Store(uintptr(c.out[0]))
	if err := p.makeCurrent(); err != nil {
		return errors.Join(err, c.call(&c.d.fn.primaryRelease, dev))
	}
	if process.contexts == nil {
		process.contexts = map[contextKey]int{}
	}
	process.contexts[p.key()]++
	return nil
}

func (p *primaryContext) makeCurrent() error {
	return p.calls.call(&p.calls.d.fn.ctxSetCurrent, p.context.Load())
}

func (p *primaryContext) key() contextKey { return contextKey{p.dev.d.lib, p.dev.Ordinal} }

// releaseContext releases the context; the last worker on the device resets it and checks.
func (p *primaryContext) releaseContext() error {
	process.Lock()
	defer process.Unlock()
	c, dev := p.calls, uintptr(p.dev.handle)
	err := errors.Join(c.call(&c.d.fn.ctxSetCurrent, 0), c.call(&c.d.fn.primaryRelease, dev))
	p.context.Store(0)
	process.contexts[p.key()]--
	if process.contexts[p.key()] > 0 {
		if c.dead.Load() != nil { // its calls repeat what killed it; what this worker has goes with the last one
			return nil
		}
		return err
	}
	delete(process.contexts, p.key())
	if e := c.call(&c.d.fn.primaryReset, dev); e != nil {
		err = errors.Join(err, e)
	}
	if e := c.call(&c.d.fn.primaryState, dev, c.result(0), c.result(1)); e != nil {
		return errors.Join(err, e)
	}
	if int32(c.out[1]) != 0 {
		return errors.Join(err, fmt.Errorf("cuda: the primary context of %s is still active after release and reset: "+
			"something else in this process keeps using it", p.dev))
	}
	if c.dead.Load() != nil { // its calls may repeat what killed it; what counts is that it is gone
		return nil
	}
	return err
}

// rememberDeath keeps the first error that ends the process's use of CUDA: what is refused later
// names it.
func (d *Driver) rememberDeath(worker string, err *Error) {
	deaths.LoadOrStore(d.lib, &deadProcessError{Worker: worker, First: err})
}

// whyNoContext explains the driver's refusal of a context.
func (d *Driver) whyNoContext(refusal error) error {
	now, ok := errAs[*Error](refusal)
	if !ok || !now.Code.endsProcess() {
		return refusal
	}
	e := deadProcessError{Err: now}
	if v, seen := deaths.Load(d.lib); seen {
		if first := v.(*deadProcessError); first.First.Code == now.Code {
			e.Worker, e.First = first.Worker, first.First
		}
	}
	return &e
}
