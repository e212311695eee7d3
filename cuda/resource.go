package cuda

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
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

// allocations are what a worker has of the driver and has not given back. They are touched on its
// thread only.
type allocations struct {
	ledger *ledger.Ledger
	stacks bool
	device string
	live   map[ledger.ID]*resource
}

// record enters a new resource into the ledger and the list.
func (a *allocations) record(r *resource, h ledger.Holding) {
	if h.Owner == "" {
		h.Owner = "unowned"
	}
	h.Device = a.device
	if h.Kind == kindPinned || h.Kind == kindLocked {
		h.Device = HostDevice
	}
	h.Stack = a.stack()
	r.holding = h
	r.id = a.ledger.Add(h)
	a.live[r.id] = r
}

// forget strikes r out of the ledger and the list.
func (a *allocations) forget(r *resource) {
	_ = a.ledger.Remove(r.id) // there: it is in live as long as it is in the ledger
	delete(a.live, r.id)
}

// remaining lists live resources, those that use others first: the latest first.
func (a *allocations) remaining() []*resource {
	rs := make([]*resource, 0, len(a.live))
	for _, r := range a.live {
		rs = append(rs, r)
	}
	slices.SortFunc(rs, func(x, y *resource) int { return cmp.Compare(y.id, x.id) })
	return rs
}

// add makes r the worker's.
func (w *Worker) add(r *resource, kind, owner string, bytes int64, addr uintptr, release func() error) {
	r.w, r.release = w, release
	w.record(r, ledger.Holding{Owner: owner, Kind: kind, Bytes: bytes, Addr: addr})
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
		return &misuseError{call, errArguments, "a resource that no worker made"}
	}
	if r.freed.Load() {
		return &misuseError{call, ErrUseAfterFree, r.String()}
	}
	if r.w != w {
		return &misuseError{call, errWrongWorker, fmt.Sprintf("%s was made by %s and used with %s", r, r.w.name,
			w.name)}
	}
	return nil
}

// enter checks thread, worker and resource at the head of a method of r.
func (r *resource) enter(call string) error {
	if r == nil || r.w == nil {
		return &misuseError{call, errArguments, "a resource that no worker made"}
	}
	if err := r.w.enter(call); err != nil {
		return err
	}
	return r.w.use(call, r)
}

// free releases r. On a dead context the driver is not asked: Close releases what can be.
func (r *resource) free(call string) error {
	if r == nil || r.w == nil {
		return &misuseError{call, errArguments, "a resource that no worker made"}
	}
	if err := r.w.enterDead(call); err != nil {
		return err
	}
	if r.freed.Load() {
		return &misuseError{call, ErrDoubleFree, r.String()}
	}
	if r.w.capturing {
		return &misuseError{call, errCapturing, r.String()}
	}
	if r.w.dead.Load() == nil {
		if err := r.release(); err != nil {
			if r.w.dead.Load() == nil {
				return err
			}
			r.freed.Store(true) // the context died of it, or was dead already: Close takes over
			return err
		}
		r.w.forget(r)
	}
	r.freed.Store(true)
	return nil
}

// stack is the caller's stack without the frames of this package, when stacks are recorded.
func (a *allocations) stack() []string {
	if !a.stacks {
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

// end strikes r out once the driver has it back; it is a leak unless its owner had freed it.
func (r *resource) end(leak *LeakError) {
	if !r.freed.Swap(true) {
		leak.Freed = append(leak.Freed, r.holding)
	}
	r.w.forget(r)
}
