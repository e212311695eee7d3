// Package engines tracks which engines of this process are open, and where each was opened, so that
// memory of one that was forgotten has a name. It keeps no engine alive.
package engines

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/enginetest/enginetest/ledger"
)

// Entry is one open engine.
type Entry struct {
	Name   string    // for people: "engine"
	Place  string    // of the call that opened it: "app_test.go:44"
	Opened time.Time // set by Open
	// Holdings lists its device memory now; it must not refer to the engine. Nil: not known.
	Holdings func() []ledger.Holding
	PIDs     []int // its processes; none: it runs in this one

	owner   weak.Pointer[byte]
	managed bool // a fixture sees to its end
}

// On is how much the engine holds on one device.
func (e Entry) On(device string) int64 {
	if e.Holdings == nil {
		return 0
	}
	return ledger.ByDevice(e.Holdings())[device]
}

// Bytes is how much device memory the engine holds.
func (e Entry) Bytes() (sum int64) {
	if e.Holdings == nil {
		return 0
	}
	for _, h := range e.Holdings() {
		sum += h.Bytes
	}
	return sum
}

// String says where the engine was opened, and that it is still there.
func (e Entry) String() string {
	return fmt.Sprintf("%s opened at %s, never shut down", cmp.Or(e.Name, "engine"), cmp.Or(e.Place, "an unknown place"))
}

var open struct {
	sync.Mutex
	entries map[*Handle]*Entry
}

// Handle is a registration.
type Handle struct{ _ byte }

// Open enters an engine.
func Open(e Entry) *Handle {
	open.Lock()
	defer open.Unlock()
	if open.entries == nil {
		open.entries = map[*Handle]*Entry{}
	}
	h := new(Handle)
	e.Opened = time.Now()
	open.entries[h] = &e
	return h
}

// Close strikes the engine out: it was shut down. A nil Handle is none.
func (h *Handle) Close() {
	open.Lock()
	defer open.Unlock()
	delete(open.entries, h)
}

// Own says what value the engine's users have of it, for [Manage]. It is held weakly.
func (h *Handle) Own(engine any) {
	open.Lock()
	defer open.Unlock()
	if e := open.entries[h]; e != nil {
		e.owner = identity(engine)
	}
}

// Manage says that a fixture sees to the end of an engine that is entered, and returns its
// registration; nil when there is none.
func Manage(engine any) *Handle {
	id := identity(engine)
	if id == (weak.Pointer[byte]{}) {
		return nil
	}
	open.Lock()
	defer open.Unlock()
	for h, e := range open.entries {
		if e.owner == id {
			e.managed = true
			return h
		}
	}
	return nil
}

// Manage is the function Manage for a registration: true when a fixture sees to the engine's end,
// false when no fixture can any more.
func (h *Handle) Manage(yes bool) {
	open.Lock()
	defer open.Unlock()
	if e := open.entries[h]; e != nil {
		e.managed = yes
	}
}

// Forgotten lists the engines that were opened since then and not shut down, and that no fixture
// sees to; the oldest first.
func Forgotten(since time.Time) (list []Entry) {
	open.Lock()
	defer open.Unlock()
	for e := range maps.Values(open.entries) {
		if !e.managed && e.Opened.After(since) {
			list = append(list, *e)
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Opened.Before(list[j].Opened) })
	return list
}

// identity is a pointer's address, held weakly; zero for what has none.
func identity(v any) weak.Pointer[byte] {
	r := reflect.ValueOf(v)
	if !r.IsValid() || r.Kind() != reflect.Pointer || r.IsNil() {
		return weak.Pointer[byte]{}
	}
	return weak.Make((*byte)(r.UnsafePointer()))
}

// Place is where a user's code called into this module: the innermost frame that is a test's, or
// outside of the packages that open engines.
func Place() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	first := ""
	for {
		f, more := frames.Next()
		if f.Function == "" {
			return first
		}
		at := fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		if strings.HasSuffix(f.File, "_test.go") || !ours(f.Function) {
			if strings.HasPrefix(f.Function, "runtime.") || strings.HasPrefix(f.Function, "testing.") {
				return first
			}
			return at
		}
		first = cmp.Or(first, at)
		if !more {
			return first
		}
	}
}

// ours reports whether a function is of a package that opens engines for others.
func ours(function string) bool {
	const module = "github.com/enginetest/enginetest/"
	rest, ok := strings.CutPrefix(function, module)
	if !ok {
		return false
	}
	pkg, _, _ := strings.Cut(rest, ".")
	return slices.Contains([]string{"internal/engines", "engine", "harness", "runner", "server", "leakcheck"}, pkg)
}
