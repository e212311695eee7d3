package retain

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/enginetest/enginetest/leakcheck/internal/symbols"
)

// intrinsic types an object by its own bytes: the type header of objects over 512 bytes, a
// closure's code pointer, a channel's element type.
func (x *explainer) intrinsic(i int) view {
	b, base := x.d.Bytes(i), x.d.Addr(i)
	if len(b) < 8 || !x.d.HasPointers(i) && len(b) < 96 {
		return view{}
	}
	first := binary.LittleEndian.Uint64(b)
	if len(b) > 512 && len(b) <= 32<<10 {
		if t := x.types.At(first); t != nil && x.d.HasPointers(i) {
			if m := x.types.MapOf(t); m != nil {
				return view{kind: mapGroups, t: m, base: base + 8}
			}
			return view{kind: value, t: t, base: base + 8, n: max(1, uint64(len(b)-8)/max(1, uint64(t.Size())))}
		}
	}
	if fn := symbols.FuncAt(first); fn != "" {
		return view{kind: closure, fn: fn, base: base}
	}
	if len(b) >= 96 && len(b) <= 128 { // {qcount, dataqsiz, buf, elemsize uint16, closed, timer, elemtype, …}
		if t := x.types.At(binary.LittleEndian.Uint64(b[40:])); t != nil &&
			uint64(t.Size()) == uint64(binary.LittleEndian.Uint16(b[24:])) {
			return view{kind: channel, t: t, base: base}
		}
	}
	return view{}
}

// fits checks that an expected view lies inside an object.
func (x *explainer) fits(v view, i int) bool {
	lo, hi := x.d.Addr(i), x.d.Addr(i)+x.d.Size(i)
	if v.base < lo || v.base >= hi {
		return false
	}
	switch v.kind {
	case value:
		return v.base+uint64(v.t.Size()) <= hi
	case mapHeader:
		return hi-lo == 48
	case channel:
		return hi-lo >= 96
	}
	return true
}

// fromReferrers types unknown objects of a path by whatever else points to them and knows what to:
// one pass over the heap.
func (x *explainer) fromReferrers(objects []int, views []view) (found bool) {
	want := map[int]int{}
	for k, o := range objects {
		if !views[k].known() {
			want[o] = k
		}
	}
	if len(want) == 0 {
		return false
	}
	wanted := func(o int) bool {
		k, ok := want[o]
		return ok && !views[k].known()
	}
	x.d.Referrers(wanted, func(from, to int) {
		var self view
		x.d.Pointers(from, func(off, target uint64) {
			k := want[to]
			if views[k].known() || x.d.Find(target) != to {
				return
			}
			slot := x.d.Addr(from) + off
			e := x.ifaceAt(slot, "")
			if !e.ok {
				if !self.known() {
					self = x.intrinsic(from)
				}
				e = x.edge(self, slot)
			}
			if e.ok && e.next.known() && x.fits(e.next, to) {
				views[k], found = e.next, true
			}
		})
	})
	return found
}

// maxCandidates is how many equally likely types are still worth a guess; with more, the object
// stays "type unknown".
const maxCandidates = 3

