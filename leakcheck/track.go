package leakcheck

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
	"weak"

	"github.com/enginetest/enginetest/internal/backoff"
	"github.com/enginetest/enginetest/leakcheck/internal/retain"
	"github.com/enginetest/enginetest/ledger"
)

// ErrNotTrackable is wrapped by the error of a value that the garbage collector cannot answer for:
// nil, a global variable, memory outside the Go heap, or an object so small that the allocator
// packs it with strangers.
var ErrNotTrackable = errors.New("leakcheck: not trackable")

// Ref is a tracked object. It holds the object weakly and never keeps it alive.
type Ref struct {
	name  string
	typ   reflect.Type
	size  uintptr
	weak  weak.Pointer[byte]
	freed *atomic.Bool
	err   error
	cfg   config

	resurrected bool // the weak pointer was nil at the verdict, the cleanup has not run
}

// Track watches the object that v refers to: a pointer's target, a slice's array, a string's bytes,
// a map, a channel, or a func's closure. [Ref.Released] tells whether it is gone. A value that
// cannot be tracked makes Released return an error that wraps [ErrNotTrackable].
//
// The object must be on the Go heap and of 16 bytes or more, or hold a pointer: the allocator packs
// smaller ones together, and one keeps all.
func Track(name string, v any, opts ...Option) *Ref {
	r := &Ref{name: name, cfg: configure(opts), freed: new(atomic.Bool)}
	r.err = r.watch(reflect.ValueOf(v))
	return r
}

// Err is why the object cannot be tracked, an error that wraps [ErrNotTrackable]; nil when it can.
func (r *Ref) Err() error { return r.err }

func (r *Ref) watch(v reflect.Value) (err error) {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: %q: %s", ErrNotTrackable, r.name, fmt.Sprintf(format, a...))
	}
	if !v.IsValid() {
		return bad("nil")
	}
	r.typ = v.Type()
	switch v.Kind() {
	case reflect.Pointer:
		r.size = r.typ.Elem().Size()
		if !hasPointers(r.typ.Elem()) && r.size < 16 {
			return bad("%s points to %d bytes without a pointer: the allocator packs objects under 16 bytes together, so a stranger can keep this one; "+
				"track what holds it", r.typ, r.size)
		}
	case reflect.Slice:
		r.size = uintptr(v.Cap()) * r.typ.Elem().Size()
		if r.size == 0 || !hasPointers(r.typ.Elem()) && r.size < 16 {
			return bad("the array of this %s has %d bytes: too small to track", r.typ, r.size)
		}
	case reflect.String:
		if r.size = uintptr(v.Len()); r.size < 16 {
			return bad("a string of %d bytes is too small to track", r.size)
		}
	case reflect.Map, reflect.Chan, reflect.Func, reflect.UnsafePointer:
	default:
		return bad("%s is not a pointer, slice, string, map, channel or func", r.typ)
	}
	p := object(v)
	if p == nil {
		return bad("nil %s", r.typ)
	}
	defer func() { // AddCleanup panics for memory that is not Go's
		if e := recover(); e != nil {
			err = bad("%s at %#x is not on the Go heap (%v): only the garbage collector's objects can be tracked; device memory belongs in a ledger", r.typ, uintptr(p), e)
		}
	}()
	if c := runtime.AddCleanup((*byte)(p), func(f *atomic.Bool) { f.Store(true) }, r.freed); c == (runtime.Cleanup{}) {
		return bad("%s at %#x is a global variable or constant: it is never collected", r.typ, uintptr(p))
	}
	r.weak = weak.Make((*byte)(p))
	return nil
}

// object returns the address of what v refers to. For a func that is its closure; reflect would
// return its code.
func object(v reflect.Value) unsafe.Pointer {
	switch v.Kind() {
	case reflect.Func:
		f := reflect.New(v.Type())
		f.Elem().Set(v)
		return *(*unsafe.Pointer)(f.UnsafePointer())
	case reflect.String:
		return unsafe.Pointer(unsafe.StringData(v.String()))
	}
	return v.UnsafePointer()
}

