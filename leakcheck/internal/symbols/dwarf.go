package symbols

import (
	"debug/dwarf"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

type dieOffset = dwarf.Offset

// Go's own DWARF attributes.
const (
	attrGoKind          = dwarf.Attr(0x2900)
	attrGoRuntimeType   = dwarf.Attr(0x2904)
	attrGoClosureOffset = dwarf.Attr(0x2907)
)

// debugInfo is a program's DWARF, as far as it names variables.
type debugInfo struct {
	data      *dwarf.Data
	types     *Types
	addrs     []byte // .debug_addr
	lists     []byte // .debug_loclists
	relinked  bool   // of a companion: descriptors may lie elsewhere
	globals   []Variable
	functions map[uint64]dwarf.Offset // by entry
	byDIE     map[dwarf.Offset]reflect.Type
}

func readDebug(f *elf.File, relinked bool) (*debugInfo, error) {
	data, err := f.DWARF()
	if err != nil {
		return nil, err
	}
	d := &debugInfo{
		data: data, types: LoadTypes(), relinked: relinked, functions: map[uint64]dwarf.Offset{},
		byDIE: map[dwarf.Offset]reflect.Type{},
	}
	for name, to := range map[string]*[]byte{".debug_addr": &d.addrs, ".debug_loclists": &d.lists} {
		if s := f.Section(name); s != nil {
			if *to, err = s.Data(); err != nil {
				return nil, err
			}
		}
	}
	for r := data.Reader(); ; {
		e, err := r.Next()
		if err != nil {
			return nil, err
		}
		if e == nil {
			break
		}
		switch e.Tag {
		case dwarf.TagCompileUnit:
			continue
		case dwarf.TagSubprogram:
			if lo, ok := e.Val(dwarf.AttrLowpc).(uint64); ok {
				d.functions[lo] = e.Offset
			}
		case dwarf.TagVariable:
			d.variable(e)
		}
		if e.Children {
			r.SkipChildren()
		}
	}
	if len(d.globals) == 0 {
		return nil, errors.New("no variables in the debug information")
	}
	return d, nil
}

func (d *debugInfo) variable(e *dwarf.Entry) {
	loc, _ := e.Val(dwarf.AttrLocation).([]byte)
	v := Variable{}
	switch {
	case len(loc) == 9 && loc[0] == 0x03: // DW_OP_addr
		v.Addr = binary.LittleEndian.Uint64(loc[1:])
	case len(loc) > 1 && loc[0] == 0xa1: // DW_OP_addrx
		i, _ := binary.Uvarint(loc[1:])
		v.Addr = d.indexed(i, 8)
	default:
		return
	}
	v.Name = nameOf(e)
	v.die, _ = e.Val(dwarf.AttrType).(dwarf.Offset)
	v.Size, v.Type = d.size(v.die), d.typeOf(v.die)
	d.globals = append(d.globals, v)
}

// indexed reads entry i of the address table that starts at base.
func (d *debugInfo) indexed(i, base uint64) uint64 {
	if at := base + 8*i; at+8 <= uint64(len(d.addrs)) {
		return binary.LittleEndian.Uint64(d.addrs[at:])
	}
	return 0
}

func (d *debugInfo) size(die dwarf.Offset) uint64 {
	t, err := d.data.Type(die)
	if err != nil || t.Size() < 0 {
		return 0
	}
	return uint64(t.Size())
}

func (d *debugInfo) entry(off dwarf.Offset) *dwarf.Entry {
	r := d.data.Reader()
	r.Seek(off)
	e, err := r.Next()
	if err != nil {
		return nil
	}
	return e
}

// typeOf finds the descriptor of a DWARF type: by its name, or by the address that the linker noted
// when that is trustworthy.
func (d *debugInfo) typeOf(die dwarf.Offset) reflect.Type {
	if die == 0 {
		return nil
	}
	if t, ok := d.byDIE[die]; ok {
		return t
	}
	d.byDIE[die] = nil // ends recursion
	e := d.entry(die)
	if e == nil {
		return nil
	}
	name := nameOf(e)
	noted, _ := e.Val(attrGoRuntimeType).(uint64)
	if noted == 0 {
		if n, ok := e.Val(attrGoRuntimeType).(int64); ok {
			noted = uint64(n)
		}
	}
	if md := lastmoduledatap; noted != 0 && noted < uint64(md.types) {
		noted += uint64(md.types) // an offset, since Go 1.26
	}
	t := d.types.full[name]
	if t == nil && e.Tag == dwarf.TagTypedef && noted == 0 {
		if to, ok := e.Val(dwarf.AttrType).(dwarf.Offset); ok {
			t = d.typeOf(to)
		}
	}
	if t == nil && !d.relinked {
		if x := d.types.At(noted); x != nil && fits(x, name, e) {
			t = x
		}
	}
	d.byDIE[die] = t
	return t
}

func fits(t reflect.Type, name string, e *dwarf.Entry) bool {
	if t.Name() != "" && !strings.Contains(name, "[") {
		return name == fullName(t) || strings.HasSuffix(name, "."+t.Name())
	}
	k, _ := e.Val(attrGoKind).(int64)
	return k == 0 || reflect.Kind(k) == t.Kind()
}

// Part is what lies at an offset of a variable whose own type has no descriptor.
type Part struct {
	Label string       // ".entries[3]"
	Type  reflect.Type // the first type on the way down that has a descriptor; nil when there is none
	In    uint64       // offset inside Type
	Elem  reflect.Type // what the pointer at the offset points to, when only that has a descriptor
	Slice bool         // the pointer is a slice's

	pointee dieOffset
}

// Known reports whether anything is known of what the pointer at the offset points to.
func (p Part) Known() bool { return p.pointee != 0 }

// Part walks down a variable's DWARF type to an offset.
func (n *Names) Part(v Variable, off uint64) Part {
	if n.debug == nil || v.die == 0 {
		return Part{}
	}
	return n.debug.part(v.die, off)
}

// Behind walks down what the pointer that a Part ended at points to.
func (n *Names) Behind(p Part, off uint64) Part {
	if n.debug == nil || p.pointee == 0 {
		return Part{}
	}
	return n.debug.part(p.pointee, off)
}

// SizeBehind is the size of what the pointer that a Part ended at points to.
func (n *Names) SizeBehind(p Part) uint64 {
	if n.debug == nil || p.pointee == 0 {
		return 0
	}
	return n.debug.size(p.pointee)
}

// TypeName is the DWARF name of a variable's type.
func (n *Names) TypeName(v Variable) string {
	if n.debug == nil || v.die == 0 {
		return ""
	}
	e := n.debug.entry(v.die)
	if e == nil {
		return ""
	}
	return nameOf(e)
}

func nameOf(e *dwarf.Entry) string {
	name, _ := e.Val(dwarf.AttrName).(string)
	return plain(name)
}

func (d *debugInfo) part(die dwarf.Offset, off uint64) (p Part) {
	for range 32 {
		if t := d.typeOf(die); t != nil {
			p.Type, p.In = t, off
			return p
		}
		r := d.data.Reader()
		r.Seek(die)
		e, err := r.Next()
		if err != nil || e == nil {
			return p
		}
		to, _ := e.Val(dwarf.AttrType).(dwarf.Offset)
		switch e.Tag {
		case dwarf.TagTypedef:
			die = to
		case dwarf.TagPointerType:
			p.Elem, p.pointee = d.typeOf(to), to
			return p
		case dwarf.TagArrayType:
			size := d.size(to)
			if size == 0 {
				return p
			}
			p.Label += fmt.Sprintf("[%d]", off/size)
			off, die = off%size, to
		case dwarf.TagStructType:
			if to := d.atomicPointer(e); to != 0 { // an unsafe.Pointer to a type that only its name tells
				p.Elem, p.pointee = d.typeOf(to), to
				return p
			}
			// its descriptor is missing, its elements' may be there
			if k, _ := e.Val(attrGoKind).(int64); reflect.Kind(k) == reflect.Slice {
				if to := d.element(r, e); to != 0 {
					p.Elem, p.pointee, p.Slice = d.typeOf(to), to, true
				}
				return p
			}
			member := d.member(r, e, off)
			if member == nil {
				return p
			}
			name, _ := member.Val(dwarf.AttrName).(string)
			at, _ := member.Val(dwarf.AttrDataMemberLoc).(int64)
			p.Label += "." + name
			off -= uint64(at)
			die, _ = member.Val(dwarf.AttrType).(dwarf.Offset)
		default:
			return p
		}
	}
	return p
}

// atomicPointer returns T of sync/atomic.Pointer[T], whose first field is a [0]*T.
func (d *debugInfo) atomicPointer(e *dwarf.Entry) dwarf.Offset {
	name, _ := e.Val(dwarf.AttrName).(string)
	if !strings.HasPrefix(name, "sync/atomic.Pointer[") || !e.Children {
		return 0
	}
	r := d.data.Reader()
	r.Seek(e.Offset)
	for range 2 { // the struct, its first field
		next, err := r.Next()
		if err != nil || next == nil {
			return 0
		}
		e = next
	}
	for range 3 { // the array, the pointer, T
		to, ok := e.Val(dwarf.AttrType).(dwarf.Offset)
		if !ok {
			return 0
		}
		if e = d.entry(to); e == nil {
			return 0
		}
	}
	return e.Offset
}

// element returns the type that the first field of a slice, the pointer to its array, points to.
func (d *debugInfo) element(r *dwarf.Reader, slice *dwarf.Entry) dwarf.Offset {
	if m := d.member(r, slice, 0); m != nil {
		to, _ := m.Val(dwarf.AttrType).(dwarf.Offset)
		if e := d.entry(to); e != nil && e.Tag == dwarf.TagPointerType {
			to, _ = e.Val(dwarf.AttrType).(dwarf.Offset)
			return to
		}
	}
	return 0
}

// member finds the field of a struct that an offset lies in.
func (d *debugInfo) member(r *dwarf.Reader, e *dwarf.Entry, off uint64) *dwarf.Entry {
	for e.Children {
		m, err := r.Next()
		if err != nil || m == nil || m.Tag == 0 {
			return nil
		}
		at, _ := m.Val(dwarf.AttrDataMemberLoc).(int64)
		to, _ := m.Val(dwarf.AttrType).(dwarf.Offset)
		if off >= uint64(at) && off < uint64(at)+d.size(to) {
			return m
		}
	}
	return nil
}
