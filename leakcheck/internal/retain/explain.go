// Package retain explains why objects are alive: it takes a heap dump of this process and finds,
// for each object, the shortest path from a root that keeps it, with names.
package retain

import (
	"cmp"
	"fmt"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/enginetest/enginetest/leakcheck/internal/heapdump"
	"github.com/enginetest/enginetest/leakcheck/internal/symbols"
)

// Target is an object whose retention needs an explanation.
type Target struct {
	Addr  uint64
	Type  reflect.Type // of the reference to it: *T, []T, map, chan, func; nil when it is not known
	Alive func() bool  // reports whether the object is still there; nil: it is
}

// Path is the answer for one Target.
type Path struct {
	Steps   []Step // root first, the target last
	Owner   string // the root and the first object that hangs on it, without addresses, ids and indexes
	Cause   string // the root alone, for a list of known leaks: "global github.com/acme/llm.kwCache"
	Hint    string // advice for the usual culprits
	Reaches uint64 // bytes that can be reached from the target
	On      []int  // other targets that lie on this path, before the target
	Excused bool   // only a test framework, or a test on its way out, keeps it
	Gone    bool   // it was released before the heap was dumped
	Stands  bool   // it was looked at again when all was known, and still leads to the target
	Err     error
}

// Step is one element of a path.
type Step struct {
	Kind string // "global", "goroutine", "finalizer", "cleanup", "timer", "test cleanup", "object", "unknown root"
	Name string
	Edge string // how it refers to the next one
	Type string // of a global
	Note string
	Addr uintptr
	Size uintptr

	key string // in the signature
}

// Options leave sources of names out, for tests.
type Options struct{ Names *symbols.Names }

type explainer struct {
	d      *heapdump.Dump
	names  *symbols.Names
	types  *symbols.Types
	search *heapdump.Search
	roots  []root
	caller int // goroutine that took the dump

	forgotten []uint64 // addresses of words that hold what no one is to blame for
}

var one sync.Mutex // dumps stop the world and fill the disk: one at a time

// Prepare starts to make names ready, while a check that will probably fail still waits; stop ends
// that.
func Prepare() (stop func()) { return symbols.Prepare() }

// Explain finds the paths. An error says why there are none at all; a Path has an error of its own.
func Explain(targets []Target, o Options) (paths []Path, err error) {
	err = withDump(o, func(x *explainer) { paths = x.explain(targets) })
	return paths, err
}

// Sampled lists the addresses of the live objects that the memory profile sampled.
func Sampled() (map[uint64]bool, error) {
	one.Lock()
	defer one.Unlock()
	takeBack()
	d, err := heapdump.Take()
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Sampled(), nil
}

// ExplainSites finds the paths to the largest sampled objects, up to limit of each of these
// allocation sites ("file:line"), without those that were there before; the last step of a path
// says what type they have, when that is known.
func ExplainSites(sites []string, before map[uint64]bool, limit int) (paths []Path, err error) {
	err = withDump(Options{}, func(x *explainer) {
		var targets []Target
		taken := map[string]int{}
		for _, i := range x.largestSampled(before) {
			key := x.userSite(i)
			if slices.Contains(sites, key) && taken[key] < limit {
				taken[key]++
				targets = append(targets, Target{Addr: x.d.Addr(i)})
			}
		}
		paths = x.explain(targets)
	})
	return paths, err
}

// largestSampled lists the sampled objects that were not there before, the largest first: one line
// may allocate a large payload and the small object that points to it.
func (x *explainer) largestSampled(before map[uint64]bool) (objects []int) {
	for a := range x.d.Sampled() {
		if i := x.d.Find(a); i >= 0 && !before[a] {
			objects = append(objects, i)
		}
	}
	slices.SortFunc(objects, func(a, b int) int {
		return cmp.Or(cmp.Compare(x.d.Size(b), x.d.Size(a)), cmp.Compare(a, b))
	})
	return objects
}

