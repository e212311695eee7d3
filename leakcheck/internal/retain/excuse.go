package retain

import (
	"encoding/binary"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/enginetest/enginetest/internal/popped"
	"github.com/enginetest/enginetest/leakcheck/internal/heapdump"
	"github.com/enginetest/enginetest/leakcheck/internal/symbols"
)

// Held reports which targets are kept by more than a test framework's leftovers and the frames of a
// test that is on its way out. It needs no names, so it is faster than [Explain].
func Held(targets []Target) (held []bool, err error) {
	err = withDump(Options{}, func(x *explainer) {
		objects, found := x.locate(targets)
		x.collectRoots()
		left := x.search.Run(found, excused)
		kept := make([]bool, len(objects))
		for k, i := range objects {
			kept[k] = i >= 0 && x.search.Found(i)
		}
		if left > 0 {
			x.search.Run(found, excused+1)
		}
		for k, i := range objects { // one that nothing explains is not excused
			held = append(held, kept[k] || i < 0 || !x.search.Found(i))
		}
	})
	return held, err
}

// popped takes what tests keep of cleanups that have run out of the dump, and makes excused roots
// of it: see package popped.
func (x *explainer) popped() {
	tests := map[uint64]reflect.Type{}
	for _, t := range []reflect.Type{
		reflect.TypeFor[testing.T](), reflect.TypeFor[testing.B](),
		reflect.TypeFor[testing.F](),
	} {
		tests[symbols.Descriptor(t)] = t
	}
	const header = 8 // objects over 512 bytes start with their type
	for i := range x.d.Sized(512, 1024) {
		t := tests[x.d.FirstWord(i)]
		if t == nil || uint64(t.Size())+header > x.d.Size(i) {
			continue
		}
		addr, length, capacity, ok := popped.Slots(x.d.Bytes(i)[header:])
		list := x.d.Find(addr)
		if !ok || list < 0 {
			continue
		}
		slots := slice(x.d.Bytes(list), addr-x.d.Addr(list)+8*length, 8*(capacity-length))
		for at := 0; at+8 <= len(slots); at += 8 {
			if v := binary.LittleEndian.Uint64(slots[at:]); v != 0 {
				x.root(excused, root{kind: "popped", val: v})
			}
		}
		x.d.Clear(addr+8*length, capacity-length)
	}
}

func slice(b []byte, off, n uint64) []byte {
	if size := uint64(len(b)); off > size || n > size-off {
		return nil
	}
	return b[off : off+n]
}

// left reports whether a frame keeps objects that no one is to blame for: one of Ginkgo's own,
// which holds the cleanups that have run; or one that a test has left by runtime.Goexit (t.FailNow,
// t.Skip) or by a panic, and that stays on the stack while the test's cleanups run.
func (x *explainer) left(f *heapdump.Frame) bool {
	if strings.HasPrefix(f.Func, "github.com/onsi/ginkgo/v2/internal.") {
		return true
	}
	frames := x.d.Goroutines[f.Goroutine].Frames
	ends := slices.IndexFunc(frames, func(k int) bool {
		return x.d.Frames[k].Func == "runtime.Goexit" || x.d.Frames[k].Func == "runtime.gopanic"
	})
	if ends < 0 || f.SP < x.d.Frames[frames[ends]].SP {
		return false
	}
	return f.Goroutine == x.caller || slices.ContainsFunc(frames, func(k int) bool {
		return x.d.Frames[k].Func == "testing.tRunner"
	})
}
