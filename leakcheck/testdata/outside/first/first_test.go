// Package first measures what the first failure of a process costs.
package first

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/enginetest/enginetest/leakcheck"
)

type engine struct{ weights []byte }

var cache = map[string]*engine{}

// TestFirst is run by BenchmarkFirst of leakcheck, which reads what it logs.
func TestFirst(t *testing.T) {
	if os.Getenv("LEAKCHECK_FIRST") == "" {
		t.Skip("only for BenchmarkFirst of leakcheck")
	}
	for _, name := range []string{"first", "second"} {
		cache[name] = &engine{weights: make([]byte, 1<<20)}
		ref := leakcheck.Track(name, cache[name], leakcheck.Patience(time.Second))
		start, own, children := time.Now(), used(syscall.RUSAGE_SELF), used(syscall.RUSAGE_CHILDREN)
		if err := ref.Released(t.Context()); err == nil {
			t.Fatal("nothing was found")
		}
		t.Logf("%s %.3f %.3f %.3f", name, (time.Since(start) - time.Second).Seconds(), used(syscall.RUSAGE_SELF)-own,
			used(syscall.RUSAGE_CHILDREN)-children)
	}
}

// used is the processor time that this process or its children have used, in seconds.
func used(who int) float64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(who, &r); err != nil {
		panic(err)
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}
