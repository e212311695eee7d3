package leakcheck_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"weak"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/stretchr/testify/require"
)

type tree struct {
	left, right *tree
	payload     *[7]uint64
	_           [2]uint64
}

// grow builds a heap of about that many bytes: a tree of small objects of 48 and 64 bytes, half of
// them without pointers, scattered over the heap.
func grow(bytes int) *tree {
	nodes := make([]*tree, max(2, bytes/112))
	for i := range nodes {
		nodes[i] = &tree{payload: new([7]uint64)}
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	for i := 1; i < len(nodes); i++ {
		if p := nodes[(i-1)/2]; i%2 == 1 {
			p.left = nodes[i]
		} else {
			p.right = nodes[i]
		}
	}
	deepest = weak.Make(nodes[len(nodes)-1])
	return nodes[0]
}

var (
	benchRoot any
	deepest   weak.Pointer[tree] // what a search finds last
)

// BenchmarkPass is what a check costs that finds nothing, beside two bare collections:
//
//	go test ./leakcheck -run '^$' -bench Pass
func BenchmarkPass(b *testing.B) {
	for _, mb := range []int{0, 10, 200} {
		benchRoot = grow(mb << 20)
		runtime.GC()
		b.Run(fmt.Sprintf("heap=%dMB/released", mb), func(b *testing.B) {
			for b.Loop() {
				refs, _ := plant(func(track func(any)) bool {
					track(&request{payload: make([]byte, 100)})
					return true
				}, time.Second)
				if err := leakcheck.Released(context.Background(), refs...); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("heap=%dMB/two GCs", mb), func(b *testing.B) {
			for b.Loop() {
				runtime.GC()
				runtime.GC()
			}
		})
	}
	benchRoot = nil
}

// BenchmarkExplain is what a check costs that finds something, with its explanation. Without patience
// three collections of garbage are in it; what they cost alone is printed beside it. With patience,
// s-beyond is how much later than its end the explanation is there, and GCs-beyond the same in
// collections of this heap:
//
//	go test ./leakcheck -run '^$' -bench Explain -benchtime 3x
func BenchmarkExplain(b *testing.B) {
	processor := func() float64 {
		var r syscall.Rusage
		require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
		return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
	}
	kept[0] = func() int { return b.N }
	// finding names is done once
	require.Error(b, leakcheck.Track("names", kept[0], leakcheck.Patience(0)).Released(context.Background()))
	for _, row := range []struct {
		name string
		fill func() any
		deep func(any) any
	}{
		{"10MB", func() any { return grow(10 << 20) }, func(any) any { return deepest.Value() }},
		{"200MB", func() any { return grow(200 << 20) }, func(any) any { return deepest.Value() }},
		{"1GB of 64KiB buffers", func() any {
			all := make([][]byte, 16<<10)
			for i := range all {
				all[i] = make([]byte, 64<<10)
			}
			return all
		}, func(v any) any { a := v.([][]byte); return a[len(a)-1] }},
	} {
		benchRoot = row.fill()
		for _, target := range []struct {
			where string
			find  func() any // nothing else may hold it
		}{
			{"near", func() any { r := &request{}; kept[0] = func() int { return r.id }; return r }},
			{"deep", func() any { return row.deep(benchRoot) }},
		} {
			b.Run(row.name+"/"+target.where, func(b *testing.B) {
				refs, _ := plant(func(track func(any)) bool { track(target.find()); return true }, 0)
				before, cpu, start := peak(), processor(), time.Now()
				for range 3 {
					runtime.GC()
				}
				gcs, gcsCPU := time.Since(start), processor()-cpu
				cpu = processor()
				for b.Loop() {
					require.Error(b, leakcheck.Released(context.Background(), refs...))
				}
				b.ReportMetric((processor()-cpu)/float64(b.N), "cpu-s/op")
				b.ReportMetric(gcs.Seconds(), "s-3-GCs")
				b.ReportMetric(gcsCPU, "cpu-s-3-GCs")
				b.ReportMetric(float64(peak()-before)/(1<<20), "MB-peak")
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				b.ReportMetric(float64(m.HeapObjects), "objects")
			})
			b.Run(row.name+"/"+target.where+"/patience", func(b *testing.B) {
				const patience = time.Second
				refs, _ := plant(func(track func(any)) bool { track(target.find()); return true }, patience)
				start := time.Now()
				runtime.GC()
				gc := time.Since(start)
				var beyond time.Duration
				for b.Loop() {
					start := time.Now()
					require.Error(b, leakcheck.Released(context.Background(), refs...))
					beyond += time.Since(start) - patience
				}
				b.ReportMetric(beyond.Seconds()/float64(b.N), "s-beyond")
				b.ReportMetric(beyond.Seconds()/float64(b.N)/gc.Seconds(), "GCs-beyond")
			})
		}
		delete(kept, 0)
		benchRoot = nil
		runtime.GC()
	}
}

// peak is the largest resident memory of this process so far, in bytes.
func peak() (n int64) {
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &n); err == nil {
			return n << 10
		}
	}
	return 0
}
