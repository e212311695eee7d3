package retain

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"strings"

	"github.com/enginetest/enginetest/leakcheck/internal/symbols"
)

// A view says what an object, or a part of it, is.
type view struct {
	kind  viewKind
	t     reflect.Type // of a value; of the map; of a channel's elements
	base  uint64       // where it starts
	n     uint64       // a value: how many in a row
	fn    string       // a closure's function
	slice bool         // a value: the elements of a slice, of length n
	text  bool         // the bytes of a string
	how   string       // how the type is known, when it is not certain
}

type viewKind int

const (
	unknown      viewKind = iota
	value                 // n values of type t
	closure               // a func value: code pointer, then captured variables
	mapHeader             // internal/runtime/maps.Map
	mapDirectory          // its []*table
	mapTable              // maps.table
	mapGroups             // groups of slots
	channel               // runtime.hchan
)

func (v view) known() bool { return v.kind != unknown }

func (v view) inMap() bool { return v.kind >= mapHeader && v.kind <= mapGroups }

// edge is one pointer in a view: how it is written, and what it leads to.
type edge struct {
	label string
	next  view
	ok    bool // next is known, as far as types go

	behind symbols.Part // what is known of the target when its type has no descriptor
}

func oneValue(t reflect.Type, base uint64) view { return view{kind: value, t: t, base: base, n: 1} }

// edge resolves the pointer at address slot.
func (x *explainer) edge(v view, slot uint64) edge {
	at := slot - v.base
	target := x.d.Word(slot)
	switch v.kind {
	case value:
		return x.valueEdge(v, slot)
	case closure:
		return x.capturedEdge(v, slot)
	case mapHeader: // {used, seed, dirPtr, dirLen, …}
		if at == 16 {
			if n := x.d.Word(v.base + 24); n > 0 {
				return edge{ok: true, next: view{kind: mapDirectory, t: v.t, base: target, n: n}}
			}
			return edge{ok: true, next: view{kind: mapGroups, t: v.t, base: target}} // a small map: one group
		}
	case mapDirectory:
		return edge{ok: true, next: view{kind: mapTable, t: v.t, base: target}}
	case mapTable: // {used, …, groups {data, lengthMask}}
		if at == 16 {
			return edge{ok: true, next: view{kind: mapGroups, t: v.t, base: target}}
		}
	case mapGroups:
		return x.mapEdge(v, slot)
	case channel: // {qcount, dataqsiz, buf, …}
		if at == 16 {
			return edge{ok: true, label: " buffered", next: view{
				kind: value, t: v.t, base: target,
				n: x.d.Word(v.base + 8), slice: true,
			}}
		}
		return edge{label: " waiter"}
	}
	return edge{}
}

func (x *explainer) valueEdge(v view, slot uint64) edge {
	size := uint64(v.t.Size())
	if size == 0 {
		return edge{}
	}
	at := int64(slot - v.base)
	if !v.slice && v.n <= 1 {
		if at < 0 || uint64(at) >= size {
			return edge{}
		}
		return x.field(v.t, v.base, uint64(at), "")
	}
	index := at / int64(size)
	if at < 0 {
		index = -((-at + int64(size) - 1) / int64(size))
	}
	label := fmt.Sprintf("[%d]", index)
	if v.slice && index >= int64(v.n) {
		label = fmt.Sprintf("[%d, beyond its length %d]", index, v.n)
	} else if index < 0 {
		label = fmt.Sprintf("[%d, before the slice]", index)
	}
	start := v.base + uint64(index*int64(size))
	return x.field(v.t, start, slot-start, label)
}

// field walks down a value of type t at base to the pointer at offset off.
func (x *explainer) field(t reflect.Type, base, off uint64, label string) edge {
	for range 64 {
		switch t.Kind() {
		case reflect.Struct:
			f, ok := fieldAt(t, off)
			if !ok {
				return edge{label: label}
			}
			target := x.d.Word(base + off)
			if e, ok := x.hidden(t, f, target); ok {
				e.label = label + e.label
				return e
			}
			if !f.Anonymous || f.Type.Kind() != reflect.Struct {
				label += "." + f.Name
			}
			t, base, off = f.Type, base+uint64(f.Offset), off-uint64(f.Offset)
		case reflect.Array:
			size := uint64(t.Elem().Size())
			if size == 0 {
				return edge{label: label}
			}
			label += fmt.Sprintf("[%d]", off/size)
			t, base, off = t.Elem(), base+off/size*size, off%size
		default:
			return x.pointee(t, base, x.d.Word(base), label)
		}
	}
	return edge{label: label}
}

