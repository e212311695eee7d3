// Package symbols says what the addresses of the running program mean: type descriptors, functions,
// global variables, local and captured variables. Types come from the program's own descriptors,
// functions from its own tables; both are there in a stripped test binary. Names of variables come
// from the best source at hand (see Load).
package symbols

import (
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"
)

// These three names are kept stable by the Go project for packages that depend on them
// (go.dev/issue/67401).
//
//go:linkname typelinks reflect.typelinks
func typelinks() (sections []unsafe.Pointer, offsets [][]int32)

//go:linkname lastmoduledatap runtime.lastmoduledatap
var lastmoduledatap *moduledata

//go:linkname findfunc runtime.findfunc
func findfunc(pc uintptr) funcInfo

type funcInfo struct{ f, _ unsafe.Pointer } // a struct, not an array: it is returned in registers

type eface struct{ typ, data unsafe.Pointer }

func pointer(a uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }

func read8(a uint64) uint8   { return *(*uint8)(pointer(a)) }
func read32(a uint64) uint32 { return *(*uint32)(pointer(a)) }
func read64(a uint64) uint64 { return *(*uint64)(pointer(a)) }

// Types knows every type descriptor of the running program.
type Types struct {
	All    []reflect.Type
	known  map[uint64]bool
	groups map[uint64]reflect.Type // a map's group type to the map's type
	named  map[string]reflect.Type // "path/pkg.Name"
	full   map[string]reflect.Type // as DWARF spells it
}

// LoadTypes collects the descriptors: those that the linker lists, what they refer to, and what a
// scan of the read-only data finds besides (named structs without a pointer type). It takes about
// two milliseconds for a test binary.
var LoadTypes = sync.OnceValue(func() *Types {
	t := &Types{
		known: map[uint64]bool{}, groups: map[uint64]reflect.Type{}, named: map[string]reflect.Type{},
		full: map[string]reflect.Type{},
	}
	sections, offsets := typelinks()
	for i, s := range sections {
		for _, off := range offsets[i] {
			t.add(typeAt(uint64(uintptr(s)) + uint64(off)))
		}
	}
	md := lastmoduledatap
	for a := uint64(md.types); a+48 <= uint64(md.etypes); a += 8 {
		if !t.known[a] && plausible(a, uint64(md.types), uint64(md.etypes)) {
			t.add(typeAt(a))
		}
	}
	for _, typ := range t.All {
		if typ.Name() != "" {
			t.named[typ.PkgPath()+"."+typ.Name()] = typ
		}
		t.full[fullName(typ)] = typ
	}
	slices.SortFunc(t.All, func(a, b reflect.Type) int { return strings.Compare(a.String(), b.String()) })
	return t
})

// At returns the type of the descriptor at a, nil when there is none.
func (t *Types) At(a uint64) reflect.Type {
	if !t.known[a] {
		return nil
	}
	return typeAt(a)
}

// Named finds a type by "path/pkg.Name"; nil when the program has no descriptor of it.
func (t *Types) Named(name string) reflect.Type { return t.named[name] }

// MapOf returns the map type whose storage consists of this group type; nil when it is none.
func (t *Types) MapOf(group reflect.Type) reflect.Type { return t.groups[Descriptor(group)] }

// MapLayout is how the groups of a map type lie in memory: a control word, then either eight slots of
// a key and an element, or eight keys and eight elements.
type MapLayout struct {
	GroupSize                 uint64
	keys, elems               uint64 // where the first ones lie in a group
	keyStride, elemStride     uint64
	IndirectKey, IndirectElem bool
}

// Entry finds the key and the element that share an entry with the word at in, an offset in a group,
// and reports whether the word lies in the key.
func (l MapLayout) Entry(in uint64) (key, elem uint64, inKey, ok bool) {
	if in < l.keys || l.keyStride == 0 {
		return 0, 0, false, false
	}
	n := (in - l.keys) / l.keyStride
	if split := l.elems-l.keys > l.keyStride; split && in >= l.elems {
		if l.elemStride == 0 {
			return 0, 0, false, false
		}
		n = (in - l.elems) / l.elemStride
	}
	key, elem = l.keys+n*l.keyStride, l.elems+n*l.elemStride
	return key, elem, in < elem && in-key < l.keyStride, true
}

