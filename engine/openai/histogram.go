package openai

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// histogram counts observations in buckets, as Prometheus has them.
type histogram struct {
	name, help string
	bounds     []float64 // upper ones, ascending; the last bucket has none

	mu     sync.Mutex
	counts []uint64 // one per bound and one more, not cumulative
	sum    float64
}

func newHistogram(name, help string, bounds []float64) *histogram {
	return &histogram{name: name, help: help, bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	i, _ := slices.BinarySearch(h.bounds, v)
	h.mu.Lock()
	h.counts[i]++
	h.sum += v
	h.mu.Unlock()
}

// write appends the histogram in Prometheus' text format.
func (h *histogram) write(b *strings.Builder, labels string) {
	h.mu.Lock()
	counts, sum := slices.Clone(h.counts), h.sum
	h.mu.Unlock()
	writeHead(b, h.name, "histogram", h.help)
	var n uint64
	for i, c := range counts {
		n += c
		bound := "+Inf"
		if i < len(h.bounds) {
			bound = formatBound(h.bounds[i])
		}
		fmt.Fprintf(b, "%s_bucket{%s,le=%q} %d\n", h.name, labels, bound, n)
	}
	fmt.Fprintf(b, "%s_count{%s} %d\n%s_sum{%s} %v\n", h.name, labels, n, h.name, labels, sum)
}

// formatBound writes a number as Prometheus' Python client does: 1 is "1.0".
func formatBound(v float64) string {
	s := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

func writeHead(b *strings.Builder, name, kind, help string) {
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// The buckets are vLLM's.
var (
	firstTokenBuckets = []float64{
		0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
	}
	interTokenBuckets = []float64{
		0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
	}
	latencyBuckets = []float64{
		0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
	}
	choicesBuckets = []float64{1, 2, 5, 10, 20}
)

// tokenBuckets are 1, 2, 5, 10, … up to a model's longest sequence.
func tokenBuckets(most int) (bounds []float64) {
	for scale := 1; ; scale *= 10 {
		for _, m := range []int{1, 2, 5} {
			if m*scale > most {
				return bounds
			}
			bounds = append(bounds, float64(m*scale))
		}
	}
}
