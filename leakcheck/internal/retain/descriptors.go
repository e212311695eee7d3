package retain

import (
	"encoding/binary"
	"reflect"
)

// ExplainDescriptors finds what keeps the os.File or the connection that has each of these
// descriptors. One that is missing is none of Go's.
func ExplainDescriptors(fds []int) (paths map[int]Path, err error) {
	paths = map[int]Path{}
	err = withDump(Options{}, func(x *explainer) {
		var targets []Target
		var of []int
		for _, h := range []struct{ typ, text string }{{"os.file", "name"}, {"net.netFD", "net"}} {
			for fd, a := range x.holders(h.typ, h.text, fds) {
				targets = append(targets, Target{Addr: a, Type: reflect.PointerTo(x.types.Named(h.typ))})
				of = append(of, fd)
			}
		}
		for k, p := range x.explain(targets) {
			paths[of[k]] = p
		}
	})
	return paths, err
}

// holders finds the objects of a type around a poll.FD that is open on one of the descriptors.
func (x *explainer) holders(name, text string, fds []int) map[int]uint64 {
	t := x.types.Named(name)
	if t == nil || t.Size() > 512 { // larger objects start with a header
		return nil
	}
	pfd, ok1 := t.FieldByName("pfd")
	label, ok2 := t.FieldByName(text)
	if !ok1 || !ok2 || pfd.Type.Kind() != reflect.Struct || label.Type.Kind() != reflect.String {
		return nil
	}
	sysfd, ok1 := pfd.Type.FieldByName("Sysfd")
	mutex, ok2 := pfd.Type.FieldByName("fdmu") // {state uint64; …}, of which bit 0 says closed
	if !ok1 || !ok2 {
		return nil
	}
	wanted := map[uint64]int{}
	for _, fd := range fds {
		wanted[uint64(fd)] = fd //nolint:gosec // not negative
	}
	out := map[int]uint64{}
	size := uint64(t.Size())
	for i := range x.d.Sized(size, size+size/4) {
		b := x.d.Bytes(i)
		word := func(off uintptr) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
		fd, ok := wanted[word(pfd.Offset+sysfd.Offset)]
		closed := word(pfd.Offset+mutex.Offset)&1 != 0
		if ok && !closed && x.printable(word(label.Offset), word(label.Offset+8)) {
			out[fd] = x.d.Addr(i)
		}
	}
	return out
}

// printable reports whether there is a text of n bytes at an address.
func (x *explainer) printable(a, n uint64) bool {
	if a == 0 || n == 0 || n > 4096 {
		return false
	}
	b := x.d.Memory(a, n)
	if b == nil { // a constant's
		b = processMemory(a, n)
	}
	for _, c := range b {
		if c < ' ' {
			return false
		}
	}
	return b != nil
}
