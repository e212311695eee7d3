package forkproc

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/enginetest/enginetest/internal/proc"
)

const (
	// the full name of the test that the process was started for; people and tools may read it
	envTest  = "FORKPROC_TEST"
	envRoute = "FORKPROC_ROUTE" // the file with the route, in JSON
	envMode  = "FORKPROC"       // set by users: "inline" runs bodies in this process

	controlFD = 3 // the child's end of the pipe that carries its notes: hello, begin, body, end
	firstFile = 4 // the first of the Files
)

// A route leads from the root process to a child: which Run calls to go into, from the outermost
// test to the innermost.
type route struct {
	Exe   string
	Notes uint64 // inode of the pipe for notes
	Steps []step
	Call  *call `json:",omitempty"` // instead of steps: a function
	Blind bool  // the parent is not told who makes what: the child tells what it made

	dir string // of the file that the route came in
}

type step struct {
	Test  string
	Prior []result // of its earlier Run calls: they are not run again
}

// self is the route to this process, nil in a root process. Written by init only.
var self *route

// startDir is where the process started. A child starts there too: it repeats the t.Chdir calls
// above Run itself.
var startDir string

func init() {
	startDir, _ = os.Getwd()
	file, ok := syscall.Getenv(envRoute) // not os.Getenv: it would become an input of the test cache
	if !ok {
		return
	}
	_ = os.Unsetenv(envRoute)
	w := new(route)
	if b, err := os.ReadFile(file); err != nil || json.Unmarshal(b, w) != nil {
		return
	}
	// The environment reaches every process that the child starts, other test binaries included.
	// The binary tells them apart.
	if exe, err := os.Executable(); err != nil || exe != w.Exe {
		return
	}
	w.dir = filepath.Dir(file)
	self = w
	if takesNotes = w.Notes != 0 && proc.Inode(controlFD) == w.Notes; takesNotes {
		syscall.CloseOnExec(controlFD) // not for what this process starts
	}
	if w.Blind {
		watchOwn()
	}
	note("hello", fmt.Sprint(os.Getpid()))
}

// takesNotes says that the descriptors came through: a wrapper may have closed them. Written by
// init only.
var takesNotes bool

// note tells the parent how far this child came.
func note(words ...string) {
	if !takesNotes {
		return
	}
	_, _ = syscall.Write(controlFD, []byte(strings.Join(words, " ")+"\n"))
}

// place is the step of a test, nil when this process was not started to go into it.
func (w *route) place(test string) (s *step, last bool) {
	if w == nil {
		return nil, false
	}
	for i := range w.Steps {
		if w.Steps[i].Test == test {
			return &w.Steps[i], i == len(w.Steps)-1
		}
	}
	return nil, false
}

// extend returns the steps to a child of this process for a Run call of a test.
func (w *route) extend(s step) []step {
	var steps []step
	if w != nil {
		for _, outer := range w.Steps {
			if strings.HasPrefix(s.Test, outer.Test+"/") {
				steps = append(steps, outer)
			}
		}
	}
	return append(steps, s)
}

// runHere runs the body in the child and does not return: what follows Run in the test is for the
// parent.
func runHere(t *testing.T, body func(*testing.T), last bool) {
	returned, clean := false, false
	if last {
		note("begin")
		t.Cleanup(func() { // registered first, so it runs after the body's own
			if clean {
				tellMade()
				note("end")
			}
		})
		defer func() {
			// Package testing runs cleanups in a panic too; that is not the end that a pass needs.
			if clean = returned || t.Failed() || t.Skipped(); clean {
				note("body")
			}
		}()
	}
	body(t)
	returned = true
	stop(t, last)
}

// stop ends the test now, with the result that it has. Package testing has FailNow and SkipNow for
// that, but nothing for a test that has not failed, and SkipNow would make t.Skipped true in the
// body's cleanups. So it sets what FailNow sets, less the failure. Should a later release rename
// the field, the fallback is a skip that the parent counts as a pass.
func stop(t *testing.T, last bool) {
	switch {
	case t.Failed():
		t.FailNow()
	case setFinished(t):
		runtime.Goexit()
	}
	if last {
		note("pass")
	}
	t.SkipNow()
}

func setFinished(t *testing.T) bool {
	v := reflect.ValueOf(t).Elem()
	finished, mu := v.FieldByName("finished"), v.FieldByName("mu")
	if !finished.IsValid() || finished.Kind() != reflect.Bool || !mu.IsValid() ||
		mu.Type() != reflect.TypeFor[sync.RWMutex]() {
		return false
	}
	lock := (*sync.RWMutex)(unsafe.Pointer(mu.UnsafeAddr()))
	lock.Lock()
	defer lock.Unlock()
	*(*bool)(unsafe.Pointer(finished.UnsafeAddr())) = true
	return true
}

// calls counts the Run calls of the running tests, and keeps what they gave. A test leaves it when
// it ends.
var calls = struct {
	sync.Mutex
	prior map[*testing.T][]result
	count map[*testing.T]int
}{prior: map[*testing.T][]result{}, count: map[*testing.T]int{}}

func nextCall(t *testing.T) (n int, prior []result) {
	calls.Lock()
	defer calls.Unlock()
	if calls.count[t] == 0 {
		t.Cleanup(func() {
			calls.Lock()
			defer calls.Unlock()
			delete(calls.count, t)
			delete(calls.prior, t)
		})
	}
	calls.count[t]++
	return calls.count[t], calls.prior[t]
}

func remember(t *testing.T, r result) {
	calls.Lock()
	defer calls.Unlock()
	calls.prior[t] = append(calls.prior[t], r)
}