// HasPointers reports whether values of the type hold pointers.
func HasPointers(t reflect.Type) bool { return read64(Descriptor(t)+8) != 0 }

// Descriptor returns the address of a type's descriptor.
func Descriptor(t reflect.Type) uint64 {
	if t == nil {
		return 0
	}
	var i any = t
	return uint64(uintptr((*eface)(unsafe.Pointer(&i)).data))
}

func typeAt(a uint64) reflect.Type {
	var e any
	(*eface)(unsafe.Pointer(&e)).typ = pointer(a)
	return reflect.TypeOf(e)
}

func (t *Types) add(typ reflect.Type) {
	if typ == nil || t.known[Descriptor(typ)] {
		return
	}
	a := Descriptor(typ)
	t.known[a] = true
	t.All = append(t.All, typ)
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Chan:
		t.add(typ.Elem())
	case reflect.Map:
		t.add(typ.Elem())
		t.add(typ.Key())
		group := typeAt(read64(a + 64))
		t.groups[Descriptor(group)] = typ
		t.add(group)
	case reflect.Struct:
		for i := range typ.NumField() {
			t.add(typ.Field(i).Type)
		}
	case reflect.Func:
		for i := range typ.NumIn() {
			t.add(typ.In(i))
		}
		for i := range typ.NumOut() {
			t.add(typ.Out(i))
		}
	}
}

// plausible reports whether an internal/abi.Type could start at a: every field is checked against
// what it may be.
func plausible(a, lo, hi uint64) bool {
	in := func(p uint64) bool { return p >= lo && p < hi }
	size, ptrBytes := read64(a), read64(a+8)
	flags, align, fieldAlign, kind := read8(a+20), uint64(read8(a+21)), uint64(read8(a+22)), reflect.Kind(read8(a+23))
	powerOf2 := func(n uint64) bool { return n > 0 && n <= 8 && n&(n-1) == 0 }
	if size > 1<<30 || ptrBytes > size || ptrBytes%8 != 0 || flags > 63 || !powerOf2(align) || !powerOf2(fieldAlign) ||
		size%align != 0 ||
		kind == 0 || kind > reflect.UnsafePointer {
		return false
	}
	name, ptrTo := int32(read32(a+40)), int32(read32(a+44))
	if name <= 0 || !in(lo+uint64(name)) || ptrTo < 0 || !in(lo+uint64(ptrTo)) || !plausibleName(lo+uint64(name), hi) {
		return false
	}
	wantSize := map[reflect.Kind]uint64{
		reflect.Pointer: 8, reflect.Map: 8, reflect.Chan: 8, reflect.Func: 8, reflect.UnsafePointer: 8,
		reflect.String: 16, reflect.Interface: 16, reflect.Slice: 24,
	}[kind]
	if wantSize != 0 && (size != wantSize || ptrBytes == 0) {
		return false
	}
	switch kind {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Chan, reflect.Array:
		return in(read64(a + 48))
	case reflect.Struct:
		fields, n := read64(a+56), read64(a+64)
		if n != read64(a+72) || n > 5000 || n > 0 && (!in(fields) || fields+24*n > hi) {
			return false
		}
		for i := range n {
			if !in(read64(fields+24*i+8)) || read64(fields+24*i+16) > size {
				return false
			}
		}
	}
	return true
}

// plausibleName checks an encoded name: flags, length, printable bytes.
func plausibleName(a, hi uint64) bool {
	if read8(a)&^0xf != 0 {
		return false
	}
	n, p := uint64(0), a+1
	for shift := 0; ; shift += 7 {
		if shift > 14 || p >= hi {
			return false
		}
		b := read8(p)
		p++
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			break
		}
	}
	if n == 0 || n > 4000 || p+n > hi {
		return false
	}
	for i := range n {
		if read8(p+i) < 0x20 {
			return false
		}
	}
	return true
}