// infer types an object by its size, the places of its pointers, and the type of what lies behind
// the slot: all descriptors of the program are candidates. n is the number of equally likely ones.
func (x *explainer) infer(i int, slot uint64, child, hint view) (v view, n int) {
	size, base := x.d.Size(i), x.d.Addr(i)
	switch at := slot - base; { // the levels of a map above its groups
	case size == 32 && at == 16 && child.kind == mapGroups:
		return view{kind: mapTable, t: child.t, base: base}, 1
	case child.kind == mapTable:
		return view{kind: mapDirectory, t: child.t, base: base, n: size / 8}, 1
	case size == 48 && at == 16 && (child.kind == mapGroups || child.kind == mapDirectory):
		return view{kind: mapHeader, t: child.t, base: base}, 1
	}
	if size > 512 {
		return view{}, 0 // these have a header, or are too large to compare
	}
	mask := x.d.Mask(i)
	var candidates []view
	for _, t := range x.types.All {
		ts := uint64(t.Size())
		if ts == 0 || ts > size || t.Kind() == reflect.Func || !symbols.HasPointers(t) ||
			t.PkgPath() == "internal/runtime/maps" ||
			strings.Contains(t.Name(), "go.shape.") {
			continue
		}
		count := repeats(mask, pointerOffsets(t), ts, size)
		if count == 0 {
			continue
		}
		c := view{kind: value, t: t, base: base, n: count}
		if m := x.types.MapOf(t); m != nil {
			c = view{kind: mapGroups, t: m, base: base}
		}
		if e := x.edge(c, slot); child.known() && (!e.ok || !same(e.next, child)) {
			continue
		}
		if x.consistent(c, mask, i) {
			candidates = append(candidates, c)
		}
	}
	if len(candidates) == 0 {
		return view{}, 0
	}
	likely := func(c view) (s int) {
		if hint.kind == value && c.kind == value && c.t.Kind() == reflect.Struct && c.t.NumField() > 0 &&
			c.t.Field(0).Type == hint.t {
			s += 100 // what the referrer expects is the head of this one
		}
		if c.kind == mapGroups {
			s += 3
		} else if c.t.Name() != "" && c.t.Kind() == reflect.Struct {
			if s += 4; !internalName(c.t.PkgPath() + ".") {
				s += 2
			}
		}
		if c.n <= 1 {
			s++
		}
		return s
	}
	best := slices.MaxFunc(candidates, func(a, b view) int { return likely(a) - likely(b) })
	for _, c := range candidates {
		if likely(c) == likely(best) {
			n++
		}
	}
	switch {
	case likely(best) >= 100 || len(candidates) == 1:
		best.how = "type inferred from size and pointers"
		return best, 1
	case len(candidates) > maxCandidates:
		return view{}, len(candidates) // a lucky tie-break is no evidence
	case n == 1:
		best.how = fmt.Sprintf("likeliest of %d types", len(candidates))
		return best, 1
	}
	return view{}, n
}

// consistent checks every pointer of a candidate against what it points to.
func (x *explainer) consistent(v view, mask []uint64, i int) bool {
	for _, off := range mask {
		slot := x.d.Addr(i) + off
		target := x.d.Word(slot)
		if target == 0 {
			continue
		}
		e := x.edge(v, slot)
		if !e.ok && e.label == "" {
			return false
		}
		j := x.d.Find(target)
		if j < 0 || !e.ok || !e.next.known() {
			continue
		}
		in := x.intrinsic(j)
		if !x.fits(e.next, j) || (e.next.kind == closure) != (in.kind == closure) {
			return false
		}
		if in.kind == value && e.next.kind == value && in.base == e.next.base && e.next.t != in.t &&
			e.next.t.Size() > in.t.Size() {
			return false
		}
	}
	return true
}

func same(a, b view) bool {
	if a.kind != b.kind {
		return false
	}
	if a.kind == closure {
		return a.fn == b.fn
	}
	return a.t == b.t
}

// repeats tells how many values with these pointer offsets make up an object: the mask must be
// theirs and the allocator must use this slot size for them; 0 when it is not so.
func repeats(mask []uint64, offsets []uint64, typeSize, slot uint64) uint64 {
	if len(offsets) == 0 || len(mask)%len(offsets) != 0 {
		return 0
	}
	count := uint64(len(mask) / len(offsets))
	if count*typeSize > slot || slotFor(count*typeSize) != slot {
		return 0
	}
	for i, at := range mask {
		if at != uint64(i/len(offsets))*typeSize+offsets[i%len(offsets)] {
			return 0
		}
	}
	return count
}

var slotSizes = sync.OnceValue(func() (sizes []uint64) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	for _, c := range m.BySize {
		if c.Size > 0 {
			sizes = append(sizes, uint64(c.Size))
		}
	}
	return sizes
})

// slotFor is the slot size of an object of n ≤ 512 bytes.
func slotFor(n uint64) uint64 {
	for _, s := range slotSizes() {
		if n <= s {
			return s
		}
	}
	return 0
}

var offsetCache sync.Map

// pointerOffsets lists the pointer words of a type.
func pointerOffsets(t reflect.Type) []uint64 {
	if v, ok := offsetCache.Load(t); ok {
		return v.([]uint64)
	}
	var out []uint64
	var walk func(t reflect.Type, base uint64)
	walk = func(t reflect.Type, base uint64) {
		if len(out) > 64 || !symbols.HasPointers(t) {
			return
		}
		switch t.Kind() {
		case reflect.Interface:
			out = append(out, base+8)
		case reflect.Array:
			for i := range min(t.Len(), 65) {
				walk(t.Elem(), base+uint64(i)*uint64(t.Elem().Size()))
			}
		case reflect.Struct:
			for i := range t.NumField() {
				walk(t.Field(i).Type, base+uint64(t.Field(i).Offset))
			}
		default:
			out = append(out, base)
		}
	}
	walk(t, 0)
	offsetCache.Store(t, out)
	return out
}
