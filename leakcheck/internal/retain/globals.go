package retain

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/leakcheck/internal/symbols"
)

func (x *explainer) describeGlobal(r root) (view, Step) {
	e, st := x.globalEdge(r.slot, 0)
	st.Edge = e.label
	return e.next, st
}

// nameless is in the names that the linker gives to nameless statics.
const nameless = "..stmp_"

const notFreed = "what a variable was initialised with; no variable points to it any more"

// globalEdge names the variable that a slot of the data segments lies in, and resolves the pointer
// there. A slot of a nameless static, which the compiler makes for var x = &T{…}, is reached
// through the variable that points to the static.
func (x *explainer) globalEdge(slot uint64, depth int) (edge, Step) {
	v, ok := x.names.Global(slot)
	users, mentioned := x.names.UsedBy(slot)
	st := Step{Kind: "global", Addr: uintptr(slot)}
	lowest := slot - min(slot, 1<<16)
	if ok {
		lowest = v.Addr
	}
	nameless := ok && strings.Contains(v.Name, nameless)
	static, from := x.staticBase(slot, lowest)
	if (nameless || !ok) && static > mentioned && depth < 8 {
		if e, st, in := x.staticEdge(slot, static, from, depth); in {
			return e, st
		}
	}
	switch {
	case nameless:
		st.Name, st.key, st.Note = v.Name, v.Name, notFreed
		return x.ifaceAt(slot, offset(slot-v.Addr)), st
	case ok:
		st.Name, st.key, st.Type = v.Name, v.Name, paths.ReplaceAllString(x.names.TypeName(v), "")
		if v.Type != nil {
			st.Type = paths.ReplaceAllString(v.Type.String(), "")
			return x.field(v.Type, v.Addr, slot-v.Addr, ""), st
		}
		return x.partEdge(x.names.Part(v, slot-v.Addr), slot), st
	case len(users) > 0:
		st.Name = "a variable used by " + x.userFunc(users)
		st.key = st.Name
		return x.ifaceAt(slot, offset(slot-mentioned)), st
	}
	st.Name, st.key = fmt.Sprintf("at %#x in the data segment (its name is unknown: %s)", slot,
		x.names.Why), "data segment"
	if x.names.Types() { // all variables are known, and it is none
		st.Name, st.Note = fmt.Sprintf("nameless, at %#x in the data segment", slot), notFreed
	}
	return x.ifaceAt(slot, ""), st
}

// paths matches what stands before a package's name, in type arguments and nameless structs.
var paths = regexp.MustCompile(`[\w.~-]+/`)

func offset(n uint64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("+%#x", n)
}

// staticEdge reaches a slot through the pointer at from; in is false when what that points to ends
// before the slot.
func (x *explainer) staticEdge(slot, base, from uint64, depth int) (e edge, st Step, in bool) {
	e, st = x.globalEdge(from, depth+1)
	switch {
	case e.next.kind == value && slot >= base+max(1, e.next.n)*uint64(e.next.t.Size()):
		return edge{}, Step{}, false
	case e.next.known():
		inner := x.edge(e.next, slot)
		inner.label = e.label + inner.label
		return inner, st, true
	case e.behind.Known() && !e.behind.Slice && slot >= base+x.names.SizeBehind(e.behind):
		return edge{}, Step{}, false
	case e.behind.Known():
		part := x.names.Behind(e.behind, slot-base)
		part.Label = e.label + part.Label
		return x.partEdge(part, slot), st, true
	}
	return x.ifaceAt(slot, e.label+offset(slot-base)), st, true
}

// partEdge resolves a slot in a variable whose type only DWARF knows.
func (x *explainer) partEdge(p symbols.Part, slot uint64) edge {
	switch {
	case p.Type != nil:
		return x.field(p.Type, slot-p.In, p.In, p.Label)
	case p.Elem != nil:
		v := oneValue(p.Elem, x.d.Word(slot))
		if p.Slice {
			v.n, v.slice = x.d.Word(slot+8), true
		}
		return edge{ok: true, label: p.Label, next: v}
	}
	e := x.ifaceAt(slot, p.Label)
	e.behind = p
	return e
}

var initializer = regexp.MustCompile(`\.init(\.\d+)?$`)

// userFunc picks the function that says most: the user's own, not an initializer.
func (x *explainer) userFunc(users []string) string {
	rank := func(f string) int {
		switch {
		case internalName(f):
			return 2
		case initializer.MatchString(f):
			return 1
		}
		return 0
	}
	return slices.MinFunc(users, func(a, b string) int { return rank(a) - rank(b) })
}

// staticBase finds the largest pointer in the data segments that points at or below a slot there,
// and not below lowest: the start of a nameless static (the compiler makes them for var x = &T{…}),
// and the variable that points to it.
func (x *explainer) staticBase(slot, lowest uint64) (base, from uint64) {
	for i := range x.d.Segments {
		s := &x.d.Segments[i]
		for _, off := range x.d.SegmentPointers(s) {
			v := binary.LittleEndian.Uint64(s.Data[off:])
			if v > base && v <= slot && v >= lowest {
				if g, ok := x.names.Global(v); !ok || strings.Contains(g.Name, nameless) {
					base, from = v, s.Addr+off
				}
			}
		}
	}
	return base, from
}
