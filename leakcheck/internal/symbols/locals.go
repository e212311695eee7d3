package symbols

import (
	"debug/dwarf"
	"encoding/binary"
	"reflect"
	"strings"
)

// Local is a variable of a function that lies in its frame, or one that its closure captured.
type Local struct {
	Name   string
	Offset int64 // from the frame's end (CFA), or from the start of the closure
	Size   int64
	In     int64        // a piece of a variable: its offset in the variable
	Type   reflect.Type // nil when it is not known
	Boxed  bool         // the slot holds a pointer to the variable, which escaped
}

// Locals lists the variables of the function at entry that lie in memory when it stands at pc, and
// those that its closure captured.
func (n *Names) Locals(entry, pc uint64) (locals, captured []Local) {
	if n.debug == nil {
		return nil, nil
	}
	d := n.debug
	off, ok := d.functions[entry]
	if !ok {
		return nil, nil
	}
	r := d.data.Reader()
	r.Seek(off)
	if e, err := r.Next(); err != nil || e == nil || !e.Children {
		return nil, nil
	}
	base, addrBase := d.unit(entry)
	for depth := 1; depth > 0; {
		e, err := r.Next()
		if err != nil || e == nil {
			break
		}
		if e.Tag == 0 {
			depth--
			continue
		}
		if e.Children {
			depth++
		}
		if e.Tag != dwarf.TagVariable && e.Tag != dwarf.TagFormalParameter {
			continue
		}
		l := d.local(e)
		if at, ok := e.Val(attrGoClosureOffset).(int64); ok {
			c := l
			c.Offset = at
			captured = append(captured, c)
		}
		for _, s := range d.slots(e, pc, base, addrBase) {
			l.Offset, l.In = s.offset, s.in
			if s.size > 0 {
				l.Size = s.size
			}
			locals = append(locals, l)
		}
	}
	return locals, captured
}

func (d *debugInfo) local(e *dwarf.Entry) Local {
	origin := e
	for range 4 { // of an inlined function
		to, ok := origin.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset)
		if !ok {
			break
		}
		if origin = d.entry(to); origin == nil {
			return Local{}
		}
	}
	name, _ := origin.Val(dwarf.AttrName).(string)
	die, _ := origin.Val(dwarf.AttrType).(dwarf.Offset)
	l := Local{Name: name, Type: d.typeOf(die), Size: int64(d.size(die))}
	if boxed, ok := strings.CutPrefix(name, "&"); ok {
		l.Name, l.Boxed, l.Size = boxed, true, 8
	}
	return l
}

// unit returns the base address and the address table's base of the compile unit that pc lies in.
func (d *debugInfo) unit(pc uint64) (base, addrBase uint64) {
	addrBase = 8
	if e, err := d.data.Reader().SeekPC(pc); err == nil && e != nil {
		if lo, ok := e.Val(dwarf.AttrLowpc).(uint64); ok {
			base = lo
		}
		if ab, ok := e.Val(dwarf.AttrAddrBase).(int64); ok {
			addrBase = uint64(ab)
		}
	}
	return base, addrBase
}

type slot struct{ offset, size, in int64 }

// slots returns the places in the frame where a variable, or a piece of it, lies at pc.
func (d *debugInfo) slots(e *dwarf.Entry, pc, base, addrBase uint64) []slot {
	switch l := e.Val(dwarf.AttrLocation).(type) {
	case []byte:
		return frameSlots(l)
	case int64:
		return d.listed(uint64(l), pc, base, addrBase)
	case uint64:
		return d.listed(l, pc, base, addrBase)
	}
	return nil
}

// listed reads a location list (DWARF 5, section 7.7.3).
func (d *debugInfo) listed(pos, pc, base, addrBase uint64) (out []slot) {
	if pos >= uint64(len(d.lists)) {
		return nil
	}
	defer func() { _ = recover() }() // a truncated list ends here
	b := d.lists[pos:]
	number := func() uint64 { v, n := binary.Uvarint(b); b = b[n:]; return v }
	address := func() uint64 { v := binary.LittleEndian.Uint64(b); b = b[8:]; return v }
	index := func() uint64 { return d.indexed(number(), addrBase) }
	for len(b) > 0 {
		kind := b[0]
		b = b[1:]
		var lo, hi uint64
		switch kind {
		case 1: // base_addressx
			base = index()
			continue
		case 2: // startx_endx
			lo, hi = index(), index()
		case 3: // startx_length
			lo = index()
			hi = lo + number()
		case 4: // offset_pair
			lo, hi = base+number(), base+number()
		case 5: // default_location
			hi = ^uint64(0)
		case 6: // base_address
			base = address()
			continue
		case 7: // start_end
			lo, hi = address(), address()
		case 8: // start_length
			lo = address()
			hi = lo + number()
		default: // end_of_list
			return out
		}
		n := number()
		expr := b[:n]
		b = b[n:]
		if pc >= lo && pc <= hi { // a return address lies just behind its call
			out = append(out, frameSlots(expr)...)
		}
	}
	return out
}

// frameSlots reads an expression: one place, or pieces of which some lie in registers.
func frameSlots(x []byte) (out []slot) {
	at, in, known := int64(0), int64(0), false
	for i := 0; i < len(x); {
		op := x[i]
		i++
		switch {
		case op == 0x91: // fbreg
			v, n := signed(x[i:])
			i += n
			at, known = v, true
		case op == 0x9c: // call_frame_cfa
			at, known = 0, true
		case op == 0x11: // consts
			v, n := signed(x[i:])
			i += n
			at += v
		case op == 0x22: // plus
		case op == 0x93: // piece
			size, n := binary.Uvarint(x[i:])
			i += n
			if known {
				out = append(out, slot{at, int64(size), in})
			}
			in += int64(size)
			known = false
		case op >= 0x50 && op <= 0x6f: // a register
			known = false
		case op == 0x90: // regx
			_, n := binary.Uvarint(x[i:])
			i += n
			known = false
		default:
			return out
		}
	}
	if known {
		out = append(out, slot{at, 0, 0})
	}
	return out
}

// signed reads a signed LEB128 number.
func signed(b []byte) (v int64, n int) {
	for shift := uint(0); n < len(b) && shift < 64; shift += 7 {
		c := b[n]
		n++
		v |= int64(c&0x7f) << shift
		if c < 0x80 {
			if c&0x40 != 0 && shift < 57 {
				v |= -1 << (shift + 7)
			}
			break
		}
	}
	return v, n
}
