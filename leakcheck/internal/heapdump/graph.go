package heapdump

import (
	"encoding/binary"
	"iter"
)

// Find returns the number of the object that holds addr, or -1.
//
//go:norace
func (d *Dump) Find(addr uint64) int {
	word, ok := d.index.word(addr)
	if !ok {
		return -1
	}
	r, slot := d.index.find(word)
	if r == nil {
		return -1
	}
	return r.first + int(slot)
}

// Sized lists the objects whose slots have so many bytes.
func (d *Dump) Sized(atLeast, atMost uint64) iter.Seq[int] {
	return func(yield func(int) bool) {
		for k := range d.index.runs {
			r := &d.index.runs[k]
			if n := uint64(r.words) * 8; n < atLeast || n > atMost {
				continue
			}
			for slot, at := range r.places {
				if at != absent && !yield(r.first+slot) {
					return
				}
			}
		}
	}
}

// Len is the number of objects. Their numbers are not consecutive.
func (d *Dump) Len() int { return d.index.objects }

// Addr is where object i starts.
func (d *Dump) Addr(i int) uint64 {
	r, slot := d.index.of(i)
	return d.index.lo + 8*(uint64(r.word)+uint64(slot)*uint64(r.words))
}

// Size is the size of object i's slot in bytes.
func (d *Dump) Size(i int) uint64 {
	r, _ := d.index.of(i)
	return uint64(r.words) * 8
}

// object returns the contents of object i and a cursor to its list of pointers: it reads the run from
// its start.
//
//go:norace
func (d *Dump) object(i int) (b []byte, c cursor) {
	r, slot := d.index.of(i)
	c = cursor{d.data, r.pos}
	for k := range slot {
		if r.places[k] != absent {
			c.skip(2)
			c.bytes()
			c.pointers()
		}
	}
	c.skip(2)
	return c.bytes(), c
}

// HasPointers reports whether object i has words that are pointers.
func (d *Dump) HasPointers(i int) bool {
	_, c := d.object(i)
	return c.uint() != 0
}

// Bytes are the contents of object i.
func (d *Dump) Bytes(i int) []byte {
	b, _ := d.object(i)
	return b
}

// FirstWord is the first word of object i.
func (d *Dump) FirstWord(i int) uint64 { return binary.LittleEndian.Uint64(d.Bytes(i)) }

// Pointers calls f with the offset and the value of every pointer in object i that is not nil.
//
//go:norace
func (d *Dump) Pointers(i int, f func(off, val uint64)) {
	b, c := d.object(i)
	for c.uint() != 0 {
		off := c.uint()
		if v := binary.LittleEndian.Uint64(b[off:]); v != 0 {
			f(off, v)
		}
	}
}

// Referrers calls f for every pointer from another object to one that is wanted.
//
//go:norace
func (d *Dump) Referrers(wanted func(i int) bool, f func(from, to int)) {
	x := &d.index
	for k := range x.runs {
		r := &x.runs[k]
		for slot, at := range r.places {
			if at == absent || len(r.edges) == 0 {
				continue
			}
			for _, w := range r.pointers(uint32(slot)) { //nolint:gosec // an index
				to, s := x.find(w)
				if to == nil {
					continue
				}
				if from, i := r.first+slot, to.first+int(s); i != from && wanted(i) {
					f(from, i)
				}
			}
		}
	}
}

// Forget removes the words at these addresses, with the pointers in them, from their objects.
func (d *Dump) Forget(addrs []uint64) {
	changed := map[int]bool{}
	for _, a := range addrs {
		if i := d.Find(a); i >= 0 {
			clear(slice(d.Bytes(i), a-d.Addr(i), 8))
			changed[i] = true
		}
	}
	for i := range changed {
		r, slot := d.index.of(i)
		edges, left := r.pointers(slot), 0
		d.Pointers(i, func(_, val uint64) {
			if w, ok := d.index.word(val); ok {
				edges[left] = w
				left++
			}
		})
		for ; left < len(edges); left++ {
			edges[left] = r.word + slot*r.words // to itself leads nowhere
		}
	}
}

// Mask lists the offsets of object i's pointer words.
func (d *Dump) Mask(i int) []uint64 {
	_, c := d.object(i)
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

// InHeap reports whether addr lies within the bounds of the heap.
func (d *Dump) InHeap(addr uint64) bool {
	_, ok := d.index.word(addr)
	return ok
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
