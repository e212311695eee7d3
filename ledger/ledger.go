// Package ledger records who owns device memory.
//
// Every allocator of the project keeps one Ledger: each live allocation is a [Holding] with an
// owner (the component that asked for it), a kind (how it was obtained) and, when stacks are
// recorded, the place of the call. An engine that has shut down has an empty ledger; what is left
// is a leak with a name. Allocators of other engines can keep one too: the checks of leakcheck take
// any [Reporter].
package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// Reporter is whatever can list its live allocations: a Ledger, an engine, a device.
type Reporter interface {
	Holdings() []Holding
}

// Holding is one live allocation.
type Holding struct {
	Owner  string // the component: "weights", "kv_cache", "workspace", …
	Kind   string // how it was obtained: "mapped", "file", "plain", "async", "vmm", "pinned", "graph", …
	Device string // where: "cpu:0", a GPU's UUID
	Bytes  int64
	Addr   uintptr  // address or handle; 0 when there is none
	Stack  []string // "function file:line", innermost first; nil unless the ledger records stacks
}

// String returns "kv_cache 64.0 MiB on cpu:0 (mapped)", and the first frame of the stack when there
// is one.
func (h Holding) String() string {
	s := fmt.Sprintf("%s %s on %s (%s)", h.Owner, FormatBytes(h.Bytes), h.Device, h.Kind)
	if len(h.Stack) > 0 {
		s += " allocated by " + h.Stack[0]
	}
	return s
}

// ErrUnknownID is returned by Remove for an allocation that is not (or no longer) live: a double
// free, or a free in the wrong ledger.
var ErrUnknownID = errors.New("ledger: no live allocation with this id")

// ID names one live allocation of one Ledger.
type ID uint64

// Ledger is a list of live allocations. The zero value is ready to use, records no stacks, and is
// safe for concurrent use.
type Ledger struct {
	stacks bool
	once   sync.Once
	made   *books
}

// New returns an empty ledger; with stacks it records the call stack of every Add (about 1 µs
// each).
func New(stacks bool) *Ledger { return &Ledger{stacks: stacks} }

// Add enters an allocation.
func (l *Ledger) Add(h Holding) ID {
	if l.stacks && h.Stack == nil {
		h.Stack = callers(3)
	}
	return l.books().add(h)
}

// Remove strikes an allocation out; ErrUnknownID when it is not live.
func (l *Ledger) Remove(id ID) error { return l.books().remove(id) }

// Holdings lists the live allocations, largest first, in a stable order.
func (l *Ledger) Holdings() []Holding { return l.books().Holdings() }

// Bytes is the sum of the live allocations.
func (l *Ledger) Bytes() int64 { b, _ := l.books().sums(); return b }

// Peak is the largest sum of live allocations so far.
func (l *Ledger) Peak() int64 { _, peak := l.books().sums(); return peak }

// Books returns a reporter of what is in the ledger that does not keep the ledger alive, nor what
// contains it. It still answers after the ledger was collected: what is left then was dropped by
// its owner.
func (l *Ledger) Books() Reporter { return l.books() }

func (l *Ledger) books() *books {
	l.once.Do(func() { l.made = &books{live: map[ID]Holding{}} })
	return l.made
}

// books are the contents of a Ledger.
type books struct {
	mu    sync.Mutex
	next  ID
	live  map[ID]Holding
	bytes int64
	peak  int64
}

func (b *books) add(h Holding) ID {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	b.live[b.next] = h
	b.bytes += h.Bytes
	b.peak = max(b.peak, b.bytes)
	return b.next
}

func (b *books) remove(id ID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	h, ok := b.live[id]
	if !ok {
		return fmt.Errorf("%w: %d", ErrUnknownID, id)
	}
	delete(b.live, id)
	b.bytes -= h.Bytes
	return nil
}

// Holdings lists the live allocations, largest first, in a stable order.
func (b *books) Holdings() []Holding {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := make([]ID, 0, len(b.live))
	for id := range b.live {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(x, y ID) int {
		return cmp.Or(cmp.Compare(b.live[y].Bytes, b.live[x].Bytes), cmp.Compare(x, y))
	})
	out := make([]Holding, len(ids))
	for i, id := range ids {
		out[i] = b.live[id]
	}
	return out
}

func (b *books) sums() (bytes, peak int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes, b.peak
}

// ByOwner adds up holdings per owner.
func ByOwner(hs []Holding) map[string]int64 {
	m := map[string]int64{}
	for _, h := range hs {
		m[h.Owner] += h.Bytes
	}
	return m
}

// ByDevice adds up holdings per device.
func ByDevice(hs []Holding) map[string]int64 {
	m := map[string]int64{}
	for _, h := range hs {
		m[h.Device] += h.Bytes
	}
	return m
}

// Format prints holdings one per line, each with its stack when there is one.
func Format(hs []Holding) string {
	var b strings.Builder
	for _, h := range hs {
		fmt.Fprintf(&b, "    %10s  %-12s %s (%s)\n", FormatBytes(h.Bytes), h.Owner, h.Device, h.Kind)
		for _, f := range h.Stack {
			fmt.Fprintf(&b, "                %s\n", f)
		}
	}
	return b.String()
}

// FormatBytes prints a size with a binary unit: "512 B", "63.1 GiB".
func FormatBytes(n int64) string {
	const units = "KMGTPE"
	if -1024 < n && n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/1024, 0
	for ; math.Abs(f) >= 1023.95 && i < len(units)-1; i++ {
		f /= 1024
	}
	return fmt.Sprintf("%.1f %ciB", f, units[i])
}

// callers returns up to 16 frames of the calling goroutine as "function file:line", skipping the
// given number of frames.
func callers(skip int) []string {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(skip, pcs)])
	var out []string
	for {
		f, more := frames.Next()
		if f.Function == "" || strings.HasPrefix(f.Function, "runtime.goexit") {
			return out
		}
		out = append(out, fmt.Sprintf("%s %s:%d", f.Function, f.File, f.Line))
		if !more {
			return out
		}
	}
}
