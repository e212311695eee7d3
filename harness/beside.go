package harness

import (
	"github.com/enginetest/enginetest/internal/origin"
	"github.com/enginetest/enginetest/leakcheck"
)

// besideTest finds out from the testing package whether other tests can run beside t.
func besideTest(t TB) Option {
	return func(o *options) {
		o.temp = func() string { return origin.TempDir(t) }
		o.sole = func() func() bool {
			still, known := origin.Alone(t)
			if !known {
				return soleByStacks()
			}
			first := leakcheck.OtherTests() == 0 // one that is in its cleanups is not counted by testing
			return func() bool { return first && still() }
		}
	}
}

// soleByStacks looks at the stacks of all goroutines, now and when it is asked.
func soleByStacks() func() bool {
	first := leakcheck.OtherTests() == 0
	return func() bool {
		first = first && leakcheck.OtherTests() == 0
		return first
	}
}
