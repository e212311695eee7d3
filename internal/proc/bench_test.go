//go:build linux

package proc

import (
	"os/exec"
	"slices"
	"testing"
	"time"
)

// BenchmarkFamily compares a family with bare os/exec, in turns, and reports the medians.
//
//	go test ./internal/proc -run '^$' -bench Family -benchtime 200x
func BenchmarkFamily(b *testing.B) {
	var bare, family []time.Duration
	for b.Loop() {
		start := time.Now()
		if err := exec.Command("true").Run(); err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		f, err := Start(exec.Command("true"))
		if err != nil {
			b.Fatal(err)
		}
		<-f.Done()
		f.Stop(b.Context(), StopOptions{})
		bare, family = append(bare, middle.Sub(start)), append(family, time.Since(middle))
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return d[len(d)/2].Seconds() * 1000
	}
	b.ReportMetric(median(bare), "exec-ms")
	b.ReportMetric(median(family), "family-ms")
	b.ReportMetric(median(family)-median(bare), "cost-ms")
}
