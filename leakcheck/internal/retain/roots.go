package retain

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/leakcheck/internal/heapdump"
	"github.com/enginetest/enginetest/leakcheck/internal/symbols"
)

// Classes of roots, in the order in which they are searched: a path from the user's own code
// explains more than a shorter one from the runtime.
const (
	userRoots    = iota // the user's variables and frames
	ownerless           // what is alive only because of a finalizer
	runtimeRoots        // variables and frames of the runtime and of the testing package, the calling goroutine
	excused             // what a test framework forgot to clear, and the frames of a test on its way out
	userWords           // words of the user's frames that no stack map names: stack objects, deferred calls, dead slots
	runtimeWords        // the same of other frames
	callerWords         // the same of the calling goroutine
	classes
)

type root struct {
	kind  string // "global", "frame", "word", "context", "finalizer", "cleanup"
	slot  uint64 // where the pointer lies
	val   uint64
	index int // frame, goroutine or finalizer
	note  string

	excused bool
}

// collectRoots lists what the garbage collector starts from.
func (x *explainer) collectRoots() {
	d := x.d
	x.popped()
	x.stopped()
	d.Forget(x.forgotten)
	x.caller = slices.IndexFunc(d.Goroutines, func(g heapdump.Goroutine) bool { return g.Wait == "dumping heap" })
	for i := range d.Segments {
		s := &d.Segments[i]
		for _, off := range d.SegmentPointers(s) {
			if v := binary.LittleEndian.Uint64(s.Data[off:]); d.InHeap(v) {
				class := userRoots
				if x.internalVariable(s.Addr + off) {
					class = runtimeRoots
				}
				x.root(class, root{kind: "global", slot: s.Addr + off, val: v})
			}
		}
	}
	for i := range d.Frames {
		x.frameRoots(i)
	}
	for i, g := range d.Goroutines {
		if g.Context != 0 && i != x.caller {
			x.root(runtimeRoots, root{kind: "context", val: g.Context, index: i})
		}
	}
	for i, f := range d.Finalizers {
		x.root(ownerless, root{kind: "finalizer", val: f.Func, index: i, note: "captured by the finalizer's closure"})
		if f.Queued {
			x.root(ownerless, root{kind: "finalizer", val: f.Object, index: i, note: "waits to be finalized"})
		} else if o := d.Find(f.Object); o >= 0 {
			d.Pointers(o, func(off, v uint64) {
				x.root(ownerless, root{kind: "finalizer", slot: d.Addr(o) + off, val: v, index: i})
			})
		}
	}
}

func (x *explainer) root(class int, r root) {
	r.excused = class == excused
	x.search.Root(class, len(x.roots), r.val)
	x.roots = append(x.roots, r)
}

// own reports whether a function belongs to this package or to the ones that call it: their frames
// hold addresses of what they look for.
func own(fn string) bool {
	return strings.HasPrefix(fn, "github.com/enginetest/enginetest/leakcheck.") ||
		strings.HasPrefix(fn, "github.com/enginetest/enginetest/leakcheck/internal/retain.") ||
		strings.HasPrefix(fn, "github.com/enginetest/enginetest/leakcheck/internal/heapdump.")
}

func (x *explainer) frameRoots(i int) {
	d, f := x.d, &x.d.Frames[i]
	precise, words := userRoots, userWords
	if internalName(f.Func) || d.Goroutines[f.Goroutine].System {
		precise, words = runtimeRoots, runtimeWords
	}
	if f.Goroutine == x.caller {
		precise, words = runtimeRoots, callerWords
	}
	if x.left(f) {
		precise, words = excused, excused
	}
	isOwn, test := own(f.Func), false
	if isOwn { // a test in one of these packages may plant a leak
		_, file, _ := symbols.Line(f.PC, nil)
		test = strings.HasSuffix(file, "_test.go")
	}
	named := map[uint64]bool{}
	for _, off := range d.FramePointers(f) {
		named[off] = true
	}
	for off := uint64(0); off+8 <= uint64(len(f.Data)); off += 8 {
		v := binary.LittleEndian.Uint64(f.Data[off:])
		if !d.InHeap(v) {
			continue
		}
		switch {
		case isOwn && !test:
		case named[off]:
			x.root(precise, root{kind: "frame", slot: f.SP + off, val: v, index: i})
		case !isOwn: // dead slots of this package may hold what it was asked about
			x.root(words, root{kind: "word", slot: f.SP + off, val: v, index: i})
		}
	}
}

