package cuda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/enginetest/enginetest/internal/cudafd"
	"github.com/enginetest/enginetest/ledger"
)

// A primary context belongs to the process, and so do these two lists: how many workers share each,
// and whose thread is whose. They hold numbers and names, nothing that keeps an engine alive.
var (
	process struct {
		sync.Mutex
		contexts map[contextKey]int
	}
	threads sync.Map // thread id -> worker's name
	deaths  sync.Map // library -> *DeadProcessError: the first error of this process after which it gets no context
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

// retain takes the primary context and enters it into the ledger.
func (w *Worker) retain() error {
	if err := w.current(); err != nil {
		return err
	}
	w.contextID = w.ledger.Add(ledger.Holding{
		Owner: w.name, Kind: kindContext, Device: w.dev.UUID, Addr: w.ctx.Load(),
		Stack: w.stack(),
	})
	return nil
}

// current takes the primary context and makes it current on this thread.
func (w *Worker) current() error {
	process.Lock()
	defer process.Unlock()
	var err error
	cudafd.Starting(func() { err = w.call(&w.d.fn.primaryRetain, w.result(0), uintptr(w.dev.handle)) })
	if err != nil {
		return w.d.whyNoContext(err)
	}
	w.ctx.Store(uintptr(w.out[0]))
	if err := w.call(&w.d.fn.ctxSetCurrent, w.ctx.Load()); err != nil {
		return errors.Join(err, w.call(&w.d.fn.primaryRelease, uintptr(w.dev.handle)))
	}
	if process.contexts == nil {
		process.contexts = map[contextKey]int{}
	}
	process.contexts[w.key()]++
	return nil
}

// rememberDeath keeps the first error that ends the process's use of CUDA: what is refused later
// names it.
func (d *Driver) rememberDeath(worker string, err *Error) {
	deaths.LoadOrStore(d.lib, &DeadProcessError{Worker: worker, First: err})
}

// whyNoContext explains the driver's refusal of a context.
func (d *Driver) whyNoContext(refusal error) error {
	now, ok := errAs[*Error](refusal)
	if !ok || !now.Code.endsProcess() {
		return refusal
	}
	e := DeadProcessError{Err: now}
	if v, seen := deaths.Load(d.lib); seen {
		if first := v.(*DeadProcessError); first.First.Code == now.Code {
			e.Worker, e.First = first.Worker, first.First
		}
	}
	return &e
}

func (w *Worker) key() contextKey { return contextKey{w.d.lib, w.dev.Ordinal} }

// Close ends the worker: what is still live is freed; then the primary context is released and, by
// the last worker on the device, reset (which also ends other libraries' use of it in this process),
// and the driver is asked whether it is really gone. What had to be freed, or could not be, is a
// [LeakError]. When the thread does not come back before ctx ends, a [HangError], and Close can be
// called again. Once closed, every call of Close returns the same error.
func (w *Worker) Close(ctx context.Context) error {
	if w.onThread() {
		return &MisuseError{"Close", ErrWrongThread, w.name +
			" cannot be closed on its own thread: call Close outside Do"}
	}
	if err := w.made("Close"); err != nil {
		return err
	}
	w.closing.Do(func() {
		// waits behind what the thread is doing
		go func() { w.jobs <- &job{run: w.teardown, last: true, done: make(chan struct{})} }()
	})
	select {
	case <-w.end:
		return w.closeErr
	case <-ctx.Done():
		return w.hang(ctx, "Close")
	}
}

// teardown frees, releases, resets and checks, each step whatever became of the others.
func (w *Worker) teardown() error {
	leak := &LeakError{Worker: w.name}
	if w.dead.Load() == nil {
		w.freeAll(leak)
	}
	err := w.endContext()
	for _, r := range w.remaining() {
		if err != nil {
			leak.Kept = append(leak.Kept, r.holding)
			continue
		}
		r.end(leak)
	}
	if err == nil {
		_ = w.ledger.Remove(w.contextID) // entered by retain, removed nowhere else
	}
	w.closed.Store(true)
	unregisterThread(w.tid.Load())
	if err != nil {
		leak.Errs = append(leak.Errs, err)
	}
	if len(leak.Freed)+len(leak.Kept) == 0 {
		return errors.Join(leak.Errs...)
	}
	return leak
}

// end strikes r out once the driver has it back; it is a leak unless its owner had freed it.
func (r *resource) end(leak *LeakError) {
	if !r.freed.Swap(true) {
		leak.Freed = append(leak.Freed, r.holding)
	}
	r.forget()
}

// remaining lists live resources, those that use others first: the latest first.
func (w *Worker) remaining() []*resource {
	rs := make([]*resource, 0, len(w.live))
	for _, r := range w.live {
		rs = append(rs, r)
	}
	slices.SortFunc(rs, func(a, b *resource) int { return cmp.Compare(b.id, a.id) })
	return rs
}

// freeAll releases what owners left, and trims the device's pool.
func (w *Worker) freeAll(leak *LeakError) {
	if len(w.live) > 0 { // work may still use it
		if err := w.call(&w.d.fn.ctxSynchronize); err != nil {
			leak.Errs = append(leak.Errs, err)
		}
	}
	w.freeEach(leak)
	if w.dead.Load() == nil && w.dev.MemoryPools {
		if err := w.trimDevicePool(); err != nil {
			leak.Errs = append(leak.Errs, err)
		}
	}
}

func (w *Worker) freeEach(leak *LeakError) {
	for _, r := range w.remaining() {
		if w.dead.Load() != nil {
			return
		}
		if err := r.release(); err != nil {
			leak.Errs = append(leak.Errs, fmt.Errorf("%s: %w", r, err))
			continue
		}
		r.end(leak)
	}
}

// endContext releases the primary context; the last worker on the device resets it and checks.
func (w *Worker) endContext() error {
	process.Lock()
	defer process.Unlock()
	dev := uintptr(w.dev.handle)
	err := errors.Join(w.call(&w.d.fn.ctxSetCurrent, 0), w.call(&w.d.fn.primaryRelease, dev))
	w.ctx.Store(0)
	process.contexts[w.key()]--
	if process.contexts[w.key()] > 0 {
		if w.dead.Load() != nil { // its calls repeat what killed it; what this worker has goes with the last one
			return nil
		}
		return err
	}
	delete(process.contexts, w.key())
	if e := w.call(&w.d.fn.primaryReset, dev); e != nil {
		err = errors.Join(err, e)
	}
	if e := w.call(&w.d.fn.primaryState, dev, w.result(0), w.result(1)); e != nil {
		return errors.Join(err, e)
	}
	if int32(w.out[1]) != 0 {
		return errors.Join(err, fmt.Errorf("cuda: the primary context of %s is still active after release and reset: "+
			"something else in this process keeps using it", w.dev))
	}
	if w.dead.Load() != nil { // its calls may repeat what killed it; what counts is that it is gone
		return nil
	}
	return err
}

func (w *Worker) devicePool() (uintptr, error) {
	err := w.call(&w.d.fn.devicePool, w.result(0), uintptr(w.dev.handle))
	return uintptr(w.out[0]), err
}

// trimDevicePool trims the device's pool and what graphs with allocations of their own (libraries
// make them) keep.
func (w *Worker) trimDevicePool() error {
	pool, err := w.devicePool()
	if err == nil {
		err = w.call(&w.d.fn.poolTrim, pool, 0)
	}
	graphs := w.call(&w.d.fn.graphMemTrim, uintptr(w.dev.handle))
	for _, e := range []error{err, graphs} {
		if e != nil && !errors.Is(e, ErrNotSupported) {
			return e
		}
	}
	return nil
}
