package heapdump

import (
	"encoding/binary"
	"math/bits"
)

// The index answers "which object holds this address" with two cache misses: for every 512 bytes of
// heap a bitmap of the words at which an object starts, and the number of the first of them.
const (
	arenaShift = 26
	blockShift = 9
)

type arena [1 << (arenaShift - blockShift)]block

type block struct {
	starts uint64
	first  uint32 // number of the first object that starts here, or 1 + that of the one that reaches in from before
}

// enter adds the next object to the index.
//
//go:norace
func (d *Dump) enter(addr, size uint64) {
	id := uint32(len(d.nodes))
	b := d.block(addr, true)
	if b.starts == 0 {
		b.first = id
	}
	b.starts |= 1 << (addr >> 3 & 63)
	for a := (addr>>blockShift + 1) << blockShift; a < addr+size; a += 1 << blockShift {
		if b := d.block(a, true); b.starts == 0 {
			b.first = id + 1
		}
	}
}

//go:norace
func (d *Dump) block(addr uint64, grow bool) *block {
	k := (addr - d.HeapLo) >> arenaShift
	if k >= uint64(len(d.arenas)) {
		return nil
	}
	a := d.arenas[k]
	if a == nil {
		if !grow {
			return nil
		}
		a = new(arena)
		d.arenas[k] = a
	}
	return &a[addr>>blockShift&(1<<(arenaShift-blockShift)-1)]
}

// Find returns the number of the object that holds addr, or -1.
//
//go:norace
func (d *Dump) Find(addr uint64) int {
	b := d.block(addr, false)
	if b == nil {
		return -1
	}
	at := addr >> 3 & 63
	if before := b.starts & (2<<at - 1); before != 0 { // an object starts in this block at or before addr
		i := int(b.first) + bits.OnesCount64(before) - 1
		start := addr>>blockShift<<blockShift | uint64(63-bits.LeadingZeros64(before))<<3
		if addr-start < d.Size(i) {
			return i
		}
		return -1
	}
	if b.first == 0 {
		return -1
	}
	i := int(b.first) - 1 // the last object before this block
	if start := d.Addr(i); addr >= start && addr-start < d.Size(i) {
		return i
	}
	return -1
}

// Len is the number of objects.
func (d *Dump) Len() int { return len(d.nodes) }

// Addr is where object i starts.
//
//go:norace
func (d *Dump) Addr(i int) uint64 {
	c := cursor{d.data, d.nodes[i].pos()}
	return c.uint()
}

// Size is the size of object i's slot in bytes.
//
//go:norace
func (d *Dump) Size(i int) uint64 {
	if w := d.nodes[i].words; w < large {
		return uint64(w) * 8
	}
	return uint64(len(d.Bytes(i)))
}

// HasPointers reports whether object i holds any pointer that is not nil.
func (d *Dump) HasPointers(i int) bool { return !d.nodes[i].plain }

// Bytes are the contents of object i.
//
//go:norace
func (d *Dump) Bytes(i int) []byte {
	c := cursor{d.data, d.nodes[i].pos()}
	c.uint()
	return c.bytes()
}

// Pointers calls f with the offset and the value of every pointer in object i that is not nil.
//
//go:norace
func (d *Dump) Pointers(i int, f func(off, val uint64)) {
	if d.nodes[i].plain {
		return
	}
	c := cursor{d.data, d.nodes[i].pos()}
	c.uint()
	b := c.bytes()
	for c.uint() != 0 {
		off := c.uint()
		if v := binary.LittleEndian.Uint64(b[off:]); v != 0 {
			f(off, v)
		}
	}
}

// Mask lists the offsets of object i's pointer words.
func (d *Dump) Mask(i int) []uint64 {
	c := cursor{d.data, d.nodes[i].pos()}
	c.uint()
	c.bytes()
	return d.offsets(c.p)
}

func (d *Dump) offsets(pos int) (out []uint64) {
	c := cursor{d.data, pos}
	for c.uint() != 0 {
		out = append(out, c.uint())
	}
	return out
}

// SegmentPointers and FramePointers list the offsets of pointer words.
func (d *Dump) SegmentPointers(s *Segment) []uint64 { return d.offsets(s.pointer) }

// FramePointers lists the offsets of the pointer words that the frame's stack map names.
func (d *Dump) FramePointers(f *Frame) []uint64 { return d.offsets(f.pointer) }

// Memory returns n bytes at addr as they were: of the heap, the data segments or a stack; nil when
// the dump does not hold them.
func (d *Dump) Memory(addr, n uint64) []byte {
	if i := d.Find(addr); i >= 0 {
		return slice(d.Bytes(i), addr-d.Addr(i), n)
	}
	for i := range d.Segments {
		if b := slice(d.Segments[i].Data, addr-d.Segments[i].Addr, n); b != nil {
			return b
		}
	}
	for i := range d.Frames {
		if b := slice(d.Frames[i].Data, addr-d.Frames[i].SP, n); b != nil {
			return b
		}
	}
	return nil
}

func slice(b []byte, off, n uint64) []byte {
	if size := uint64(len(b)); off > size || n > size-off {
		return nil
	}
	return b[off : off+n]
}

// Word is the word at addr, 0 when the dump does not hold it.
func (d *Dump) Word(addr uint64) uint64 {
	b := d.Memory(addr, 8)
	if b == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

// InHeap reports whether addr lies in an arena that has objects.
//
//go:norace
func (d *Dump) InHeap(addr uint64) bool {
	k := (addr - d.HeapLo) >> arenaShift
	return k < uint64(len(d.arenas)) && d.arenas[k] != nil
}

// Site returns the allocation stack of object i, innermost first, when the memory profile sampled
// it.
func (d *Dump) Site(i int) []Site {
	a := d.Addr(i)
	for _, at := range []uint64{a, a + 8} { // behind a type header
		if b, ok := d.samples[at]; ok {
			return d.buckets[b]
		}
	}
	return nil
}

// Sampled lists the addresses of the objects that the memory profile sampled.
func (d *Dump) Sampled() map[uint64]bool {
	out := make(map[uint64]bool, len(d.samples))
	for a := range d.samples {
		if d.Find(a) >= 0 {
			out[a] = true
		}
	}
	return out
}

// FirstWord is the first word of object i.
//
//go:norace
func (d *Dump) FirstWord(i int) uint64 {
	c := cursor{d.data, d.nodes[i].pos()}
	c.uint()
	c.uint()
	return binary.LittleEndian.Uint64(c.b[c.p:])
}