func hasPointers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Array:
		return t.Len() > 0 && hasPointers(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if hasPointers(t.Field(i).Type) {
				return true
			}
		}
		return false
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint,
		reflect.Uint8, reflect.Uint16,
		reflect.Uint32, reflect.Uint64, reflect.Uintptr, reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return false
	}
	return true
}

// Released waits until the object is gone, and returns nil; otherwise a [*Error] with the shortest
// path that keeps it. It collects garbage until nothing changes any more (three cycles without
// progress, and the patience spent), so a finalizer chain or a sync.Pool does not count as a leak.
// The context bounds only the waiting between collections.
//
//go:noinline
func (r *Ref) Released(ctx context.Context) error { return Released(ctx, r) }

// Released is [Ref.Released] for many objects at once: one series of collections, one search, and
// findings grouped by their cause.
func Released(ctx context.Context, refs ...*Ref) error {
	var errs []error
	var watched []*Ref
	cfg := config{}
	for _, r := range refs {
		if r.err != nil {
			errs = append(errs, r.err)
			continue
		}
		watched = append(watched, r)
		cfg.allow = append(cfg.allow, r.cfg.allow...)
		cfg.patience = max(cfg.patience, r.cfg.patience)
		cfg.noPaths = cfg.noPaths || r.cfg.noPaths
	}
	start := time.Now()
	left, gcs, stop := collect(ctx, watched, cfg)
	defer stop()
	if cfg.noPaths {
		left = blamed(left)
	}
	if len(left) > 0 {
		errs = append(errs, newError(describe(left, time.Since(start), gcs, cfg), cfg.allow))
	}
	return errors.Join(errs...)
}

// collect runs the garbage collector until all refs are gone, or three cycles in a row brought
// nothing and the patience is spent.
//
// The last collection ends with the patience, and does not begin there: on a large heap it takes a
// while. When an eighth of the patience is spent, it starts to prepare the explanation; stop ends that.
func collect(ctx context.Context, refs []*Ref, cfg config) (left []*Ref, gcs int, stop func()) {
	watch, patience := startWatch(), cfg.patience
	looks := backoff.New(time.Millisecond, 200*time.Millisecond)
	stop = func() {}
	preparing := cfg.noPaths
	left = unfreed(slices.Clone(refs))
	for idle := 0; len(left) > 0; {
		began := time.Now()
		runtime.GC()
		took := time.Since(began)
		gcs++
		before, held := len(left), reachable(left)
		if left = unfreed(left); len(left) < before || reachable(left) < held {
			idle = 0
			continue
		}
		if idle++; idle <= 3 {
			dropStopped()
		}
		if idle == 3 {
			left = blamed(left)
		}
		if end := watch.spent() >= patience || ctx.Err() != nil; idle >= 3 && end {
			break
		}
		if !preparing && idle >= 3 && watch.spent() >= patience/8 {
			preparing, stop = true, retain.Prepare()
		}
		_ = looks.WaitAtMost(ctx, beforeLast(patience-watch.spent(), took)) // the context is looked at above
	}
	return left, gcs, stop
}

// beforeLast is how long to wait for the last collection, of what is left of the patience: so that it
// ends then, if it takes no longer than the one before, and half of the time in any case.
func beforeLast(left, took time.Duration) time.Duration {
	return max(left-took, left/2)
}