func fieldAt(t reflect.Type, off uint64) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if f := t.Field(i); off >= uint64(f.Offset) && off < uint64(f.Offset+f.Type.Size()) {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// hidden types the unsafe pointers of the standard library: atomic.Pointer[T], sync.Pool, and the
// nodes of sync.Map.
func (x *explainer) hidden(t reflect.Type, f reflect.StructField, target uint64) (edge, bool) {
	switch name := t.PkgPath() + "." + t.Name(); {
	case strings.HasPrefix(name, "sync/atomic.Pointer[") && t.NumField() > 0 && t.Field(0).Type.Kind() == reflect.Array:
		elem := t.Field(0).Type.Elem().Elem()
		// the header of an entry or of an inner node
		if strings.HasPrefix(elem.PkgPath()+"."+elem.Name(), "internal/sync.node[") {
			for _, as := range []string{"entry[", "indirect["} {
				full := x.types.Named("internal/sync." + strings.Replace(elem.Name(), "node[", as, 1))
				if full != nil && (len(x.d.Memory(target, 1)) > 0 &&
					x.d.Memory(target, 1)[0] == 1) == (as == "entry[") {
					return edge{ok: true, next: oneValue(full, target)}, true
				}
			}
		}
		return edge{ok: true, next: oneValue(elem, target)}, true
	case name == "sync.Pool" && (f.Name == "local" || f.Name == "victim"):
		if local := x.types.Named("sync.poolLocal"); local != nil {
			v := view{kind: value, t: local, base: target, n: 2}
			if i := x.d.Find(target); i >= 0 {
				v.n = max(2, x.d.Size(i)/uint64(local.Size()))
			}
			return edge{ok: true, label: "." + f.Name, next: v}, true
		}
	}
	return edge{}, false
}

// pointee is what the pointer in a value of type t at base leads to.
func (x *explainer) pointee(t reflect.Type, base, target uint64, label string) edge {
	e := edge{label: label, ok: true}
	switch t.Kind() {
	case reflect.Pointer:
		e.next = oneValue(t.Elem(), target)
	case reflect.Map:
		e.next = view{kind: mapHeader, t: t, base: target}
	case reflect.Chan:
		e.next = view{kind: channel, t: t.Elem(), base: target}
	case reflect.Func:
		e.next = x.closureAt(target)
		e.ok = e.next.known()
	case reflect.Slice:
		e.next = view{kind: value, t: t.Elem(), base: target, n: x.d.Word(base + 8), slice: true}
	case reflect.String:
		e.next = view{
			kind: value, t: reflect.TypeFor[byte](), base: target, n: x.d.Word(base + 8), slice: true,
			text: true,
		}
	case reflect.Interface:
		dynamic := x.dynamic(x.d.Word(base))
		if dynamic == nil {
			return edge{label: label}
		}
		return x.boxed(dynamic, x.d.Word(base+8), label)
	default:
		return edge{label: label}
	}
	return e
}

// dynamic reads the first word of an interface: a type, or an itab.
func (x *explainer) dynamic(word uint64) reflect.Type {
	if t, ok := x.d.Itabs[word]; ok {
		word = t
	}
	return x.types.At(word)
}

// boxed is what the data word of an interface leads to.
func (x *explainer) boxed(dynamic reflect.Type, data uint64, label string) edge {
	if !direct(dynamic) {
		return edge{ok: true, label: label, next: oneValue(dynamic, data)}
	}
	if dynamic.Kind() == reflect.Struct || dynamic.Kind() == reflect.Array {
		label += ".(" + dynamic.String() + ")"
	}
	for dynamic.Kind() == reflect.Struct || dynamic.Kind() == reflect.Array {
		if dynamic.Kind() == reflect.Array {
			dynamic, label = dynamic.Elem(), label+"[0]"
		} else {
			f := pointerField(dynamic)
			dynamic, label = f.Type, label+"."+f.Name
		}
	}
	return x.pointee(dynamic, 0, data, label)
}

// direct reports whether an interface holds a value of this type in its data word itself.
func direct(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return true
	case reflect.Array:
		return t.Len() == 1 && direct(t.Elem())
	case reflect.Struct:
		return t.Size() == 8 && direct(pointerField(t).Type)
	}
	return false
}

// pointerField is the one field of a struct of one word that has a size.
func pointerField(t reflect.Type) reflect.StructField {
	for i := range t.NumField() {
		if f := t.Field(i); f.Type.Size() == 8 {
			return f
		}
	}
	return reflect.StructField{Type: reflect.TypeFor[uintptr]()}
}

// ifaceAt reads the slot as the data word of an interface, when the word before it is a type.
func (x *explainer) ifaceAt(slot uint64, label string) edge {
	if dynamic := x.dynamic(x.d.Word(slot - 8)); dynamic != nil {
		return x.boxed(dynamic, x.d.Word(slot), label)
	}
	return edge{label: label}
}