// userSite is the innermost place outside the runtime that allocated an object.
func (x *explainer) userSite(i int) string {
	for _, f := range x.d.Site(i) {
		if !internalName(f.Func) {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
	}
	return ""
}

// withDump takes a dump and prepares a search.
//
// The dump comes first: what is allocated before it, such as the tables of names, may take the
// place of an object that has just been released.
func withDump(o Options, f func(x *explainer)) (err error) {
	one.Lock()
	defer one.Unlock()
	if !symbols.Sane() {
		return fmt.Errorf("retain: %s lays out its tables in a way that is not known here: no paths", runtime.Version())
	}
	// the index is garbage right after; a collection in between would double the time
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	takeBack()
	d, err := heapdump.Take()
	if err != nil {
		return err
	}
	defer d.Close()
	defer func() { // a layout that is not what it should be must not take the verdict along
		if e := recover(); e != nil {
			buf := make([]byte, 2048)
			err = fmt.Errorf("retain: the search failed (%v); please report this:\n%s", e,
				buf[:runtime.Stack(buf, false)])
		}
	}()
	x := &explainer{d: d, names: o.Names, types: symbols.LoadTypes(), search: heapdump.NewSearch(d, classes)}
	x.search.Postpone, x.search.PostponeTo = x.scheduler(), runtimeRoots
	f(x)
	return nil
}

// locate finds the targets' objects; -1 for one that was released. An object that is alive after
// the dump was so during it, at the same address.
func (x *explainer) locate(targets []Target) (objects, found []int) {
	for _, t := range targets {
		i := -1
		if t.Alive == nil || t.Alive() {
			i = x.d.Find(t.Addr)
		}
		if objects = append(objects, i); i >= 0 {
			found = append(found, i)
		}
	}
	return objects, found
}

func (x *explainer) explain(targets []Target) []Path {
	objects, found := x.locate(targets)
	if x.names == nil {
		x.names = symbols.Load()
	}
	x.collectRoots()
	if x.search.Run(found, excused) > 0 && x.search.Run(found, excused+1) > 0 {
		found = x.recheck(targets, objects)
		for _, i := range found {
			if !x.search.Found(i) {
				x.fromCleanup(i)
			}
		}
		x.search.Run(found, classes)
	}
	paths := make([]Path, len(targets))
	for k, t := range targets {
		if objects[k] < 0 {
			paths[k].Gone = true
			continue
		}
		paths[k] = x.path(objects[k], t, objects)
	}
	return paths
}

// scheduler tells the runtime's p, m and g objects: everything hangs on these, so a path through
// them says nothing.
func (x *explainer) scheduler() func(int, uint64) bool {
	const header = 8 // objects over 512 bytes start with their type
	descriptors := map[uint64]bool{}
	smallest, largest := uint64(1<<62), uint64(0)
	for _, name := range []string{"runtime.p", "runtime.m", "runtime.mPadded", "runtime.g"} {
		if t := x.types.Named(name); t != nil {
			descriptors[symbols.Descriptor(t)] = true
			n := uint64(t.Size()) + header
			smallest, largest = min(smallest, n), max(largest, n+n/4) // size classes round up by an eighth
		}
	}
	smallest = max(smallest, 512)
	return func(i int, size uint64) bool {
		return size >= smallest && size <= largest && descriptors[x.d.FirstWord(i)]
	}
}

// recheck collects garbage, and strikes out the targets that nothing led to in the dump because
// they were garbage already.
func (x *explainer) recheck(targets []Target, objects []int) (found []int) {
	runtime.GC()
	for k, t := range targets {
		if objects[k] >= 0 && !x.search.Found(objects[k]) && t.Alive != nil && !t.Alive() {
			objects[k] = -1
		}
		if objects[k] >= 0 {
			found = append(found, objects[k])
		}
	}
	return found
}

// fromCleanup looks for a cleanup (runtime.AddCleanup) that keeps an object: the dump does not list
// them.
func (x *explainer) fromCleanup(i int) {
	up, next := x.search.Orphans(i)
	if r, top, ok := findCleanup(x.d, up); ok {
		x.roots = append(x.roots, r)
		x.search.Attach(top, len(x.roots)-1, next)
	}
}

// path names the way to object i.
func (x *explainer) path(i int, t Target, all []int) (p Path) {
	objects, id, ok := x.search.Path(i)
	if !ok {
		up, _ := x.search.Orphans(i)
		p.Err = fmt.Errorf("no root was found: %d objects lead to it, none of them hangs on a root that the dump lists (a cleanup, memory of C, or a goroutine that has moved on)", len(up)-1)
		return p
	}
	for k, o := range objects[:len(objects)-1] {
		for j, other := range all {
			if other == o && k < len(objects)-1 {
				p.On = append(p.On, j)
			}
		}
	}
	if p.Excused = x.roots[id].excused; p.Excused {
		return p
	}
	slots := x.slots(objects)
	first, rootStep := x.describe(x.roots[id])
	views, expected, labels := x.typed(objects, slots, first, x.targetView(i, t))
	p.Steps = x.steps(rootStep, objects, views, expected, labels)
	x.foldRoot(&p)
	x.foldDefer(&p)
	p.Owner, p.Cause = owner(p.Steps)
	p.Hint = x.hint(p.Steps, views, labels)
	p.Reaches, _ = x.d.Reach(i, 1<<17)
	p.Stands = x.stands(x.roots[id], objects, slots)
	return p
}

// targetView is what the caller of Track knows about the object.
func (x *explainer) targetView(i int, t Target) view {
	if t.Type == nil {
		return view{}
	}
	switch t.Type.Kind() {
	case reflect.Pointer:
		return oneValue(t.Type.Elem(), t.Addr)
	case reflect.Slice:
		size := max(1, uint64(t.Type.Elem().Size()))
		return view{kind: value, t: t.Type.Elem(), base: t.Addr, n: (x.d.Addr(i) + x.d.Size(i) - t.Addr) / size}
	case reflect.String:
		return view{kind: value, t: reflect.TypeFor[byte](), base: t.Addr, n: x.d.Addr(i) + x.d.Size(i) - t.Addr}
	case reflect.Map:
		return view{kind: mapHeader, t: t.Type, base: t.Addr}
	case reflect.Chan:
		return view{kind: channel, t: t.Type.Elem(), base: t.Addr}
	case reflect.Func:
		return x.closureAt(t.Addr)
	}
	return view{}
}

// typed finds a view for every object on a path, and a label for every pointer. Types flow from the
// root down, from what the objects say of themselves, from other referrers, and at last from
// inference, the most certain object first: a typed neighbour narrows the others.
//
// expected is what each object's referrer says of it.
func (x *explainer) typed(objects []int, slots []uint64, first, last view) (views, expected []view, labels []string) {
	views, expected, labels = make([]view, len(objects)), make([]view, len(objects)), make([]string, len(objects))
	end := len(objects) - 1
	forward := func() {
		expected[0] = first
		for k, o := range objects {
			if !views[k].known() {
				views[k] = x.choose(expected[k], o, slots[k], k == end)
			}
			if k == end {
				if last.known() {
					views[k] = last
				}
				break
			}
			e := x.edge(views[k], slots[k])
			if !e.ok {
				label := e.label
				if label == "" && !views[k].inMap() {
					label = fmt.Sprintf("+%#x", slots[k]-x.d.Addr(o))
				}
				e = x.ifaceAt(slots[k], label)
			}
			labels[k], expected[k+1] = e.label, e.next
		}
	}
	forward()
	if last.known() {
		views[end] = last
	}
	if x.fromReferrers(objects, views) {
		forward()
	}
	for range 16 {
		best, bestN, at, tried := view{}, maxCandidates+1, -1, 0
		for k := end - 1; k >= 0 && tried < 24; k-- {
			if views[k].known() {
				continue
			}
			tried++
			if v, n := x.infer(objects[k], slots[k], views[k+1], expected[k]); v.known() && n < bestN {
				best, bestN, at = v, n, k
			}
		}
		if at < 0 {
			break
		}
		views[at] = best
		forward()
	}
	return views, expected, labels
}

// choose decides between what the referrer says of an object and what the object says of itself.
func (x *explainer) choose(expected view, o int, slot uint64, last bool) view {
	own := x.intrinsic(o)
	if expected.kind == value && !last && !covers(expected, slot) &&
		(expected.t == reflect.TypeFor[time.Timer]() || expected.t == reflect.TypeFor[time.Ticker]()) {
		if whole := x.types.Named("runtime.timeTimer"); whole != nil { // what these two are the head of
			expected = oneValue(whole, expected.base)
		}
	}
	if !expected.known() || !x.fits(expected, o) || !last && !covers(expected, slot) {
		return own
	}
	if expected.kind == value && own.kind == value && expected.t == own.t && !expected.slice {
		expected.base, expected.n = own.base, own.n
	}
	return expected
}

// covers reports whether a view of one value holds the slot; when it does not, the view is only the
// head of something larger.
func covers(v view, slot uint64) bool {
	return v.kind != value || v.slice || v.n > 1 || slot >= v.base && slot < v.base+uint64(v.t.Size())
}

func site(stack []heapdump.Site) string {
	for _, f := range stack {
		if !internalName(f.Func) && !strings.HasPrefix(f.Func, "slices.") && !strings.HasPrefix(f.Func, "bytes.") {
			return place(f.Func, f.File, int(f.Line))
		}
	}
	return ""
}
