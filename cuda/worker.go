package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/enginetest/enginetest/internal/dynlib"
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
// worker is called inside [Worker.Do], and what is called elsewhere gets ErrWrongThread.
//
// Several workers of a process on one device share its primary context; the last one to be closed
// ends it.
type Worker struct {
	dev    Device
	d      *Driver
	name   string
	ledger *ledger.Ledger
	stacks bool

	jobs    chan *job
	end     chan struct{} // closed by Close when the thread has ended
	closing sync.Once
	closed  atomic.Bool
	tid     atomic.Uintptr
	ctx     atomic.Uintptr
	dead    atomic.Pointer[Error]
	since   atomic.Int64           // when the job that is running began, UnixNano; 0: none
	driver  atomic.Pointer[symbol] // the driver call that is running

	// What follows is touched on the thread only.
	contextID ledger.ID
	live      map[ledger.ID]*resource
	args      [16]uintptr // of the call that is running: a preallocated block makes calls free of garbage
	out       [4]uint64   // results of the call that is running
	config    launchConfig
	rows      copy2D
	capturing bool
	closeErr  error
}

type job struct {
	run  func() error
	last bool
	err  error
	exit bool // run called runtime.Goexit
	done chan struct{}
}

// NewWorker locks a new OS thread, retains the device's primary context and makes it current there
// (0.1 s and about 500 MiB of device memory when it is the first on the device in this process).
// After an error that only a new process gets over it is a [DeadProcessError].
func NewWorker(dev Device, cfg Config) (*Worker, error) {
	w := &Worker{
		dev: dev, d: dev.d, name: cfg.Name, ledger: cfg.Ledger, stacks: cfg.Stacks,
		jobs: make(chan *job), end: make(chan struct{}), live: map[ledger.ID]*resource{},
	}
	if w.d == nil {
		return nil, &MisuseError{"NewWorker", ErrArguments, "the Device does not come from Driver.Devices"}
	}
	if w.name == "" {
		w.name = fmt.Sprintf("cuda:%d", dev.Ordinal)
	}
	if w.ledger == nil {
		w.ledger = ledger.New(false)
	}
	started := make(chan error)
	go w.loop(func() error { return w.retain() }, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("cuda: no context for %s on %s: %w", w.name, dev, err)
	}
	return w, nil
}

// Device is the worker's device.
func (w *Worker) Device() Device { return w.dev }

// Name is the worker's name in messages.
func (w *Worker) Name() string { return w.name }

// Ledger is where the worker's allocations are entered.
func (w *Worker) Ledger() *ledger.Ledger { return w.ledger }

// Err is nil, or the [DeadError] that calls get since a sticky error.
func (w *Worker) Err() error {
	if first := w.dead.Load(); first != nil {
		return &DeadError{Call: "Worker.Err", Worker: w.name, First: first}
	}
	return nil
}

// loop is the thread's life. The thread stays locked to the end, and so ends with the goroutine:
// no one inherits its current context.
func (w *Worker) loop(begin func() error, started chan<- error) {
	runtime.LockOSThread()
	w.tid.Store(threadID())
	registerThread(w.tid.Load(), w.name)
	err := begin()
	if e, ok := errAs[*Error](err); ok { // a thread that took over and has no context: jobs still get an answer
		w.dead.CompareAndSwap(nil, e)
	}
	if started != nil {
		started <- err
		if err != nil {
			unregisterThread(w.tid.Load())
			return
		}
	}
	for j := range w.jobs {
		w.run(j)
		if j.last {
			w.closeErr = j.err
			close(w.end)
			return
		}
	}
}

// guard runs fn and makes an error of its panic.
func (w *Worker) guard(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Worker: w.name, Value: v, Stack: debug.Stack()}
		}
	}()
	return fn()
}

