package cuda

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/enginetest/enginetest/ledger"
)

// The kinds of holdings in the ledger.
const (
	kindContext = "context" // the worker's primary context: bytes unknown, about 500 MiB
	kindPlain   = "plain"   // cuMemAlloc
	kindPinned  = "pinned"  // host memory, page-locked, on [HostDevice]
	// host memory of another owner, page-locked by Register: 0 bytes here, who allocated it has
	// entered it
	kindLocked = "locked"
	kindStream = "stream"
	kindEvent  = "event"
	kindModule = "module"
	kindGraph  = "graph"
	kindExec   = "graph exec" // an instantiated graph
)

// HostDevice is the device of host memory in the ledger.
const HostDevice = "host"

// resource is what a worker's allocations have in common: an entry in the ledger and a way to give
// it back, once.
type resource struct {
	w       *Worker
	id      ledger.ID
	holding ledger.Holding
	freed   atomic.Bool  // by its owner (on a dead context the driver still has it until Close), or by Close
	release func() error // returns it to the driver
}

// add enters a new resource into the ledger and the worker's list.
func (w *Worker) add(r *resource, kind, owner string, bytes int64, addr uintptr, release func() error) {
	if owner == "" {
		owner = "unowned"
	}
	device := w.dev.UUID
	if kind == kindPinned || kind == kindLocked {
		device = HostDevice
	}
	r.w, r.release = w, release
	r.holding = ledger.Holding{Owner: owner, Kind: kind, Device: device, Bytes: bytes, Addr: addr, Stack: w.stack()}
	r.id = w.ledger.Add(r.holding)
	w.live[r.id] = r
}

// String returns "weights (plain, 1.0 GiB)".
func (r *resource) String() string {
	if r.holding.Bytes == 0 {
		return fmt.Sprintf("%s (%s)", r.holding.Owner, r.holding.Kind)
	}
	return fmt.Sprintf("%s (%s, %s)", r.holding.Owner, r.holding.Kind, ledger.FormatBytes(r.holding.Bytes))
}

// use checks that r may be used in a call on w.
func (w *Worker) use(call string, r *resource) error {
	if r == nil || r.w == nil {
		return &MisuseError{call, ErrArguments, "a resource that no worker made"}
	}
	if r.freed.Load() {
		return &MisuseError{call, ErrUseAfterFree, r.String()}
	}
	if r.w != w {
		return &MisuseError{call, ErrWrongWorker, fmt.Sprintf("%s was made by %s and used with %s", r, r.w.name,
			w.name)}
	}
	return nil
}

// enter checks thread, worker and resource at the head of a method of r.
func (r *resource) enter(call string) error {
	if r == nil || r.w == nil {
		return &MisuseError{call, ErrArguments, "a resource that no worker made"}
	}
	if err := r.w.enter(call); err != nil {
		return err
	}
	return r.w.use(call, r)
}

// free releases r. On a dead context the driver is not asked: Close releases what can be.
func (r *resource) free(call string) error {
	if r == nil || r.w == nil {
		return &MisuseError{call, ErrArguments, "a resource that no worker made"}
	}
	if err := r.w.enterDead(call); err != nil {
		return err
	}
	if r.freed.Load() {
		return &MisuseError{call, ErrDoubleFree, r.String()}
	}
	if r.w.capturing {
		return &MisuseError{call, ErrCapturing, r.String()}
	}
	if r.w.dead.Load() == nil {
		if err := r.release(); err != nil {
			if r.w.dead.Load() == nil {
				return err
			}
			r.freed.Store(true) // the context died of it, or was dead already: Close takes over
			return err
		}
		r.forget()
	}
	r.freed.Store(true)
	return nil
}

// forget strikes r out of the ledger and the worker's list.
func (r *resource) forget() {
	_ = r.w.ledger.Remove(r.id) // there: it is in live as long as it is in the ledger
	delete(r.w.live, r.id)
}

// stack is the caller's stack without the frames of this package, when stacks are recorded.
func (w *Worker) stack() []string {
	if !w.stacks {
		return nil
	}
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	var out []string
	for {
		f, more := frames.Next()
		if f.Function != "" && f.Function != "runtime.goexit" && !ownFrame(f) {
			out = append(out, fmt.Sprintf("%s %s:%d", f.Function, f.File, f.Line))
		}
		if !more {
			return out
		}
	}
}

// ownFrame recognises frames of this package's own code, its tests excepted.
func ownFrame(f runtime.Frame) bool {
	return strings.HasPrefix(f.Function, "github.com/enginetest/enginetest/cuda.") &&
		!strings.HasSuffix(f.File, "_test.go")
}
