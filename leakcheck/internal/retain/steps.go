package retain

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/leakcheck/internal/heapdump"
	"github.com/enginetest/enginetest/leakcheck/internal/symbols"
	"github.com/enginetest/enginetest/ledger"
)

// steps writes the path down. The storage of maps and slices is not a step of its own: it becomes
// part of the edge, ".entries[17].req".
func (x *explainer) steps(rootStep Step, objects []int, views, expected []view, labels []string) []Step {
	out := []Step{rootStep}
	last := func() *Step { return &out[len(out)-1] }
	x.syncMap(&out[0], objects, views, labels)
	for k, v := range views {
		if note := x.subSlice(expected[k], objects[k]); note != "" {
			last().Note = strings.TrimPrefix(last().Note+"; "+note, "; ")
		}
		if note := x.interior(expected[k], v); note != "" {
			last().Note = strings.TrimPrefix(last().Note+"; "+note, "; ")
		}
		if k == len(views)-1 {
			if s := x.sibling(expected[k], v, last()); s != nil {
				out = append(out, *s)
			}
		}
		if k < len(views)-1 && storage(v) {
			last().Edge += labels[k]
			continue
		}
		s := x.step(v, objects[k])
		s.Edge = labels[k]
		out = append(out, s)
	}
	return foldRuns(out)
}

func storage(v view) bool {
	return v.inMap() || inSyncMap(v) || v.kind == value && (v.slice || v.n > 1)
}

func (x *explainer) step(v view, o int) Step {
	s := Step{Kind: "object", Addr: uintptr(x.d.Addr(o)), Size: uintptr(x.d.Size(o)), Note: v.how}
	switch v.kind {
	case value:
		s.Name = "*" + v.t.String()
		if s.Name == "*runtime.timeTimer" { // what a *time.Timer really points to
			s.Name, s.Note = "*time.Timer", ""
		}
		if v.slice || v.n > 1 {
			s.Name = fmt.Sprintf("[]%s (array of %s)", v.t, ledger.FormatBytes(int64(x.d.Size(o))))
		}
	case closure:
		s.Name = "closure " + shortFunc(v.fn)
		if isMethodValue(v.fn) {
			s.Name = "method value " + shortFunc(v.fn)
		} else if _, file, line := symbols.Line(x.d.Word(v.base)+1, nil); file != "" {
			s.Note = fmt.Sprintf("%s:%d", shortFile(file), line)
		}
	case channel:
		s.Name = "chan " + v.t.String()
	case mapHeader:
		s.Name = v.t.String()
	case mapDirectory, mapTable, mapGroups:
		s.Name = "storage of " + v.t.String()
	default:
		s.Name = fmt.Sprintf("object of %d bytes at %#x", x.d.Size(o), x.d.Addr(o))
		s.Note = "type unknown"
		s.key = "object"
	}
	if s.key == "" {
		s.key = s.Name
	}
	if at := site(x.d.Site(o)); at != "" {
		s.Note = strings.TrimPrefix(s.Note+"; allocated by "+at, "; ")
	}
	return s
}

// shortFunc leaves the package's path out: "llm.(*Runner).Forward-fm".
func shortFunc(fn string) string {
	args := afterBracket(fn)
	elems := strings.Split(strings.TrimSuffix(fn, args), "/")
	last := elems[len(elems)-1]
	if pkg, rest, ok := strings.Cut(last, "."); ok && majorVersion.MatchString(pkg) && len(elems) > 1 {
		last = elems[len(elems)-2] + "." + rest // github.com/onsi/ginkgo/v2
	}
	return gopkgVersion.ReplaceAllString(last, "$1.") + args // gopkg.in/yaml.v3
}

var (
	majorVersion = regexp.MustCompile(`^v[0-9]+$`)
	gopkgVersion = regexp.MustCompile(`^([\w-]+)\.v[0-9]+\.`)
)

// afterBracket is the part of a function's name from its type arguments on, which hold slashes of
// their own.
func afterBracket(fn string) string {
	if i := strings.IndexByte(fn, '['); i >= 0 {
		return fn[i:]
	}
	return ""
}

