package cuda

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// thread is an OS thread that runs jobs one after the other. The thread stays locked to the end,
// and so ends with its goroutine: no one inherits its current context.
type thread struct {
	name   string
	resume func() error // prepares a thread that takes over from one whose job ended it

	jobs     chan *job
	end      chan struct{} // closed when the last job has run
	closeErr error         // of the last job
	closed   atomic.Bool
	tid      atomic.Uintptr
	since    atomic.Int64 // when the job that is running began, UnixNano; 0: none
}

type job struct {
	run  func() error
	last bool
	err  error
	exit bool // run called runtime.Goexit
	done chan struct{}
}

// start runs begin on a new thread. When it fails, there is no thread.
func (t *thread) start(begin func() error) error {
	started := make(chan error)
	go t.loop(begin, started)
	return <-started
}

func (t *thread) loop(begin func() error, started chan<- error) {
	runtime.LockOSThread()
	t.tid.Store(threadID())
	registerThread(t.tid.Load(), t.name)
	err := begin()
	if started != nil {
		started <- err
		if err != nil {
			unregisterThread(t.tid.Load())
			return
		}
	}
	for j := range t.jobs {
		t.run(j)
		if j.last {
			t.closeErr = j.err
			close(t.end)
			return
		}
	}
}

// guard runs fn and makes an error of its panic.
func (t *thread) guard(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Worker: t.name, Value: v, Stack: debug.Stack()}
		}
	}()
	return fn()
}

// run does one job. A job that ends its goroutine (t.FailNow does) ends the thread as well: another
// one takes over.
func (t *thread) run(j *job) {
	finished := false
	t.since.Store(time.Now().UnixNano())
	defer func() {
		t.since.Store(0)
		if !finished {
			j.exit = true
			unregisterThread(t.tid.Swap(0))
			go t.loop(t.resume, nil)
		}
		close(j.done)
	}()
	j.err = t.guard(j.run)
	finished = true
}

// do runs fn on the thread and returns its error. It gives up with late's error when ctx ends.
func (t *thread) do(ctx context.Context, fn func() error, late func() error) error {
	j := &job{run: fn, done: make(chan struct{})}
	select {
	case t.jobs <- j:
	case <-t.end:
		return &misuseError{"Do", ErrClosed, t.name}
	case <-ctx.Done():
		return late()
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		return late()
	}
	if j.exit {
		runtime.Goexit()
	}
	return j.err
}

// made refuses the thread of a zero Worker, which would be waited for without end.
func (t *thread) made(call string) error {
	if t.jobs == nil {
		return &misuseError{call, errArguments, "the Worker does not come from NewWorker"}
	}
	return nil
}

// busy returns for how long the job has been running that the thread is at.
func (t *thread) busy() time.Duration {
	if began := t.since.Load(); began != 0 {
		return time.Since(time.Unix(0, began))
	}
	return 0
}

func (t *thread) onThread() bool { return t.tid.Load() == threadID() && !t.closed.Load() }