// internalName tells the names of the runtime and the packages next to it.
func internalName(name string) bool {
	for _, p := range []string{
		"runtime.", "internal/", "testing.", "sync.", "time.", "os.", "os/signal.", "reflect.", "syscall.", "runtime/", "flag.", "main..inittask",
		"main.main", "type:", "go:", "unicode.", "vendor/", "go.shape.",
	} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

func (x *explainer) internalVariable(a uint64) bool {
	if x.names == nil {
		return false
	}
	if v, ok := x.names.Global(a); ok {
		return internalName(v.Name) || own(v.Name)
	}
	users, _ := x.names.UsedBy(a)
	return len(users) > 0 && !slices.ContainsFunc(users, func(f string) bool { return !internalName(f) && !own(f) })
}

// describe names a root and says what it points to.
func (x *explainer) describe(r root) (view, Step) {
	switch r.kind {
	case "global":
		return x.describeGlobal(r)
	case "frame", "word":
		return x.describeFrame(r)
	case "context":
		g := x.d.Goroutines[r.index]
		return x.closureAt(r.val), Step{
			Kind: "goroutine", Name: x.goroutineName(r.index, ""),
			key: symbols.FuncOf(g.GoPC),
		}
	case "finalizer":
		return x.describeFinalizer(r)
	case "cleanup":
		return x.closureAt(r.val), Step{Kind: "cleanup", Name: r.note, Addr: uintptr(r.slot), key: r.note}
	}
	return view{}, Step{Kind: "unknown root", Name: "(no root that the heap dump lists)", key: "unknown root"}
}

// goroutineName returns `20 [chan receive] in llm.(*Loop).run llm/loop.go:75, created by
// llm.Start`.
func (x *explainer) goroutineName(i int, at string) string {
	g := x.d.Goroutines[i]
	state := map[uint64]string{1: "runnable", 2: "running", 3: "syscall"}[g.Status]
	if state == "" {
		state = g.Wait
	}
	who := ""
	if i == x.caller {
		state, who = "running", " (the one that checks)"
	}
	s := fmt.Sprintf("%d [%s]%s%s", g.ID, state, who, at)
	if fn := symbols.FuncOf(g.GoPC); fn != "" && !internalName(fn) {
		_, file, line := symbols.Line(g.GoPC, nil)
		s += ", created by " + place(fn, file, line)
	}
	return s
}

func place(fn, file string, line int) string {
	if file == "" {
		return shortFunc(fn)
	}
	return fmt.Sprintf("%s %s:%d", shortFunc(fn), shortFile(file), line)
}

// shortFile keeps the package's folder, without its version, and the file: "ginkgo/suite.go".
func shortFile(f string) string {
	dir := filepath.Dir(f)
	name, _, _ := strings.Cut(filepath.Base(dir), "@")
	if majorVersion.MatchString(name) {
		name, _, _ = strings.Cut(filepath.Base(filepath.Dir(dir)), "@")
	}
	return name + "/" + filepath.Base(f)
}

func (x *explainer) describeFrame(r root) (view, Step) {
	f := &x.d.Frames[r.index]
	st := Step{Kind: "goroutine", Addr: uintptr(r.slot)}
	l, at, in, named := x.localAt(f, r.slot)
	if !named {
		in = f
	}
	fn, file, line := in.Func, "", 0
	frames := x.d.Goroutines[f.Goroutine].Frames
	first := slices.Index(frames, x.index(in))
	// "go f(x)" compiles to a nameless function that calls f: it is f that the reader knows
	if first > 0 && goWrapper.MatchString(in.Func) {
		if callee := x.d.Frames[frames[first-1]].Func; !internalName(callee) {
			first--
		}
	}
	for at := max(0, first); at < len(frames); at++ {
		// when it is blocked in the runtime, or in this package, name the user's function that
		// called
		c := &x.d.Frames[frames[at]]
		if n, f, l := symbols.Line(c.PC, func(name string) bool { return internalName(name) || own(name) }); n != "" {
			fn, file, line = n, f, l
			break
		}
	}
	st.Name, st.key = x.goroutineName(f.Goroutine, " in "+place(fn, file, line)), "goroutine in "+fn
	if caller := x.caughtIn(fn, frames, max(0, first), x.d.Goroutines[f.Goroutine].GoPC); caller != "" {
		st.key += " < " + caller
	}
	label := fmt.Sprintf("stack slot +%#x", r.slot-f.SP)
	if named {
		label = "local " + l.Name
		if strings.HasPrefix(in.Func, "runtime.") { // what these are called in the runtime's code says nothing
			label = "in " + in.Func
		}
	}
	e := edge{label: label}
	switch {
	case named && l.Boxed && l.Type != nil:
		e = edge{label: label, ok: true, next: oneValue(l.Type, r.val)}
	case named && l.Type != nil && at < uint64(l.Type.Size()):
		e = x.field(l.Type, r.slot-at, at, label)
	case r.kind == "frame":
		e = x.ifaceAt(r.slot, label)
	case !named:
		e.label += " (not in the stack map: an address-taken variable, a deferred call or a dead slot)"
	}
	st.Edge = e.label
	return e.next, st
}

// plumbing matches functions of the standard library that anything may wait in: their names would
// accept every goroutine that does.
var plumbing = regexp.MustCompile(`^(io|bufio|net|context|sync|crypto/tls|golang\.org/x/sync/errgroup)\.`)

// caughtIn names who called or created the plumbing that a goroutine stands in, or what that calls
// (WaitGroup.Go); "" when it stands in none.
func (x *explainer) caughtIn(fn string, frames []int, first int, created uint64) string {
	if !plumbing.MatchString(fn) {
		return ""
	}
	creator := symbols.FuncOf(created)
	inner := slices.Clone(frames[:first])
	slices.Reverse(inner)
	for _, c := range slices.Concat(x.funcs(frames[first:]), []string{creator}, x.funcs(inner)) {
		if c != "" && !plumbing.MatchString(c) && !internalName(c) {
			return c
		}
	}
	return creator
}

func (x *explainer) funcs(frames []int) (names []string) {
	for _, k := range frames {
		names = append(names, x.d.Frames[k].Func)
	}
	return names
}

var goWrapper = regexp.MustCompile(`\.gowrap\d+$`)

// index is the inverse of &x.d.Frames[i].
func (x *explainer) index(f *heapdump.Frame) int {
	return slices.IndexFunc(x.d.Frames, func(g heapdump.Frame) bool { return g.SP == f.SP && g.PC == f.PC })
}

// localAt finds the variable that lies in a stack slot: one of the frame's own, or an argument of
// the function that it called, which spills its arguments into the caller's frame. at is the slot's
// offset in the variable.
func (x *explainer) localAt(f *heapdump.Frame, slot uint64) (l symbols.Local, at uint64, in *heapdump.Frame, ok bool) {
	for _, k := range x.d.Goroutines[f.Goroutine].Frames {
		c := &x.d.Frames[k]
		end := c.SP + uint64(len(c.Data))
		if c != f && end != f.SP {
			continue
		}
		locals, _ := x.names.Locals(c.Entry, c.PC)
		off := int64(slot) - int64(end)
		for _, l := range locals {
			if off >= l.Offset && off < l.Offset+l.Size && (c == f || l.Offset >= 0) {
				return l, uint64(off-l.Offset) + uint64(l.In), c, true
			}
		}
	}
	return l, 0, nil, false
}

func (x *explainer) describeFinalizer(r root) (view, Step) {
	f := x.d.Finalizers[r.index]
	fn, of := symbols.FuncAt(f.Code), "an object"
	t := x.types.At(f.ObjectType)
	if t != nil {
		of = t.String()
	}
	st := Step{
		Kind: "finalizer", Name: fmt.Sprintf("%s set on %s at %#x", fn, of, f.Object), Addr: uintptr(f.Object),
		key: "finalizer " + fn,
	}
	switch {
	case r.slot == 0 && r.val == f.Func:
		st.Edge = r.note
		return x.closureAt(r.val), st
	case t == nil || t.Kind() != reflect.Pointer:
		st.Edge = r.note
		return view{}, st
	case r.slot == 0:
		st.Edge = r.note
		return oneValue(t.Elem(), f.Object), st
	}
	e := x.edge(oneValue(t.Elem(), f.Object), r.slot)
	st.Edge = e.label
	return e.next, st
}
