package cuda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/enginetest/enginetest/ledger"
)

// A primary context belongs to the process, and so do these two lists: how many workers share each, and whose thread is whose. They hold
// numbers and names, nothing that keeps an engine alive.
var (
	process struct {
		sync.Mutex
		contexts map[contextKey]int
	}
	threads sync.Map // thread id -> worker's name
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

// retain takes the primary context and makes it current.
func (w *Worker) retain() error {
	process.Lock()
	defer process.Unlock()
	if err := w.call(&w.d.fn.primaryRetain, w.result(0), uintptr(w.dev.handle)); err != nil {
		return err
	}
	w.ctx.Store(uintptr(w.out[0]))
	if err := w.call(&w.d.fn.ctxSetCurrent, w.ctx.Load()); err != nil {
		return errors.Join(err, w.call(&w.d.fn.primaryRelease, uintptr(w.dev.handle)))
	}
	if process.contexts == nil {
		process.contexts = map[contextKey]int{}
	}
	process.contexts[w.key()]++
	w.contextID = w.ledger.Add(ledger.Holding{Owner: w.name, Kind: KindContext, Device: w.dev.UUID, Addr: w.ctx.Load(), Stack: w.stack()})
	return nil
}

func (w *Worker) key() contextKey { return contextKey{w.d.lib, w.dev.Ordinal} }

// Close ends the worker: what is still live is freed before the context ends, because stream-ordered and VMM memory would outlive it; then
// the primary context is released and, by the last worker on the device, reset (which also ends other libraries' use of it in this process),
// and the driver is asked whether it is really gone. What had to be freed, or could not be, is a [LeakError]. When the thread does not come
// back before ctx ends, a [HangError]. Later calls of Close return the first one's error.
func (w *Worker) Close(ctx context.Context) error {
	if w.onThread() {
		return &MisuseError{"Close", ErrWrongThread, w.name + " cannot be closed on its own thread: call Close outside Do"}
	}
	err := errors.New("closing")
	first := false
	w.closing.Do(func() {
		first = true
		j := &job{last: true, done: make(chan struct{})}
		j.run = func() error { w.closeErr = w.teardown(); return nil }
		err = w.submit(ctx, "Close", j)
	})
	if !first {
		select {
		case <-w.end:
		case <-ctx.Done():
			return w.hang(ctx, "Close")
		}
	} else if err != nil {
		return err
	}
	<-w.end
	return w.closeErr
}

// teardown frees, releases, resets and checks, each step whatever became of the others.
func (w *Worker) teardown() error {
	leak := &LeakError{Worker: w.name}
	w.freeAll(leak)
	err := w.endContext()
	for _, r := range w.remaining() { // a dead context's: its end frees what does not outlive it
		switch {
		case r.outlives || err != nil:
			leak.Kept = append(leak.Kept, r.holding)
			continue
		case !r.freed.Load():
			leak.Freed = append(leak.Freed, r.holding)
		}
		r.freed.Store(true)
		r.forget()
	}
	if err == nil {
		_ = w.ledger.Remove(w.contextID) // entered by retain, removed nowhere else
	}
	w.closed.Store(true)
	unregisterThread(w.tid.Load())
	if len(leak.Freed)+len(leak.Kept) == 0 {
		return err
	}
	if err != nil {
		leak.Errs = append(leak.Errs, err)
	}
	return leak
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

// freeAll gives back what owners left, and trims the device's pool. On a dead context only what outlives it is tried.
func (w *Worker) freeAll(leak *LeakError) {
	alive := w.dead.Load() == nil
	if alive && len(w.live) > 0 {
		if err := w.call(&w.d.fn.ctxSynchronize); err != nil {
			leak.Errs = append(leak.Errs, err)
			alive = w.dead.Load() == nil
		}
	}
	for _, r := range w.remaining() {
		if !alive && !r.outlives {
			continue
		}
		if err := r.release(); err != nil {
			leak.Errs = append(leak.Errs, fmt.Errorf("%s: %w", r, err))
			continue
		}
		if !r.freed.Load() {
			leak.Freed = append(leak.Freed, r.holding)
			r.freed.Store(true)
		}
		r.forget()
	}
	if alive && w.dev.MemoryPools {
		if err := w.trimDevicePool(); err != nil {
			leak.Errs = append(leak.Errs, err)
		}
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
		err = errors.Join(err, fmt.Errorf("cuda: the primary context of %s is still active after release and reset: "+
			"something else in this process keeps using it", w.dev))
	}
	return err
}
