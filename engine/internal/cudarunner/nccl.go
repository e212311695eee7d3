package cudarunner

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/internal/dynlib"
	"github.com/enginetest/enginetest/ledger"
)

// ncclLibrary is NVIDIA's libnccl.so.2, found at run time.
type ncclLibrary struct {
	path string

	version, initAll, allReduce, destroy, abort, errorString, lastError uintptr
}

// ErrNoNCCL says that the library is not there, or cannot be used.
var ErrNoNCCL = errors.New("cudarunner: no NCCL")

// findNCCL loads the library: ENGINETEST_LIBNCCL, or libnccl.so.2 where the system looks for
// libraries (LD_LIBRARY_PATH, such as Python's site-packages/nvidia/nccl/lib).
func findNCCL() (*ncclLibrary, error) {
	n := &ncclLibrary{path: "libnccl.so.2"}
	if path := os.Getenv("ENGINETEST_LIBNCCL"); path != "" {
		n.path = path
	}
	lib, err := dynlib.Open(n.path)
	if err != nil {
		why, _, _ := strings.Cut(err.Error(), "\n")
		return nil, fmt.Errorf("%w: %s", ErrNoNCCL, why)
	}
	for name, to := range map[string]*uintptr{
		"ncclGetVersion": &n.version, "ncclCommInitAll": &n.initAll, "ncclAllReduce": &n.allReduce,
		"ncclCommDestroy": &n.destroy, "ncclCommAbort": &n.abort,
		"ncclGetErrorString": &n.errorString, "ncclGetLastError": &n.lastError,
	} {
		if *to = dynlib.Symbol(lib, name); *to == 0 {
			return nil, fmt.Errorf("%w: %s has no %s", ErrNoNCCL, n.path, name)
		}
	}
	return n, nil
}

// NCCLError is an error of a call of NCCL.
type NCCLError struct {
	Call       string
	Code       int
	Text, More string
}

func (e *NCCLError) Error() string {
	s := fmt.Sprintf("%s: NCCL error %d: %s", e.Call, e.Code, e.Text)
	if e.More != "" {
		s += ": " + e.More
	}
	return s
}

// call calls a function. What its arguments point to is on the heap.
func (n *ncclLibrary) call(name string, fn uintptr, args ...uintptr) error {
	code := int(int32(dynlib.Call(fn, args)))
	if code == 0 {
		return nil
	}
	return &NCCLError{
		Call: name, Code: code, Text: text(dynlib.Call(n.errorString, []uintptr{uintptr(code)})),
		More: text(dynlib.Call(n.lastError, []uintptr{0})),
	}
}

// text is a C string.
func text(p uintptr) string {
	if p == 0 {
		return ""
	}
	b := *(**byte)(unsafe.Pointer(&p))
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(b), n)) != 0 {
		n++
	}
	return strings.TrimSpace(string(unsafe.Slice(b, n)))
}

// communicators are NCCL's, one a rank. They share memory: one thread makes them, and one ends
// them. Of the calls that end them the last one does the work, and returns when no graph is left
// that was captured with them; whatever waits in their kernels has been woken by then, if the calls
// abort.
type communicators struct {
	lib   *ncclLibrary
	ranks []*communicator

	done     sync.WaitGroup // ranks that still use theirs
	aborted  atomic.Bool
	stopping sync.Once
	stopped  chan struct{} // they have ended
	failed   error         // to end
}

type communicator struct {
	mu     sync.Mutex     // held during calls
	handle atomic.Uintptr // 0: a call that ends it has it
}

// openNCCL makes the communicators. What they hold is told by the driver's count of free memory.
func (l *link) openNCCL() error {
	before, err := l.free()
	if err != nil {
		return err
	}
	c := l.nccl
	c.done.Add(len(l.runners))
	handles, err := c.lib.open(l.runners)
	if err != nil {
		return err
	}
	after, err := l.free()
	for i, r := range l.runners {
		one := &communicator{}
		one.handle.Store(handles[i])
		c.ranks = append(c.ranks, one)
		bytes := int64(0)
		if err == nil {
			bytes = max(before[i]-after[i], 0)
		}
		held := r.options.Ledger.Add(ledger.Holding{
			Owner: "nccl", Kind: "communicator", Device: r.options.Device.UUID,
			Bytes: bytes, Addr: handles[i],
		})
		leave := sync.OnceFunc(c.done.Done)
		r.parts.Add(modelrunner.Part{Owner: "nccl", Bytes: bytes, Stays: 2, Release: func() error {
			leave()
			if err := c.end(); err != nil {
				return err
			}
			return r.options.Ledger.Remove(held)
		}})
	}
	return err
}

