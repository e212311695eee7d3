// Package linear tells a test whether work is linear in its size, on a machine that does other
// things at the same time.
package linear

import (
	"math"
	"runtime"
	"runtime/debug"
	"time"
)

const (
	rounds = 20
	// least is the shortest time that counts: below it a clock's own cost is most of it.
	least = 50 * time.Microsecond
)

// T is what Check needs of a test.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Check fails the test when work that is large/small times as much takes disproportionately longer.
// It calls prepare for each size and measures the function that prepare returns, by the processor
// time of its thread and without garbage collections, so that a neighbour does not count; the best
// of several rounds does. The bound is growth^1.5: linear work takes growth times as long,
// quadratic work growth² times.
func Check(t T, small, large int, prepare func(n int) (work func())) {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	bound := math.Pow(float64(large)/float64(small), 1.5)
	best := map[int]time.Duration{small: math.MaxInt64, large: math.MaxInt64}
	for range rounds {
		for _, n := range []int{small, large} {
			work := prepare(n)
			runtime.GC()
			start := threadTime()
			work()
			best[n] = min(best[n], threadTime()-start)
		}
		if float64(best[large]) < bound*float64(max(best[small], least)) {
			return
		}
	}
	t.Fatalf("%d take %v of processor time, %d take %v: more than %.0f times as long", small, best[small],
		large, best[large], bound)
}

var start = time.Now()

func sinceStart() time.Duration { return time.Since(start) }
