package leakcheck_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startAndStop is an engine's life as the runtime sees it: goroutines on many processors that wait
// for each other, threads in system calls, locked threads that end, timers.
func startAndStop(lock bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	requests, results := make(chan int), make(chan int)
	var wg sync.WaitGroup
	for k := range 24 {
		wg.Go(func() {
			if lock && k%8 == 0 {
				runtime.LockOSThread() // the thread ends with the goroutine
			}
			for {
				select {
				case r := <-requests:
					if k%2 == 0 {
						pause := syscall.Timespec{Nsec: 50_000}
						syscall.Nanosleep(&pause, nil)
					}
					time.AfterFunc(time.Hour, cancel).Stop()
					results <- r
				case <-ctx.Done():
					return
				}
			}
		})
	}
	go func() {
		for r := range 60 {
			requests <- r
		}
	}()
	for range 60 {
		<-results
	}
	cancel()
	wg.Wait()
}

// clean are rounds that leave nothing behind. Each case is made anew for each series: none inherits
// what another has filled.
var clean = map[string]func() func(int){
	"nothing": func() func(int) { return func(int) {} },
	"one random buffer": func() func(int) {
		var last []byte
		return func(int) { last = make([]byte, rand.IntN(256<<10)); runtime.KeepAlive(last) }
	},
	"a ring of 4 random buffers": func() func(int) {
		ring := make([][]byte, 4) // full after the warm-up
		return func(i int) { ring[i%len(ring)] = make([]byte, rand.IntN(64<<10)) }
	},
	"a ring of 8 random buffers": func() func(int) { // half full after the warm-up
		ring := make([][]byte, 8)
		return func(i int) { ring[i%len(ring)] = make([]byte, rand.IntN(64<<10)) }
	},
	"a map that fills and empties": func() func(int) {
		m := map[int][]byte{}
		return func(int) {
			for k := range 200 + rand.IntN(200) {
				m[k] = make([]byte, 100)
			}
			clear(m)
		}
	},
	"pools": func() func(int) {
		p := &sync.Pool{New: func() any { return new([8 << 10]byte) }}
		return func(int) {
			var wg sync.WaitGroup
			for range 1 + rand.IntN(16) {
				wg.Go(func() { b := p.Get(); runtime.Gosched(); p.Put(b) })
			}
			wg.Wait()
		}
	},
	"finalizers": func() func(int) {
		return func(int) {
			for range rand.IntN(20) {
				f, err := os.Open(os.DevNull) // a finalizer closes it
				runtime.KeepAlive(f)
				if err != nil {
					panic(err)
				}
			}
		}
	},
	"start and stop": func() func(int) { return func(int) { startAndStop(true) } },
	"a server": func() func(int) {
		return func(int) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintln(w, "ok")
			}))
			defer s.Close()
			for range 4 {
				resp, err := s.Client().Get(s.URL)
				if err != nil {
					panic(err)
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}
	},
}

// withProcs runs f with as many processors as a large machine has.
func withProcs(t *testing.T, n int, f func()) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(n))
	f()
	assert.Equal(t, n, runtime.GOMAXPROCS(0), "the number of processors is as before")
}

// TestGrowthClean: rounds that leave nothing behind raise no alarm, on few processors and on many,
// with and without the race detector.
func TestGrowthClean(t *testing.T) {
	series, rounds := 1, 16
	if os.Getenv("ENGINETEST_LONG") != "" {
		series, rounds = 2000/len(clean), 16
	}
	for name, round := range clean {
		if testing.Short() && name != "start and stop" && name != "one random buffer" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			withProcs(t, 16, func() {
				for range series {
					_, err := leakcheck.MeasureGrowth(t.Context(), rounds, round(), leakcheck.WithoutPaths())
					require.NoError(t, err)
				}
			})
		})
	}
}

// TestSmallLeak: one KiB a round is found, every time.
func TestSmallLeak(t *testing.T) {
	series := 1
	if os.Getenv("ENGINETEST_LONG") != "" {
		series = 20
	}
	for range series {
		var kept [][]byte
		rep, err := leakcheck.MeasureGrowth(t.Context(), 20, func(int) {
			kept = append(kept, make([]byte, 1<<10))
			startAndStop(false)
		}, leakcheck.GrowthAllowed(512), leakcheck.WithoutPaths())
		require.ErrorContains(t, err, "leakcheck: Go heap: ", "%s%v", rep.Table(), rep.Trends)
		require.Equal(t, "Go heap", rep.Trends[0].Measure)
		require.InDelta(t, 1024, rep.Trends[0].PerRound, 512, "%s%v", rep.Table(), rep.Trends)
		runtime.KeepAlive(kept)
	}
}
