package retain

import (
	"encoding/binary"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync/atomic"
	"unsafe"

	"github.com/enginetest/enginetest/leakcheck/internal/symbols"
)

// States of a goroutine (runtime._Gwaiting, runtime._Gleaked).
const (
	waiting = 4
	leaked  = 10
)

var leakedHeader = regexp.MustCompile(`(?m)^goroutine (\d+) \[[^\]]*\(leaked\)`)

// takeBack returns the goroutines that the leak profile found to the state in which it found them. The
// runtime does the same when it begins the next profile; until then its heap dump does not know their
// state, and kills the process. Where this fails, heapdump.Take refuses.
func takeBack() {
	if pprof.Lookup("goroutineleak") == nil {
		return
	}
	ids := map[uint64]bool{}
	for _, m := range leakedHeader.FindAllSubmatch(stackText(), -1) {
		if id, err := strconv.ParseUint(string(m[1]), 10, 64); err == nil {
			ids[id] = true
		}
	}
	id, state, ok := goroutineFields()
	if !ok || len(ids) == 0 {
		return
	}
	for _, g := range allGoroutines(id) { // the runtime never frees one
		if ids[*at[uint64](g + id)] {
			atomic.CompareAndSwapUint32(at[uint32](g+state), leaked, waiting)
		}
	}
}

// goroutineFields are the offsets of a goroutine's number and state in its descriptor (runtime.g).
func goroutineFields() (id, state uint64, ok bool) {
	t := symbols.LoadTypes().Named("runtime.g")
	if t == nil || t.Kind() != reflect.Struct {
		return 0, 0, false
	}
	i, ok := t.FieldByName("goid")
	s, has := t.FieldByName("atomicstatus")
	return uint64(i.Offset), uint64(s.Offset), ok && has && i.Type.Size() == 8 && s.Type.Size() == 4
}

func at[T any](a uint64) *T { return *(**T)(unsafe.Pointer(&a)) }

// allGoroutines finds the runtime's list of all goroutines (runtime.allgs), a slice among its
// variables, by its first element: the main goroutine, whose number is 1.
func allGoroutines(id uint64) []uint64 {
	mem, err := os.Open("/proc/self/mem") // reads what is not mapped as an error
	if err != nil {
		return nil
	}
	defer mem.Close()
	words := func(a, n uint64) []uint64 {
		b := make([]byte, 8*n)
		if _, err := mem.ReadAt(b, int64(a)); err != nil {
			return nil
		}
		out := make([]uint64, n)
		for i := range out {
			out[i] = binary.LittleEndian.Uint64(b[8*i:])
		}
		return out
	}
	word := func(a uint64) uint64 { return append(words(a, 1), 0)[0] }
	lo, hi := symbols.Variables()
	variables := words(lo, (hi-lo)/8)
	for i := 0; i+2 < len(variables); i++ {
		first, n, most := variables[i], variables[i+1], variables[i+2]
		if first == 0 || first%8 != 0 || n < uint64(runtime.NumGoroutine()) || n > most || most > 1<<24 ||
			word(word(first)+id) != 1 {
			continue
		}
		if list := words(first, n); list != nil {
			return list
		}
	}
	return nil
}
