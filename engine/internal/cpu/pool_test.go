package cpu

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRunCoversEachElementOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 5} {
		p := pool(t, threads, Generic)
		for _, n := range []int{0, 1, 2, 7, 100, 1001} {
			for _, grain := range []int{0, 1, 3, 1000, 5000} {
				seen := make([]atomic.Int32, n)
				p.Run(n, grain, func(lo, hi int) {
					require.LessOrEqual(t, hi-lo, max(grain, 1))
					for i := lo; i < hi; i++ {
						seen[i].Add(1)
					}
				})
				for i := range seen {
					require.EqualValues(t, 1, seen[i].Load(), "element %d of %d, grain %d, %d threads", i, n, grain,
						threads)
				}
			}
		}
	}
}

func TestRunIsSharedOut(t *testing.T) {
	p := pool(t, 3, Generic)
	for range 20 { // with pauses, so that workers sleep in between
		var together sync.WaitGroup
		together.Add(3)
		p.Run(3, 1, func(int, int) { // returns only when three threads are in it at the same time
			together.Done()
			together.Wait()
		})
		time.Sleep(time.Millisecond)
	}
}

func TestRunWithFewerProcessorsThanThreads(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	p := pool(t, 8, Generic)
	var sum atomic.Int64
	for range 2000 {
		p.Run(16, 1, func(lo, _ int) { sum.Add(int64(lo)) })
	}
	require.EqualValues(t, 2000*120, sum.Load())
}

func TestRunFromManyGoroutinesAndNested(t *testing.T) {
	p := pool(t, 4, Generic)
	var sum atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				p.Run(4, 1, func(int, int) {
					p.Run(3, 1, func(int, int) { sum.Add(1) })
				})
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 8*100*12, sum.Load())
}

func TestPanicReachesTheCaller(t *testing.T) {
	boom := errors.New("boom")
	for _, threads := range []int{1, 4} {
		p := pool(t, threads, Generic)
		for at := range 16 {
			var running atomic.Int32
			func() {
				defer func() {
					err, ok := recover().(error)
					require.True(t, ok)
					require.ErrorIs(t, err, boom)
					require.Zero(t, running.Load(), "Run came back while a part was still running")
				}()
				p.Run(16, 1, func(lo, _ int) {
					running.Add(1)
					defer running.Add(-1)
					if lo == at {
						panic(boom)
					}
				})
				t.Error("no panic")
			}()
		}
		var ok atomic.Int32
		p.Run(8, 1, func(int, int) { ok.Add(1) })
		require.EqualValues(t, 8, ok.Load(), "the pool works on after a panic")
	}
}

func TestPanicMessageHasTheStack(t *testing.T) {
	p := pool(t, 2, Generic)
	defer func() {
		f, ok := recover().(*Panic)
		require.True(t, ok)
		require.Equal(t, "lost", f.Value)
		require.NoError(t, f.Unwrap())
		require.Contains(t, f.Error(), "lost\n\nin a thread of the CPU device:")
		require.Contains(t, f.Error(), "TestPanicMessageHasTheStack")
	}()
	p.Run(2, 1, func(int, int) { panic("lost") })
}

func TestCloseJoinsAndRunStillWorks(t *testing.T) {
	p, err := NewPoolTier(9, Generic)
	require.NoError(t, err)
	require.Equal(t, 9, p.Threads())
	running := runtime.NumGoroutine()
	time.Sleep(2 * time.Millisecond) // asleep
	p.Close()
	for runtime.NumGoroutine() > running-8 { // a worker that has called Done may not be gone yet
		time.Sleep(time.Millisecond) // the test binary's timeout ends a hang
	}
	p.Close()
	n := 0
	p.Run(5, 1, func(int, int) { n++ })
	require.Equal(t, 5, n)
}

// Close while workers spin, sleep, or are about to.
func TestCloseAtAnyMoment(t *testing.T) {
	for i := range 100 {
		p, err := NewPoolTier(4, Generic)
		require.NoError(t, err)
		p.Run(4, 1, func(int, int) {})
		time.Sleep(time.Duration(i) * 2 * time.Microsecond)
		p.Close()
	}
}

// A pool that is done with a job must not keep what the job's body refers to: an engine's
// references are checked after it has shut down.
func TestPoolKeepsNoReferenceToABody(t *testing.T) {
	p := pool(t, 3, Generic)
	collected := make(chan struct{})
	func() {
		x := new([1 << 20]byte)
		runtime.AddCleanup(x, func(c chan struct{}) { close(c) }, collected)
		p.Run(8, 1, func(lo, _ int) { x[lo]++ })
	}()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		runtime.GC()
		select {
		case <-collected:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Fatal("what the body referred to is still reachable")
}

func TestTierOfTheEnvironment(t *testing.T) {
	for tier := Generic; tier <= Best(); tier++ {
		t.Setenv(TierEnv, tier.String())
		p, err := NewPool(1)
		require.NoError(t, err)
		require.Equal(t, tier, p.Tier())
		p.Close()
	}
	t.Setenv(TierEnv, "")
	tier, err := Detect()
	require.NoError(t, err)
	require.Equal(t, Best(), tier)

	t.Setenv(TierEnv, "sse2")
	_, err = NewPool(1)
	var refused *TierError
	require.ErrorAs(t, err, &refused)
	require.EqualError(t, err, `cpu: unknown tier "sse2"; ENGINETEST_CPU takes generic, avx2, avx512`)

	_, err = NewPoolTier(1, AVX512+1)
	require.ErrorAs(t, err, &refused)
	require.EqualError(t, &TierError{Value: "avx512", Best: AVX2, known: true},
		`cpu: tier "avx512" needs instructions that this machine does not have; its best is "avx2" (ENGINETEST_CPU)`)
}

func BenchmarkRun(b *testing.B) {
	for _, n := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", n), func(b *testing.B) {
			p := pool(b, n, Generic)
			b.ReportAllocs()
			for b.Loop() {
				p.Run(4, 1, func(int, int) {})
			}
		})
	}
}