// run does one job. A job that ends its goroutine (t.FailNow does) ends the thread as well: another
// one takes over.
func (w *Worker) run(j *job) {
	finished := false
	w.since.Store(time.Now().UnixNano())
	defer func() {
		w.since.Store(0)
		if !finished {
			j.exit = true
			unregisterThread(w.tid.Swap(0))
			go w.loop(func() error { return w.call(&w.d.fn.ctxSetCurrent, w.ctx.Load()) }, nil)
		}
		close(j.done)
	}()
	j.err = w.guard(j.run)
	finished = true
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
		return &MisuseError{"Do", ErrClosed, w.name}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	j := &job{run: fn, done: make(chan struct{})}
	select {
	case w.jobs <- j:
	case <-w.end:
		return &MisuseError{"Do", ErrClosed, w.name}
	case <-ctx.Done():
		return w.hang(ctx, "Do")
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		return w.hang(ctx, "Do")
	}
	if j.exit {
		runtime.Goexit()
	}
	return j.err
}

// made refuses a zero Worker, which has no thread to wait for.
func (w *Worker) made(call string) error {
	if w.jobs == nil {
		return &MisuseError{call, ErrArguments, "the Worker does not come from NewWorker"}
	}
	return nil
}

func (w *Worker) hang(ctx context.Context, call string) error {
	e := &HangError{Worker: w.name, Call: call, Err: context.Cause(ctx)}
	e.For, e.Driver = w.Busy()
	return e
}

// Busy says for how long the job on the worker's thread has been running, and which driver call it
// is in, if any. It can be called from anywhere: watchdogs use it.
func (w *Worker) Busy() (since time.Duration, driverCall string) {
	if t := w.since.Load(); t != 0 {
		since = time.Since(time.Unix(0, t))
	}
	if s := w.driver.Load(); s != nil {
		driverCall = s.name
	}
	return since, driverCall
}

func (w *Worker) onThread() bool { return w.tid.Load() == threadID() && !w.closed.Load() }

// enter is the check at the head of every call: on the thread, open, alive. It asks no driver.
func (w *Worker) enter(call string) error {
	if err := w.enterDead(call); err != nil {
		return err
	}
	if first := w.dead.Load(); first != nil {
		return &DeadError{Call: call, Worker: w.name, First: first}
	}
	return nil
}

// enterDead is enter for calls that are right on a dead context as well.
func (w *Worker) enterDead(call string) error {
	if tid := threadID(); tid != w.tid.Load() {
		if w.closed.Load() {
			return &MisuseError{call, ErrClosed, w.name}
		}
		where := "on a thread that belongs to no worker"
		if other := threadOwner(tid); other != "" {
			where = "on the thread of " + other
		}
		return &MisuseError{call, ErrWrongThread, fmt.Sprintf("%s was used %s: wrap the call in Do", w.name, where)}
	}
	if w.closed.Load() {
		return &MisuseError{call, ErrClosed, w.name}
	}
	return nil
}

// call calls the driver on the thread, without garbage. Args are plain values, or addresses in
// objects that are on the heap for sure: the worker itself, an Args block. For others there is
// callWith.
func (w *Worker) call(s *symbol, args ...uintptr) error {
	if s.addr == 0 {
		return w.d.failure(s, ErrNotSupported)
	}
	n := copy(w.args[:], args)
	w.driver.Store(s)
	r := Code(int32(dynlib.Call(s.addr, w.args[:n])))
	w.driver.Store(nil)
	if r == 0 {
		return nil
	}
	err := w.d.failure(s, r)
	if r.sticky() {
		w.dead.CompareAndSwap(nil, err)
	}
	if r.endsProcess() && s != &w.d.fn.primaryRetain {
		w.d.rememberDeath(w.name, err)
	}
	return err
}

// callWith is call for arguments that convert pointers: see Driver.call. The pragma costs an
// allocation.
//
//go:uintptrescapes
func (w *Worker) callWith(s *symbol, args ...uintptr) error { return w.call(s, args...) }

// result is the address of the i-th result word. The worker is on the heap, so it does not move.
func (w *Worker) result(i int) uintptr {
	w.out[i] = 0
	return uintptr(unsafe.Pointer(&w.out[i]))
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
func (w *Worker) Handle() uintptr { return w.ctx.Load() }

// Holdings lists what the worker's ledger holds.
func (w *Worker) Holdings() []ledger.Holding { return w.ledger.Holdings() }

var _ ledger.Reporter = (*Worker)(nil)

// errAs is errors.As for one type, in one expression.
func errAs[T error](err error) (T, bool) {
	var t T
	ok := errors.As(err, &t)
	return t, ok
}