// dropStopped makes each of Go's processors drop its stopped timers. One that was stopped stays
// with its function on the processor that it was set on, until that one next looks at its timers
// and more than a quarter of them are stopped, or until it was due: what it keeps until then is not
// a leak.
func dropStopped() {
	n := int32(runtime.GOMAXPROCS(0)) //nolint:gosec // a number of processors
	var here atomic.Int32
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			here.Add(1)
			// each on a processor of its own; a count, because time stands still in synctest
			for spins := 0; here.Load() < n && spins < 1<<22; spins++ {
			}
			// a quarter of 256; all at once: the last one of a heap goes by itself when it was
			// stopped
			var more [64]*time.Timer
			for i := range more {
				more[i] = time.AfterFunc(time.Hour, func() {})
			}
			for _, timer := range more {
				timer.Stop()
			}
		})
	}
	wg.Wait()
}

// unfreed keeps the refs whose cleanup has not run. Cleanups run on goroutines of their own just
// after a collection, so an object that is unreachable already gets a few milliseconds, and as long
// as the runtime still has cleanups to run, a second.
func unfreed(refs []*Ref) []*Ref {
	start := time.Now()
	for spins := 0; ; spins++ {
		pending := 0
		refs = slices.DeleteFunc(refs, func(r *Ref) bool {
			if r.freed.Load() {
				return true
			}
			if !r.reachable() {
				pending++
			}
			return false
		})
		waited := time.Since(start)
		if pending == 0 || waited > time.Second || waited > 5*time.Millisecond && !pendingCleanups() {
			return refs
		}
		if runtime.Gosched(); spins > 50 {
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// reachable counts the refs whose object is.
func reachable(refs []*Ref) (n int) {
	for _, r := range refs {
		if r.reachable() {
			n++
		}
	}
	return n
}

//go:noinline
func (r *Ref) reachable() bool { return r.weak.Value() != nil }

// describe turns survivors into findings.
func describe(left []*Ref, took time.Duration, gcs int, cfg config) []Finding {
	var out []Finding
	for _, r := range left {
		f := Finding{Kind: KindReference, Name: r.name, Text: r.verdict(took, gcs)}
		f.Signature = fmt.Sprintf("%s: %s tracked as %s", KindReference, r.typ, r.name)
		out = append(out, f)
	}
	if cfg.noPaths {
		return out
	}
	return explain(left, out)
}

//go:noinline
func (r *Ref) address() uint64 { return uint64(uintptr(unsafe.Pointer(r.weak.Value()))) }

// verdict says that the object is still there, and what it costs.
func (r *Ref) verdict(took time.Duration, gcs int) string {
	s := fmt.Sprintf("%s (tracked as %q) ", r.typ, r.name)
	if r.resurrected = !r.reachable(); r.resurrected {
		return s + fmt.Sprintf("was unreachable once, but a finalizer brought it back: its memory is not free after %s (%d GCs)", round(took), gcs)
	}
	s += fmt.Sprintf("is still reachable after %s (%d GCs)", round(took), gcs)
	if m := r.deviceMemory(); m != "" {
		s += "; it keeps " + m
	}
	return s
}

// deviceMemory returns "7.2 GiB of device memory (owner weights)", or "".
func (r *Ref) deviceMemory() string {
	var bytes int64
	var owners []string
	for _, m := range r.cfg.memory {
		rep := m.reporter()
		if rep == nil {
			continue
		}
		for _, h := range rep.Holdings() {
			if len(m.owners) > 0 && !slices.Contains(m.owners, h.Owner) {
				continue
			}
			bytes += h.Bytes
			if !slices.Contains(owners, h.Owner) {
				owners = append(owners, h.Owner)
			}
		}
	}
	if bytes == 0 {
		return ""
	}
	return fmt.Sprintf("%s of device memory (owner %s)", ledger.FormatBytes(bytes), strings.Join(owners, ", "))
}

// round cuts a duration to what a reader needs: "1.2s", "35ms".
func round(d time.Duration) time.Duration {
	for _, unit := range []time.Duration{time.Minute, time.Second, 10 * time.Millisecond} {
		if d > 10*unit {
			return d.Round(unit / 10)
		}
	}
	return d.Round(100 * time.Microsecond)
}
