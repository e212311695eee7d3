// Package origin finds out who made what appears while a fixture lives: which test, which thread,
// which process. Each answer is evidence: where the system does not tell, there is none.
package origin

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"sync"
	"testing"
	"unsafe"

	"github.com/enginetest/enginetest/internal/popped"
)

// Alone finds out, when the test tb starts something, whether no other test can run in this process
// until tb has ended, its own subtests excepted. still answers the same at the end. known is false
// when the testing package does not say: tb is not its own, or has another layout.
func Alone(tb any) (still func() bool, known bool) {
	always := func() bool { return true }
	never := func() bool { return false }
	switch popped.Kind(tb) {
	case popped.Benchmark, popped.Fuzz: // they run one at a time, when the tests are over
		return always, true
	case popped.Test:
	default:
		return nil, false
	}
	f := layout()
	t := popped.Pointer(tb)
	if !f.ok || *(*unsafe.Pointer)(unsafe.Add(t, f.state)) == nil {
		return nil, false
	}
	if !f.parallel(t) {
		return always, true // those that called Parallel wait until it has ended
	}
	switch paused, others := otherTests(); {
	case others > 0:
		return never, true
	case paused == 0:
		return always, true
	case f.atOnce(t) == 1: // the next one starts when this one ends, or waits for its own subtests
		return func() bool { return popped.ParallelSubtests(tb) == 0 }, true
	}
	return never, true
}

// TempDir returns the folder that a test's TempDir method has made so far; "" when there is none,
// or the testing package does not say.
func TempDir(tb any) string {
	f, t := layout(), popped.Pointer(tb)
	if !f.ok || t == nil {
		return ""
	}
	mu := (*sync.Mutex)(unsafe.Add(t, f.tempMu))
	mu.Lock()
	defer mu.Unlock()
	return *(*string)(unsafe.Add(t, f.temp))
}

// OfGo reports whether an entry of the folder for temporary files is the go command's, or one of a
// test's TempDir.
func OfGo(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir() && ofGo.MatchString(filepath.Base(path))
}

var ofGo = regexp.MustCompile(`^(go-build|go-link-|(Test|Benchmark|Fuzz|Example).*)[0-9]+$`)

// fields are the offsets of what this package needs in the testing package's types.
type fields struct {
	state, mu, max     uintptr // of a T and its testState
	temp, tempMu       uintptr // of a T, B or F
	parent, isParallel uintptr
	ok                 bool
}

var layout = sync.OnceValue(func() (f fields) {
	test := reflect.TypeFor[testing.T]()
	common, ok1 := test.FieldByName("common")
	tstate, ok2 := test.FieldByName("tstate")
	if !ok1 || !ok2 || common.Offset != 0 || tstate.Type.Kind() != reflect.Pointer ||
		tstate.Type.Elem().Kind() != reflect.Struct {
		return f
	}
	f.state, f.ok = tstate.Offset, true
	at := func(in reflect.Type, name string, want reflect.Type) uintptr {
		field, found := in.FieldByName(name)
		f.ok = f.ok && found && field.Type == want
		return field.Offset
	}
	f.mu = at(tstate.Type.Elem(), "mu", reflect.TypeFor[sync.Mutex]())
	f.max = at(tstate.Type.Elem(), "maxParallel", reflect.TypeFor[int]())
	f.temp = at(common.Type, "tempDir", reflect.TypeFor[string]())
	f.tempMu = at(common.Type, "tempDirMu", reflect.TypeFor[sync.Mutex]())
	f.parent = at(common.Type, "parent", reflect.PointerTo(common.Type))
	f.isParallel = at(common.Type, "isParallel", reflect.TypeFor[bool]())
	return f
})

// parallel reports whether a test, or one that it is a subtest of, has called Parallel.
func (f fields) parallel(t unsafe.Pointer) bool {
	for ; t != nil; t = *(*unsafe.Pointer)(unsafe.Add(t, f.parent)) {
		if *(*bool)(unsafe.Add(t, f.isParallel)) {
			return true
		}
	}
	return false
}

// atOnce is how many parallel tests may run at a time.
func (f fields) atOnce(t unsafe.Pointer) int {
	state := *(*unsafe.Pointer)(unsafe.Add(t, f.state))
	mu := (*sync.Mutex)(unsafe.Add(state, f.mu))
	mu.Lock()
	defer mu.Unlock()
	return *(*int)(unsafe.Add(state, f.max))
}