// subSlice says when a small slice keeps a much larger array.
func (x *explainer) subSlice(v view, o int) string {
	if v.kind != value || !v.slice {
		return ""
	}
	used, size := v.n*uint64(v.t.Size()), x.d.Size(o)
	if used*2 >= size || size-used < 1024 {
		return ""
	}
	if v.text {
		return fmt.Sprintf("a string of %s keeps its whole array of %s", ledger.FormatBytes(int64(used)),
			ledger.FormatBytes(int64(size)))
	}
	return fmt.Sprintf("a slice of %s keeps its whole array of %s", ledger.FormatBytes(int64(used)),
		ledger.FormatBytes(int64(size)))
}

// interior says when a pointer leads to a part of an object only, and to which.
func (x *explainer) interior(expected, v view) string {
	if v.kind != value || v.slice || v.n > 1 || expected.kind != value || expected.slice || expected.t == v.t ||
		expected.base < v.base {
		return ""
	}
	part := partAt(v.t, expected.base-v.base, expected.t)
	if part == "" {
		return ""
	}
	return "points to " + part + " of it, which " + keepsWhole
}

// sibling says when what the last pointer leads to is another part of the target's allocation, or
// something that the target is a part of. In the first case it returns a step for the part that is
// pointed to; in the second it completes the edge.
func (x *explainer) sibling(pointed, target view, from *Step) *Step {
	if pointed.kind != value || target.kind != value || target.base == pointed.base && target.t == pointed.t {
		return nil
	}
	size := uint64(pointed.t.Size())
	if size == 0 {
		return nil
	}
	off := int64(target.base - pointed.base)
	index := off / int64(size)
	switch {
	case off >= 0 && (index == 0 || pointed.slice && uint64(index) < pointed.n):
		if pointed.slice {
			from.Edge += fmt.Sprintf("[%d]", index)
		}
		from.Edge += partAt(pointed.t, uint64(off)-uint64(index)*size, target.t)
		return nil
	case target.base <= pointed.base && pointed.base < target.base+max(1, target.n)*uint64(target.t.Size()):
		return nil // a pointer to a part of the target: see interior
	}
	name := "*" + pointed.t.String()
	if pointed.slice {
		name = fmt.Sprintf("[]%s of length %d", pointed.t, pointed.n)
	}
	return &Step{
		Kind: "object", Name: name, Addr: uintptr(pointed.base), key: "*" + pointed.t.String(),
		Edge: fmt.Sprintf("%+d bytes in the same allocation", off),
		Note: "points to this part of an allocation, which " + keepsWhole,
	}
}

const keepsWhole = "keeps all of it"

// partAt names the field or element of a t that starts at off and has type want; "" when it is the
// first word of t, or none.
func partAt(t reflect.Type, off uint64, want reflect.Type) (label string) {
	for {
		switch {
		case t == want && off == 0 && label != "":
			return label
		case t.Kind() == reflect.Struct:
			f, ok := fieldAt(t, off)
			if !ok {
				return ""
			}
			label, t, off = label+"."+f.Name, f.Type, off-uint64(f.Offset)
		case t.Kind() == reflect.Array && t.Elem().Size() > 0:
			size := uint64(t.Elem().Size())
			label, t, off = label+fmt.Sprintf("[%d]", off/size), t.Elem(), off%size
		default:
			return ""
		}
	}
}

// foldRuns shortens linked lists.
func foldRuns(steps []Step) (out []Step) {
	for i := 0; i < len(steps); {
		j := i + 1
		for j < len(steps)-1 && steps[j].Name == steps[i].Name && steps[j].Edge == steps[i].Edge &&
			steps[i].Kind == "object" {
			j++
		}
		if j-i > 2 {
			s := steps[i]
			s.Note = strings.TrimPrefix(fmt.Sprintf("%s; %d times", s.Note, j-i), "; ")
			out = append(out, s)
		} else {
			out = append(out, steps[i:j]...)
		}
		i = j
	}
	return out
}

