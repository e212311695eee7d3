package leakcheck_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/stretchr/testify/require"
)

type tree struct {
	left, right *tree
	payload     *[3]uint64
}

// grow builds a heap of about so many bytes of small objects, half of them without pointers.
func grow(bytes int) *tree {
	root := &tree{}
	level := []*tree{root}
	for n := bytes / 56; n > 0; {
		var next []*tree
		for _, t := range level {
			t.left, t.right = &tree{payload: new([3]uint64)}, &tree{payload: new([3]uint64)}
			next = append(next, t.left, t.right)
			if n -= 2; n <= 0 {
				break
			}
		}
		level = next
	}
	return root
}

var benchRoot any

// last goes down to an object that a search finds near its end.
func last(t *tree) *tree {
	for t.right != nil {
		t = t.right
	}
	return t
}

// BenchmarkPass is what a check costs that finds nothing, beside two bare collections:
//
//	go test ./leakcheck -run '^$' -bench Pass
func BenchmarkPass(b *testing.B) {
	for _, mb := range []int{0, 10, 200} {
		benchRoot = grow(mb << 20)
		runtime.GC()
		b.Run(fmt.Sprintf("heap=%dMB/released", mb), func(b *testing.B) {
			for b.Loop() {
				refs, _ := plant(func(track func(any)) bool { track(&request{payload: make([]byte, 100)}); return true }, time.Second)
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

// BenchmarkExplain is what a check costs that finds something, with its explanation:
//
//	go test ./leakcheck -run '^$' -bench Explain -benchtime 3x
func BenchmarkExplain(b *testing.B) {
	for _, row := range []struct {
		name string
		fill func() any
		deep func(any) any
	}{
		{"10MB", func() any { return grow(10 << 20) }, func(v any) any { return last(v.(*tree)) }},
		{"200MB", func() any { return grow(200 << 20) }, func(v any) any { return last(v.(*tree)) }},
		{"1GB of 64KiB buffers", func() any {
			all := make([][]byte, 16<<10)
			for i := range all {
				all[i] = make([]byte, 64<<10)
			}
			return all
		}, func(v any) any { a := v.([][]byte); return a[len(a)-1] }},
	} {
		benchRoot = row.fill()
		near := &request{}
		kept[0] = func() int { return near.id }
		for _, target := range []struct {
			where string
			v     any
		}{{"near", near}, {"deep", row.deep(benchRoot)}} {
			b.Run(row.name+"/"+target.where, func(b *testing.B) {
				ref := leakcheck.Track("target", target.v, leakcheck.Patience(0))
				before := peak()
				for b.Loop() {
					require.Error(b, ref.Released(context.Background()))
				}
				b.ReportMetric(float64(peak()-before)/(1<<20), "MB-peak")
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				b.ReportMetric(float64(m.HeapObjects), "objects")
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
