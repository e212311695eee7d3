package cuda

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/enginetest/enginetest/ledger"
)

// Config names a worker and the ledger that it enters its allocations in.
type Config struct {
	// in messages, and the owner of the context itself in the ledger; default "cuda:" and the
	// ordinal
	Name   string
	Ledger *ledger.Ledger // default: one of its own
	Stacks bool           // record the stack of each allocation, from the caller of this package on
}

// Worker is the primary context of a device and the OS thread that is locked to it. The driver
// keeps its current context per thread and goroutines move between threads: so everything of a
// worker is called inside [Worker.Do], and what is called elsewhere gets errWrongThread.
//
// Several workers of a process on one device share its primary context; the last one to be closed
// ends it.
type Worker struct {
	thread
	calls
	primaryContext
	allocations
	closing sync.Once

	contextID ledger.ID // of the context in the ledger
	capturing bool
}

// NewWorker locks a new OS thread, retains the device's primary context and makes it current there
// (0.1 s and about 500 MiB of device memory when it is the first on the device in this process).
// After an error that only a new process gets over it matches [ErrProcessDead].
func NewWorker(dev Device, cfg Config) (*Worker, error) {
	if dev.d == nil {
		return nil, &misuseError{"NewWorker", errArguments, "the Device does not come from Driver.Devices"}
	}
	name, l := cfg.Name, cfg.Ledger
	if name == "" {
		name = fmt.Sprintf("cuda:%d", dev.Ordinal)
	}
	if l == nil {
		l = ledger.New(false)
	}
	w := &Worker{
		thread:      thread{name: name, jobs: make(chan *job), end: make(chan struct{})},
		calls:       calls{d: dev.d, worker: name},
		allocations: allocations{ledger: l, stacks: cfg.Stacks, device: dev.UUID, live: map[ledger.ID]*resource{}},
	}
	w.primaryContext = primaryContext{dev: dev, calls: &w.calls}
	w.resume = w.adopt
	if err := w.start(w.retain); err != nil {
		return nil, fmt.Errorf("cuda: no context for %s on %s: %w", name, dev, err)
	}
	return w, nil
}

// adopt makes the context current on a thread that takes over. Jobs get an answer even when there
// is none any more.
func (w *Worker) adopt() error {
	err := w.makeCurrent()
	if e, ok := errAs[*Error](err); ok {
		w.dead.CompareAndSwap(nil, e)
	}
	return err
}

// Device is the worker's device.
func (w *Worker) Device() Device { return w.dev }

// Name is the worker's name in messages.
func (w *Worker) Name() string { return w.name }

// Err is nil, or the error that calls get since a sticky error.
func (w *Worker) Err() error {
	if first := w.dead.Load(); first != nil {
		return &deadError{Call: "Worker.Err", Worker: w.name, First: first}
	}
	return nil
}

// Do runs fn on the worker's thread and returns its error. A hop costs about 11 µs, and 25 when fn
// took so long (a millisecond) that the caller's processor went to sleep: make one per engine step
// and not one per driver call, or one for all steps. A panic in fn becomes a [PanicError];
// runtime.Goexit in fn (t.FailNow) ends the caller's goroutine as it would without Do. Do inside Do
// runs fn at once. Jobs of several goroutines run one after the other.
func (w *Worker) Do(fn func() error) error { return w.DoContext(context.Background(), fn) }

// DoContext is Do, and gives up waiting when ctx ends, with a [HangError] that says what the thread
// is doing: fn itself (which goes on), or another job (then fn never runs).
func (w *Worker) DoContext(ctx context.Context, fn func() error) error {
	if w.onThread() {
		return w.guard(fn)
	}
	if err := w.made("Do"); err != nil {
		return err
	}
	if w.closed.Load() {
		return &misuseError{"Do", ErrClosed, w.name}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return w.do(ctx, fn, func() error { return w.hang(ctx, "Do") })
}

func (w *Worker) hang(ctx context.Context, call string) error {
	e := &HangError{Worker: w.name, Call: call, Err: context.Cause(ctx)}
	e.For, e.Driver = w.Busy()
	return e
}

// Busy says for how long the job on the worker's thread has been running, and which driver call it
// is in, if any. It can be called from anywhere: watchdogs use it.
func (w *Worker) Busy() (since time.Duration, driverCall string) {
	return w.busy(), w.running()
}

// enter is the check at the head of every call: on the thread, open, alive. It asks no driver.
func (w *Worker) enter(call string) error {
	if err := w.enterDead(call); err != nil {
		return err
	}
	if first := w.dead.Load(); first != nil {
		return &deadError{Call: call, Worker: w.name, First: first}
	}
	return nil
}

// enterDead is enter for calls that are right on a dead context as well.
func (w *Worker) enterDead(call string) error {
	if tid := threadID(); tid != w.tid.Load() {
		if w.closed.Load() {
			return &misuseError{call, ErrClosed, w.name}
		}
		where := "on a thread that belongs to no worker"
		if other := threadOwner(tid); other != "" {
			where = "on the thread of " + other
		}
		return &misuseError{call, errWrongThread, fmt.Sprintf("%s was used %s: wrap the call in Do", w.name, where)}
	}
	if w.closed.Load() {
		return &misuseError{call, ErrClosed, w.name}
	}
	return nil
}

// Synchronize waits until the device has done all of the context's work. Errors of kernels show
// here.
func (w *Worker) Synchronize() error {
	if err := w.enter("Synchronize"); err != nil {
		return err
	}
	return w.call(&w.d.fn.ctxSynchronize)
}

// MemInfo is the device's free and total memory in bytes, other processes' use included.
func (w *Worker) MemInfo() (free, total int64, err error) {
	if err := w.enter("MemInfo"); err != nil {
		return 0, 0, err
	}
	err = w.call(&w.d.fn.memGetInfo, w.result(0), w.result(1))
	return int64(w.out[0]), int64(w.out[1]), err
}

// Handle is the CUcontext, for libraries (cuBLAS, NCCL) that want one. It is 0 after Close.
func (w *Worker) Handle() uintptr { return w.context.Load() }

// Holdings lists what the worker's ledger holds.
func (w *Worker) Holdings() []ledger.Holding { return w.ledger.Holdings() }

var _ ledger.Reporter = (*Worker)(nil)

// errAs is errors.As for one type, in one expression.
func errAs[T error](err error) (T, bool) {
	var t T
	ok := errors.As(err, &t)
	return t, ok
}
