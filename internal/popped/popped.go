// Package popped clears the cleanups that the testing package has already run. Testing pops a
// cleanup off its list and leaves the slot as it is, so the list's array keeps the function, and
// all that it captured, for as long as the test is remembered.
package popped

import (
	"encoding/binary"
	"reflect"
	"sync"
	"testing"
	"unsafe"
)

// fields are the offsets of what Clear needs in testing's common, the first field of a T, a B and
// an F.
type fields struct {
	mu, cleanups, sub uintptr
	ok                bool
}

var layout = sync.OnceValue(func() (f fields) {
	common, found := reflect.TypeFor[testing.T]().FieldByName("common")
	if !found || common.Offset != 0 || common.Type.Kind() != reflect.Struct {
		return f
	}
	f.ok = true
	at := func(name string, want reflect.Type) uintptr {
		field, found := common.Type.FieldByName(name)
		f.ok = f.ok && found && field.Type == want
		return field.Offset
	}
	f.mu = at("mu", reflect.TypeFor[sync.RWMutex]())
	f.cleanups = at("cleanups", reflect.TypeFor[[]func()]())
	f.sub = at("sub", reflect.TypeFor[[]*testing.T]())
	for _, t := range []reflect.Type{reflect.TypeFor[testing.B](), reflect.TypeFor[testing.F]()} {
		c, found := t.FieldByName("common")
		f.ok = f.ok && found && c.Offset == 0 && c.Type == common.Type
	}
	return f
})

// Clear clears the slots of the cleanups that have run, of a test and of its parallel subtests.
// Call it from a cleanup: then the subtests have ended. tb is a *testing.T, B or F, or a struct
// that embeds one; for any other value, and when testing's layout is not known, it does nothing.
func Clear(tb any) {
	f := layout()
	t := find(reflect.ValueOf(tb), 4)
	if !f.ok || t == nil {
		return
	}
	f.clear(t)
}

func (f fields) clear(t unsafe.Pointer) {
	mu := (*sync.RWMutex)(unsafe.Add(t, f.mu))
	mu.Lock()
	list := *(*[]func())(unsafe.Add(t, f.cleanups))
	clear(list[len(list):cap(list)])
	subtests := *(*[]*testing.T)(unsafe.Add(t, f.sub))
	mu.Unlock()
	for _, sub := range subtests {
		f.clear(unsafe.Pointer(sub))
	}
}

// The kinds of what the testing package runs.
const (
	Unknown = iota
	Test
	Benchmark
	Fuzz
)

// Kind says what tb is, or embeds.
func Kind(tb any) int {
	kind, _ := locate(reflect.ValueOf(tb), 4)
	return kind
}

// Pointer returns the address of the *testing.T, B or F that tb is or embeds; nil when there is
// none.
func Pointer(tb any) unsafe.Pointer { return find(reflect.ValueOf(tb), 4) }

// ParallelSubtests counts the subtests of a test that called its Parallel method.
func ParallelSubtests(tb any) int {
	f, t := layout(), Pointer(tb)
	if !f.ok || t == nil {
		return 0
	}
	mu := (*sync.RWMutex)(unsafe.Add(t, f.mu))
	mu.RLock()
	defer mu.RUnlock()
	return len(*(*[]*testing.T)(unsafe.Add(t, f.sub)))
}

func find(v reflect.Value, depth int) unsafe.Pointer {
	_, t := locate(v, depth)
	return t
}

// locate looks for the test behind pointers, interfaces and embedded fields.
func locate(v reflect.Value, depth int) (kind int, t unsafe.Pointer) {
	if !v.IsValid() || depth == 0 {
		return Unknown, nil
	}
	switch v.Type() {
	case reflect.TypeFor[*testing.T]():
		return Test, v.UnsafePointer()
	case reflect.TypeFor[*testing.B]():
		return Benchmark, v.UnsafePointer()
	case reflect.TypeFor[*testing.F]():
		return Fuzz, v.UnsafePointer()
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return locate(v.Elem(), depth-1)
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Type().Field(i).Anonymous {
				continue
			}
			if kind, t := locate(v.Field(i), depth); t != nil {
				return kind, t
			}
		}
	}
	return Unknown, nil
}

// Slots returns the list of cleanups of a test: its address, its length and its capacity, read from
// a copy of the test's memory.
func Slots(test []byte) (addr, length, capacity uint64, ok bool) {
	f := layout()
	if !f.ok || uint64(len(test)) < uint64(f.cleanups)+24 {
		return 0, 0, 0, false
	}
	word := func(i uintptr) uint64 { return binary.LittleEndian.Uint64(test[f.cleanups+8*i:]) }
	return word(0), word(1), word(2), true
}