func (x *explainer) closureAt(a uint64) view {
	if fn := symbols.FuncAt(x.d.Word(a)); fn != "" {
		return view{kind: closure, fn: fn, base: a}
	}
	return view{}
}

// capturedEdge names a captured variable; "-fm" is the compiler's name of the closure behind a
// method value.
func (x *explainer) capturedEdge(v view, slot uint64) edge {
	off, target := slot-v.base, x.d.Word(slot)
	if isMethodValue(v.fn) && off >= 8 {
		if recv := x.receiver(v.fn); recv != nil {
			return x.field(recv, v.base+8, off-8, "receiver")
		}
		return edge{label: "receiver"}
	}
	_, captured := x.names.Locals(x.d.Word(v.base), x.d.Word(v.base))
	for _, c := range captured {
		if int64(off) != c.Offset && (int64(off) < c.Offset || int64(off) >= c.Offset+c.Size) {
			continue
		}
		label := "captured " + c.Name
		switch {
		case c.Type == nil:
			return edge{label: label}
		case c.Boxed:
			return edge{ok: true, label: label, next: oneValue(c.Type, target)}
		}
		return x.field(c.Type, v.base+uint64(c.Offset), off-uint64(c.Offset), label)
	}
	return x.ifaceAt(slot, fmt.Sprintf("captured variable at +%d", off))
}

func isMethodValue(fn string) bool { return strings.HasSuffix(fn, "-fm") }

// receiver is the type in "path/pkg.(*T).M-fm" or "path/pkg.T.M-fm".
func (x *explainer) receiver(fn string) reflect.Type {
	fn = strings.TrimSuffix(fn, "-fm")
	dot := strings.LastIndexByte(fn, '.')
	if dot < 0 {
		return nil
	}
	name, isPointer := fn[:dot], false
	if i := strings.Index(name, ".(*"); i >= 0 && strings.HasSuffix(name, ")") {
		name, isPointer = name[:i]+"."+name[i+3:len(name)-1], true
	}
	t := x.types.Named(name)
	if t != nil && isPointer {
		return reflect.PointerTo(t)
	}
	return t
}

// mapEdge finds the entry of a map's group that a slot belongs to.
func (x *explainer) mapEdge(v view, slot uint64) edge {
	l := symbols.Layout(v.t)
	if l.GroupSize == 0 || slot < v.base {
		return edge{}
	}
	in := (slot - v.base) % l.GroupSize
	key, elem, inKey, ok := l.Entry(in)
	if !ok {
		return edge{}
	}
	key, elem = slot-in+key, slot-in+elem
	label := "[" + x.format(v.t.Key(), key, l.IndirectKey) + "]"
	target := x.d.Word(slot)
	switch {
	case inKey && l.IndirectKey:
		return edge{ok: true, label: " key " + label, next: oneValue(v.t.Key(), target)}
	case inKey:
		return x.field(v.t.Key(), key, slot-key, " key"+keyLabel(v.t.Key(), label))
	case l.IndirectElem:
		return edge{ok: true, label: label, next: oneValue(v.t.Elem(), target)}
	}
	return x.field(v.t.Elem(), elem, slot-elem, label)
}

// keyLabel leaves a key's value out where the path goes through the key itself and shows it anyway.
func keyLabel(t reflect.Type, label string) string {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Struct,
		reflect.Array:
		return ""
	}
	return " " + label
}

// format prints a map key.
func (x *explainer) format(t reflect.Type, a uint64, indirect bool) string {
	if indirect {
		a = x.d.Word(a)
	}
	b := x.d.Memory(a, uint64(t.Size()))
	if b == nil {
		if b = processMemory(a, uint64(t.Size())); b == nil { // a constant
			return "…"
		}
	}
	word := func() uint64 { return binary.LittleEndian.Uint64(append(b[:len(b):len(b)], make([]byte, 8)...)) }
	switch t.Kind() {
	case reflect.String:
		n := min(binary.LittleEndian.Uint64(b[8:]), 40)
		text := x.d.Memory(word(), n)
		if text == nil {
			text = processMemory(word(), n) // a constant
		}
		return fmt.Sprintf("%q", text)
	case reflect.Int, reflect.Int64, reflect.Int32, reflect.Int16, reflect.Int8:
		shift := 64 - 8*len(b)
		return fmt.Sprint(int64(word()<<shift) >> shift)
	case reflect.Uint, reflect.Uint64, reflect.Uint32, reflect.Uint16, reflect.Uint8, reflect.Uintptr:
		return fmt.Sprint(word())
	case reflect.Bool:
		return fmt.Sprint(b[0] != 0)
	case reflect.Interface:
		if dynamic := x.dynamic(word()); dynamic != nil {
			if !direct(dynamic) {
				return x.format(dynamic, x.d.Word(a+8), false)
			}
			return dynamic.String()
		}
	}
	return t.String()
}
