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
			x.excuse(binary.LittleEndian.Uint64(slots[at:]), addr+8*length+uint64(at))
		}
	}
}

// excuse makes what the word at addr points to an excused root, and forgets the word.
func (x *explainer) excuse(val, addr uint64) {
	if val != 0 {
		x.root(excused, root{kind: "popped", val: val})
		x.forgotten = append(x.forgotten, addr)
	}
}

// stopped takes the timers that were stopped out of the dump, as popped does. Go keeps them, with
// their functions, on the processor that they were set on until that one next looks at its timers.
func (x *explainer) stopped() {
	const header, zombie = 8, 1 << 2 // of runtime.timer's state
	p, timer := x.types.Named("runtime.p"), x.types.Named("runtime.timer")
	if p == nil || timer == nil {
		return
	}
	timers, ok1 := p.FieldByName("timers")
	state, ok2 := timer.FieldByName("state")
	if !ok1 || !ok2 || timers.Type.Kind() != reflect.Struct {
		return
	}
	heap, ok := timers.Type.FieldByName("heap")
	if !ok || heap.Type.Kind() != reflect.Slice {
		return
	}
	entry := uint64(heap.Type.Elem().Size())
	size := uint64(p.Size()) + header
	for i := range x.d.Sized(size, size+size/4) {
		if x.d.FirstWord(i) != symbols.Descriptor(p) {
			continue
		}
		list := x.d.Addr(i) + header + uint64(timers.Offset+heap.Offset)
		first, n := x.d.Word(list), x.d.Word(list+8)
		for k := range min(n, 1<<20) {
			at := first + k*entry
			t := x.d.Word(at)
			if b := x.d.Memory(t+uint64(state.Offset), 1); len(b) == 1 && b[0]&zombie != 0 {
				x.excuse(t, at)
			}
		}
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
