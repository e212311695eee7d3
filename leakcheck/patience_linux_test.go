package leakcheck

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestSpent(t *testing.T) {
	for _, row := range []struct{ passed, starved, want time.Duration }{
		{time.Second, 0, time.Second},
		{time.Second, 400 * time.Millisecond, 600 * time.Millisecond},
		{time.Second, time.Hour, 100 * time.Millisecond}, // many threads wait at once
		{time.Second, -time.Hour, time.Second},           // one that had waited has ended
	} {
		assert.Equal(t, row.want, spent(row.passed, row.starved), row)
	}
}

// TestStarved: more threads than processors wait for their turn.
func TestStarved(t *testing.T) {
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		t.Skip(err)
	}
	n := 2 * runtime.NumCPU()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(n))
	before, start := starved(), time.Now()
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for !stop.Load() {
			}
		})
	}
	for starved() <= before && time.Since(start) < time.Minute {
		time.Sleep(time.Millisecond)
	}
	stop.Store(true)
	wg.Wait()
	assert.Greater(t, starved(), before)
}
