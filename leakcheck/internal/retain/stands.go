package retain

import "encoding/binary"

// stands reports whether a path from a variable is in memory now as it was in the dump: then its end
// is still reachable, which a collection of garbage need not tell. Other roots move or come and go.
func (x *explainer) stands(r root, objects []int, slots []uint64) bool {
	if r.kind != "global" || len(objects) > 1000 {
		return false
	}
	slot := r.slot
	for k, o := range objects {
		word := processMemory(slot, 8)
		if word == nil || x.d.Find(binary.LittleEndian.Uint64(word)) != o {
			return false
		}
		slot = slots[k]
	}
	return true
}

// slots finds, in each object, the pointer to the next one.
func (x *explainer) slots(objects []int) []uint64 {
	slots := make([]uint64, len(objects))
	for k := 0; k+1 < len(objects); k++ {
		x.d.Pointers(objects[k], func(off, v uint64) {
			if slots[k] == 0 && x.d.Find(v) == objects[k+1] {
				slots[k] = x.d.Addr(objects[k]) + off
			}
		})
	}
	return slots
}