// foldRoot replaces the runtime's way to a timer, to a cleanup's argument, and the testing
// package's to a cleanup, by what the user wrote.
func (x *explainer) foldRoot(p *Path) {
	// the copy of an argument that is one pointer
	if s := p.Steps; s[0].Kind == "cleanup" && len(s) > 2 && s[1].Size == 8 {
		s[0].Edge = "argument"
		p.Steps = slices.Delete(s, 1, 2)
		return
	}
	name := strings.TrimPrefix(p.Steps[0].Name, "a variable used by ")
	// who holds a timer is the one to name
	users := p.Steps[0].Kind == "global" && !internalName(name) && !strings.HasPrefix(name, "at 0x")
	for i := len(p.Steps) - 2; i > 0 && !users; i-- {
		s, next := p.Steps[i], p.Steps[i+1]
		switch {
		case s.Name == "*runtime.timer" || s.Name == "*time.Timer" && p.Steps[0].Kind == "global" &&
			strings.HasPrefix(p.Steps[0].Name, "runtime."):
			p.Steps = append([]Step{{
				Kind: "timer", Name: "pending (time.AfterFunc, time.NewTimer)", Edge: "function",
				Addr: s.Addr, key: "timer " + next.key,
			}}, p.Steps[i+1:]...)
			return
		case strings.HasPrefix(s.Name, "*testing.") && strings.Contains(s.Edge, ".cleanups"):
			p.Steps = append([]Step{{
				Kind: "test cleanup", Name: "t.Cleanup of a test that still runs",
				Edge: "function", Addr: s.Addr, key: "t.Cleanup",
			}}, p.Steps[i+1:]...)
			return
		}
	}
}

// foldDefer replaces the runtime's way to a deferred call by the goroutine that will make it.
func (x *explainer) foldDefer(p *Path) {
	last, g := -1, -1
	for i, s := range p.Steps {
		switch s.Name {
		case "*runtime._defer":
			last = i
		case "*runtime.g":
			g = slices.IndexFunc(x.d.Goroutines, func(g heapdump.Goroutine) bool { return g.Addr-uint64(s.Addr) <= 8 })
		}
	}
	if last < 0 || last+1 >= len(p.Steps) || p.Steps[0].Kind != "goroutine" && g < 0 {
		return
	}
	root := p.Steps[0]
	if root.Kind != "goroutine" {
		root = x.goroutineRoot(g)
	}
	root.Edge = "deferred call"
	p.Steps = append([]Step{root}, p.Steps[last+1:]...)
}

// goroutineRoot is the root step of a goroutine as a whole.
func (x *explainer) goroutineRoot(i int) Step {
	for _, k := range x.d.Goroutines[i].Frames {
		if fn, file, line := symbols.Line(x.d.Frames[k].PC, func(name string) bool {
			return internalName(name) || own(name)
		}); fn != "" {
			return Step{
				Kind: "goroutine", Name: x.goroutineName(i, " in "+place(fn, file, line)),
				key: "goroutine in " + fn,
			}
		}
	}
	return Step{Kind: "goroutine", Name: x.goroutineName(i, ""), key: symbols.FuncOf(x.d.Goroutines[i].GoPC)}
}

var digits = regexp.MustCompile(`\[[^\]]*\]|0x[0-9a-f]+|\+[0-9]+`)

// libraryMethod matches a method of the standard library: the first element of its path has no dot.
var libraryMethod = regexp.MustCompile(`^([a-z0-9]+(?:/[a-z0-9]+)*\.\(\*\w+\))\.\w+$`)

// owner names the root and what hangs on it, without what differs from run to run. cause names the
// root only, or the first thing that hangs on a root that has no name of its own.
func owner(steps []Step) (owner, cause string) {
	root := steps[0]
	cause = strings.TrimPrefix(root.key, "goroutine in ")
	if _, caller, ok := strings.Cut(cause, " < "); ok {
		cause = caller
	}
	if m := libraryMethod.FindStringSubmatch(cause); m != nil && root.Kind == "goroutine" &&
		!strings.HasPrefix(cause, "testing.") {
		cause = m[1] + ".*" // several goroutines work for such a value: readLoop and writeLoop of a connection
	}
	if len(steps) > 2 && (root.Kind == "timer" || root.Kind == "test cleanup") || cause == "" ||
		root.Kind == "unknown root" {
		cause = steps[1].key
	}
	cause = root.Kind + " " + strings.TrimPrefix(cause, root.Kind+" ")
	return cause + " " + digits.ReplaceAllString(root.Edge, "[]") + " " + steps[1].key, cause
}

// Format draws the path, one line a step, root first.
func Format(steps []Step) string {
	var b strings.Builder
	for i, s := range steps {
		text := s.Name
		if i == 0 {
			text = s.Kind + "  " + s.Name
			if s.Type != "" {
				text += "  " + s.Type
			}
		} else {
			if e := strings.TrimSpace(steps[i-1].Edge); e != "" {
				text = e + "  " + text
			}
			b.WriteString(strings.Repeat("   ", i-1) + "└─ ")
		}
		if s.Note != "" {
			text += "  (" + s.Note + ")"
		}
		b.WriteString(text + "\n")
	}
	return b.String()
}
