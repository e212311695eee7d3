package cudatest

import (
	"fmt"
	"strings"
	"testing"
)

// recorder is a TB that notes what is said to it.
type recorder struct {
	cleanups []func()
	errors   []string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Skipf(f string, a ...any)  { panic(fmt.Sprintf(f, a...)) }
func (r *recorder) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (r *recorder) Errorf(f string, a ...any) { r.errors = append(r.errors, fmt.Sprintf(f, a...)) }

var _ TB = testing.TB(nil)

// A fault that never happened is an error: the test that asked for it tested nothing.
func TestFaultThatNeverHappens(t *testing.T) {
	New(t, 1, 1) // skips without a compiler
	r := &recorder{}
	s := New(r, 1, 1<<20)
	s.Fail("cuMemAlloc_v2", 1, 2)
	for _, f := range r.cleanups {
		f()
	}
	if len(r.errors) != 1 || !strings.Contains(r.errors[0], "1 faults of Stub.Fail never happened") {
		t.Errorf("got %q", r.errors)
	}
	s.Forgive()
	if n := s.Pending(); n != 0 {
		t.Errorf("%d faults are left", n)
	}
}