// free is every rank's free device memory.
func (l *link) free() ([]int64, error) {
	free := make([]int64, len(l.runners))
	for i, r := range l.runners {
		err := r.worker.Do(func() (err error) {
			free[i], _, err = r.worker.MemInfo()
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return free, nil
}

// open makes a communicator for each runner.
func (n *ncclLibrary) open(runners []*Runner) ([]uintptr, error) {
	handles, devices := make([]uintptr, len(runners)), make([]int32, len(runners))
	for i, r := range runners {
		devices[i] = int32(r.options.Device.Ordinal)
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&handles[0])
	pin.Pin(&devices[0])
	return handles, onThread(func() error {
		return n.call("ncclCommInitAll", n.initAll, uintptr(unsafe.Pointer(&handles[0])), uintptr(len(runners)),
			uintptr(unsafe.Pointer(&devices[0])))
	})
}

// onThread runs f on a thread of its own: NCCL changes its current device.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // to its end
		done <- f()
	}()
	return <-done
}

// end destroys the communicators when all ranks have left theirs, or when one does not: its Close
// says why. What an abort has begun it waits for.
func (c *communicators) end() error {
	all := make(chan struct{})
	go func() {
		c.done.Wait()
		close(all)
	}()
	select {
	case <-all:
	case <-time.After(closeTimeout / 3):
	}
	c.stop("ncclCommDestroy", c.lib.destroy)
	select {
	case <-c.stopped:
		return c.failed
	case <-time.After(closeTimeout / 3):
		return fmt.Errorf("NCCL has not ended its communicators after %s: it waits for every graph that a rank has captured with them", closeTimeout/3)
	}
}

// abort wakes ranks that wait in NCCL's kernels for one that will not come. It does not wait:
// NCCL's call returns when the ranks' graphs are gone, which is at their Close.
func (c *communicators) abort() {
	c.aborted.Store(true)
	c.stop("ncclCommAbort", c.lib.abort)
}

// stop begins to end the communicators, unless that has begun.
func (c *communicators) stop(name string, fn uintptr) {
	c.stopping.Do(func() {
		go func() {
			defer close(c.stopped)
			err := onThread(func() (err error) {
				for _, one := range c.ranks {
					err = errors.Join(err, c.lib.call(name, fn, one.take()))
				}
				return err
			})
			if fn == c.lib.destroy { // after an abort there is nothing left to try
				c.failed = err
			}
		}()
	})
}

// take is the handle, for the call that ends it. A rank's thread may be in a call: NCCL lets it be
// woken there, but not begin another one.
func (o *communicator) take() uintptr {
	idle := o.mu.TryLock()
	for tries := 0; !idle && tries < 1000; tries++ {
		time.Sleep(time.Millisecond)
		idle = o.mu.TryLock()
	}
	if idle {
		defer o.mu.Unlock()
	}
	return o.handle.Swap(0)
}

// usable is an error after an abort: graphs captured with the communicators would give wrong sums.
func (c *communicators) usable() error {
	if c != nil && c.aborted.Load() {
		return fmt.Errorf("%w: NCCL's communicators were aborted; a new group is needed", modelrunner.ErrAborted)
	}
	return nil
}

// reduceNCCL is reduce by NCCL: parts become one, which is summed in its place and then added to to.
func (r *reducer) reduceNCCL(to int64, n, parts int, bias int64) error {
	w, y := &r.work, r.work.ptr(r.work.y)
	grid := cuda.Dim{X: (n/4 + 255) / 256}
	if parts > 1 {
		if err := r.run("reduce_parts", grid, 256, 0, y, y, parts, int64(n), n/4); err != nil {
			return err
		}
	}
	if err := r.link.nccl.sum(r, y, n); err != nil {
		return err
	}
	return r.run("reduce_into", grid, 256, 0, w.ptr(to), y, 1, int64(n), r.at(bias), w.h.kb*32, n/4)
}

// sum queues the all-reduce of n floats in place.
func (c *communicators) sum(r *reducer, p cuda.DevicePtr, n int) error {
	const float32s, sum = 7, 0
	one := c.ranks[r.share.Rank]
	one.mu.Lock()
	defer one.mu.Unlock()
	if err := c.usable(); err != nil {
		return err
	}
	return c.lib.call("ncclAllReduce", c.lib.allReduce, uintptr(p), uintptr(p), uintptr(n), float32s, sum,
		one.handle.Load(), r.stream.Handle())
}
