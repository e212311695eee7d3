package heapdump

import (
	"encoding/binary"
	"fmt"
	"sort"
)

// index holds the graph of the objects, so that a search never reads the dump: 4 bytes for each
// pointer that is not nil, 2 for each object. A place in the heap is the number of its word from
// the heap's start.
//
// The runtime lists objects span by span, and a span's objects have the same size. So the index
// knows runs of slots, each page of the heap belongs to one run at most, and an object is found by
// a look at its page's run and a division.
type index struct {
	lo      uint64
	pages   []uint32 // 1 + the run that a page belongs to; 0: none
	runs    []run
	slots   int // of all runs: objects are numbered by them
	objects int

	current run // under construction
	edges   []uint32
	places  []uint16
	store   chunks
}

const (
	pageWords = 1 << 10 // a page of the Go heap has 8 KiB
	maxSpread = 32 << 30
)

// run is a row of slots of the same size.
type run struct {
	word, words uint32   // of the first slot, and of each slot
	first       int      // number of the first slot
	pos         int      // in the dump, of the first object's record
	places      []uint16 // of each slot: where its pointers start in edges; absent for a free slot
	edges       []uint32
}

const absent = 1<<16 - 1

// open sets the bounds of the heap.
func (x *index) open(lo, hi uint64) {
	if hi-lo > maxSpread {
		panic(fmt.Sprintf("the heap spreads over %d GiB, more than the %d that are known here", (hi-lo)>>30, maxSpread>>30))
	}
	x.lo = lo &^ (8*pageWords - 1)
	x.pages = make([]uint32, (hi-x.lo)/(8*pageWords)+1)
}

// word returns the number of the word at addr; ok is false outside of the heap.
//
//go:norace
func (x *index) word(addr uint64) (w uint32, ok bool) {
	off := addr - x.lo
	return uint32(off >> 3), off < uint64(len(x.pages))*8*pageWords //nolint:gosec // maxSpread
}

// add reads the most frequent record: address, contents, pointer offsets.
//
//go:norace
func (x *index) add(c *cursor, start int) {
	addr := c.uint()
	b := c.bytes()
	word, ok := x.word(addr)
	size := len(b)
	if !ok || addr%8 != 0 || size == 0 || size%8 != 0 || uint64(size)/8 > uint64(len(x.pages))*pageWords-uint64(word) {
		panic(fmt.Sprintf("an object of %d bytes at %#x", size, addr))
	}
	words := uint32(size) / 8 //nolint:gosec // checked: it lies in the heap
	if !x.continues(word, words) {
		x.endRun()
		x.current = run{word: word, words: words, first: x.slots, pos: start}
	}
	x.claim(word, words)
	for slot := (word - x.current.word) / words; uint32(len(x.places)) < slot; {
		x.places = append(x.places, absent)
	}
	x.objects++
	if len(x.edges) >= absent {
		panic("a run of too many pointers")
	}
	x.places = append(x.places, uint16(len(x.edges)))
	for c.uint() != 0 {
		if v := binary.LittleEndian.Uint64(b[c.uint():]); v != 0 {
			if w, ok := x.word(v); ok {
				x.edges = append(x.edges, w)
			}
		}
	}
}

// continues reports whether an object belongs to the current run. A run ends where a page starts
// that no slot has reached: there another span begins, or may.
//
//go:norace
func (x *index) continues(word, words uint32) bool {
	r := &x.current
	if r.words != words || word < r.word+uint32(len(x.places))*words || (word-r.word)%words != 0 {
		return false
	}
	return word-r.word < pageWords || x.pages[word/pageWords] == uint32(len(x.runs)+1)
}

// claim notes that the pages of an object belong to the current run.
//
//go:norace
func (x *index) claim(word, words uint32) {
	for p := word / pageWords; p <= (word+words-1)/pageWords; p++ {
		switch x.pages[p] {
		case 0:
			x.pages[p] = uint32(len(x.runs) + 1)
		case uint32(len(x.runs) + 1):
		default:
			panic(fmt.Sprintf("two spans in the page at %#x", x.lo+uint64(p)*8*pageWords))
		}
	}
}

// endRun files the current run.
//
//go:norace
func (x *index) endRun() {
	r := &x.current
	if len(x.places) == 0 {
		return
	}
	r.places, r.edges = x.store.places.put(x.places), x.store.edges.put(x.edges)
	x.slots += len(x.places)
	x.runs = append(x.runs, *r)
	x.current, x.places, x.edges = run{}, x.places[:0], x.edges[:0]
}

// find returns the run and the slot of the object that holds a word; nil when there is none.
//
//go:norace
func (x *index) find(word uint32) (r *run, slot uint32) {
	if word/pageWords >= uint32(len(x.pages)) {
		return nil, 0
	}
	n := x.pages[word/pageWords]
	if n == 0 {
		return nil, 0
	}
	r = &x.runs[n-1]
	if word < r.word {
		return nil, 0
	}
	slot = (word - r.word) / r.words
	if slot >= uint32(len(r.places)) || r.places[slot] == absent {
		return nil, 0
	}
	return r, slot
}

// pointers are the words that the object in a slot points to.
//
//go:norace
func (r *run) pointers(slot uint32) []uint32 {
	from := r.places[slot]
	for slot++; slot < uint32(len(r.places)); slot++ {
		if to := r.places[slot]; to != absent {
			return r.edges[from:to]
		}
	}
	return r.edges[from:]
}

// of returns the run and the slot of object i.
//
//go:norace
func (x *index) of(i int) (r *run, slot uint32) {
	k := sort.Search(len(x.runs), func(k int) bool { return x.runs[k].first > i }) - 1
	r = &x.runs[k]
	return r, uint32(i - r.first)
}

// chunks store short slices without copying them again.
type chunks struct {
	places chunk[uint16]
	edges  chunk[uint32]
}

type chunk[E any] struct{ free []E }

//go:norace
func (c *chunk[E]) put(v []E) []E {
	const size = 256 << 10
	if len(v) > cap(c.free) {
		c.free = make([]E, 0, max(size, len(v)))
	}
	out := append(c.free[:0:len(v)], v...)
	c.free = c.free[len(v):cap(c.free)][:0]
	return out
}
