package leakcheck

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
)

// Sample is the state after one round, all that can be collected collected.
type Sample struct {
	Heap, Objects int64 // without what the runtime keeps for its threads
	OffHeap       int64
	Device        int64
	Goroutines    int64
	Descriptors   int64
	Threads       int64 // the Go runtime's own
}

// What the Go runtime allocates on the heap for each of its threads and keeps (Go 1.26: its m, two
// g and two buffers for stacks). A new one comes whenever all others are in system calls, so their
// number creeps up over many rounds without a leak.
const threadBytes, threadObjects = 5400, 6

// sample reads everything after settle.
func sample(cfg config) (s Sample) {
	settle()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s.Threads = goThreads()
	s.Heap, s.Objects = int64(m.HeapAlloc)-s.Threads*threadBytes, int64(m.HeapObjects)-s.Threads*threadObjects
	s.Goroutines = int64(runtime.NumGoroutine())
	s.OffHeap = max(0, residentBytes()-int64(m.Sys-m.HeapReleased)) // too low while Go has memory that it never touched
	s.Descriptors = openDescriptors()
	for _, bytes := range cfg.owners() {
		s.Device += bytes
	}
	return s
}

// settle collects all that can be collected, with the runtime's caches on every processor, and
// returns free memory to the system. What a cache of a processor holds depends on which one
// happened to run what: with many processors, these caches fill for many rounds.
func settle() {
	n := runtime.GOMAXPROCS(1) // drops the caches of all processors but one
	fillCaches()
	runtime.GOMAXPROCS(n)
	collectGarbage() // the first moves what is in a sync.Pool aside, the second frees it
	collectGarbage()
	debug.FreeOSMemory()
}

// fillCaches fills what is cached on the one processor that is left: the runtime keeps up to 128
// records of waiting goroutines there. Twice as many goroutines wait and go on, so that the cache
// is full, as it is in every other sample.
func fillCaches() {
	const goroutines = 256
	var all sync.WaitGroup
	var waiting atomic.Int32
	gate := make(chan struct{})
	for range goroutines {
		all.Go(func() { waiting.Add(1); <-gate })
	}
	for waiting.Load() < goroutines {
		runtime.Gosched()
	}
	close(gate)
	all.Wait()
}

// keepGOMAXPROCS undoes a side effect of settle: after a call of runtime.GOMAXPROCS, Go no longer
// follows the CPU limit of its container.
func keepGOMAXPROCS() (restore func()) {
	n := runtime.GOMAXPROCS(0)
	return func() {
		if os.Getenv("GOMAXPROCS") == "" {
			runtime.SetDefaultGOMAXPROCS()
		}
		if runtime.GOMAXPROCS(0) != n {
			runtime.GOMAXPROCS(n)
		}
	}
}

// goThreads counts the threads of the Go runtime.
func goThreads() int64 {
	s := []metrics.Sample{{Name: "/sched/threads/total:threads"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return int64(s[0].Value.Uint64())
}

// owners adds up the device memory that is watched, by owner.
func (cfg config) owners() map[string]int64 {
	out := map[string]int64{}
	for _, d := range cfg.memory {
		if rep := d.reporter(); rep != nil {
			for _, h := range rep.Holdings() {
				if len(d.owners) == 0 || slices.Contains(d.owners, h.Owner) {
					out[h.Owner] += h.Bytes
				}
			}
		}
	}
	return out
}
