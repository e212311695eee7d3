package lookalikes

import (
	"flag"
	"testing"

	"github.com/enginetest/enginetest/leakcheck"
)

var (
	parallel = flag.Bool("lookalikes.parallel", false, "run the tests of this package in parallel")
	leak     = flag.Bool("lookalikes.leak", false, "keep every engine, so that every test must fail")
	kept     []*engine
)

// engine is what each look-alike hands to a library, and what must be gone after the test.
type engine struct {
	weights []byte
	calls   int
	next    *engine
}

func (e *engine) generate(prompt string) string {
	if len(e.weights) == 0 {
		return ""
	}
	return prompt + " and so on"
}

// guarded returns an engine that is tracked until the end of the test.
func guarded(t *testing.T) *engine {
	t.Helper()
	if *parallel {
		t.Parallel()
	}
	e := &engine{weights: make([]byte, 4096)}
	var opts []leakcheck.Option
	if *leak {
		kept = append(kept, e)
		opts = append(opts, leakcheck.Patience(0), leakcheck.WithoutPaths())
	}
	leaks := leakcheck.Guard(t, opts...)
	leaks.Track("engine", e)
	return e
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
