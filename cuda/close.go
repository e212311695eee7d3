package cuda

import (
	"context"
	"errors"
	"fmt"

	"github.com/enginetest/enginetest/ledger"
)

// retain takes the primary context and enters it into the ledger.
func (w *Worker) retain() error {
	if err := w.acquire(); err != nil {
		return err
	}
	w.contextID = w.ledger.Add(ledger.Holding{
		Owner: w.name, Kind: kindContext, Device: w.dev.UUID, Addr: w.context.Load(), Stack: w.stack(),
	})
	return nil
}

// Close ends the worker: what is still live is freed; then the primary context is released and, by
// the last worker on the device, reset (which also ends other libraries' use of it in this
// process), and the driver is asked whether it is really gone. What had to be freed, or could not
// be, is a [LeakError]. When the thread does not come back before ctx ends, a [HangError], and
// Close can be called again. Once closed, every call of Close returns the same error.
func (w *Worker) Close(ctx context.Context) error {
	if w.onThread() {
		return &misuseError{"Close", errWrongThread, w.name +
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
	err := w.releaseContext()
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

// freeAll releases what owners left, and trims the device's pool.
func (w *Worker) freeAll(leak *LeakError) {
	if len(w.live) > 0 { // work may still use it
		if err := w.call(&w.d.fn.ctxSynchronize); err != nil {
			leak.Errs = append(leak.Errs, err)
		}
	}
	w.freeEach(leak)
	if w.dead.Load() == nil && w.dev.MemoryPools {
		if err := w.trimDevicePool(w.dev.handle); err != nil {
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