// fullName spells a type as DWARF does: with full package paths.
func fullName(t reflect.Type) string {
	if t.Name() != "" {
		return strings.TrimPrefix(t.PkgPath()+"."+t.Name(), ".")
	}
	switch t.Kind() {
	case reflect.Pointer:
		return "*" + fullName(t.Elem())
	case reflect.Slice:
		return "[]" + fullName(t.Elem())
	case reflect.Array:
		return "[" + strconv.Itoa(t.Len()) + "]" + fullName(t.Elem())
	case reflect.Map:
		return "map[" + fullName(t.Key()) + "]" + fullName(t.Elem())
	case reflect.Chan:
		return t.ChanDir().String() + " " + fullName(t.Elem())
	case reflect.Func:
		return funcName(t)
	case reflect.Struct:
		fields := make([]string, t.NumField())
		for i := range fields {
			f := t.Field(i)
			fields[i] = fullName(f.Type)
			if !f.Anonymous {
				// PkgPath is that of an unexported field
				fields[i] = strings.TrimPrefix(f.PkgPath+"."+f.Name, ".") + " " + fields[i]
			}
			if f.Tag != "" {
				fields[i] += " " + strconv.Quote(string(f.Tag))
			}
		}
		if len(fields) == 0 {
			return "struct {}"
		}
		return "struct { " + strings.Join(fields, "; ") + " }"
	}
	return t.String()
}

func funcName(t reflect.Type) string {
	in, out := make([]string, t.NumIn()), make([]string, t.NumOut())
	for i := range in {
		if in[i] = fullName(t.In(i)); t.IsVariadic() && i == len(in)-1 {
			in[i] = "..." + fullName(t.In(i).Elem())
		}
	}
	for i := range out {
		out[i] = fullName(t.Out(i))
	}
	s := "func(" + strings.Join(in, ", ") + ")"
	switch len(out) {
	case 0:
		return s
	case 1:
		return s + " " + out[0]
	}
	return s + " (" + strings.Join(out, ", ") + ")"
}

// FuncAt names the function whose code starts exactly at pc; "" when none does. (runtime.FuncForPC
// names the innermost inlined function, which is wrong for the code pointer of a closure.)
func FuncAt(pc uint64) string {
	f := outerFunc(pc)
	if f == nil || uint64(f.Entry()) != pc {
		return ""
	}
	return plain(f.Name())
}

// plain undoes the linker's spelling of dots in the last element of a package's path.
func plain(name string) string { return strings.ReplaceAll(name, "%2e", ".") }

// FuncOf names the function that pc lies in, never an inlined one.
func FuncOf(pc uint64) string {
	if f := outerFunc(pc); f != nil {
		return plain(f.Name())
	}
	return ""
}

func outerFunc(pc uint64) *runtime.Func {
	md := lastmoduledatap
	if pc < uint64(md.text) || pc >= uint64(md.etext) {
		return nil
	}
	return (*runtime.Func)(findfunc(uintptr(pc)).f)
}

// Line returns the function, possibly an inlined one, file and line of a return address: of the
// innermost function that skip does not name. All are empty when there is none.
func Line(pc uint64, skip func(fn string) bool) (fn, file string, line int) {
	frames := runtime.CallersFrames([]uintptr{uintptr(pc)})
	for {
		f, more := frames.Next()
		if f.Function != "" && (skip == nil || !skip(f.Function)) {
			return plain(f.Function), f.File, f.Line
		}
		if !more {
			break
		}
	}
	// CallersFrames returns the innermost inlined function only; when that is skipped, its host may
	// be the one: sync.(*RWMutex).RLock in the user's.
	f := outerFunc(pc)
	if f == nil || skip == nil || f.Name() == "" || skip(f.Name()) {
		return "", "", 0
	}
	file, line = f.FileLine(f.Entry()) // the line of the call is not known
	return plain(f.Name()), file, line
}

// Variables is where the variables lie that have pointers and no initial value.
func Variables() (lo, hi uint64) {
	md := lastmoduledatap
	return uint64(md.bss), uint64(md.ebss)
}

// Sane checks that the layout of the runtime's tables is the one that this package knows.
func Sane() bool {
	md := lastmoduledatap
	self := reflect.ValueOf(Sane).Pointer()
	typ := uintptr(Descriptor(reflect.TypeFor[moduledata]()))
	return md != nil && md.text <= self && self < md.etext && md.types <= typ && typ < md.etypes &&
		md.data <= md.edata && md.bss <= md.ebss &&
		strings.HasSuffix(FuncAt(uint64(self)), "symbols.Sane")
}
