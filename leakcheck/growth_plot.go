package leakcheck

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/enginetest/enginetest/ledger"
)

const (
	heapMeasure    = "Go heap"
	offHeapMeasure = "memory outside the Go heap"
)

// measures are what is read after every round, with the growth of a round that is no finding.
var measures = []struct {
	name, color string
	allowed     float64
	bytes       bool
	of          func(Sample) int64
}{
	{heapMeasure, "#1f77b4", 4 << 10, true, func(s Sample) int64 { return s.Heap }},
	{offHeapMeasure, "#ff7f0e", 1 << 20, true, func(s Sample) int64 { return s.OffHeap }},
	{"device memory", "#2ca02c", 0, true, func(s Sample) int64 { return s.Device }},
	{"goroutines", "#d62728", 0.2, false, func(s Sample) int64 { return s.Goroutines }},
	{"file descriptors", "#9467bd", 0.2, false, func(s Sample) int64 { return s.Descriptors }},
}

// Table prints the samples, one line a round, with a bar for what grows most surely.
func (r *GrowthReport) Table() string {
	measure := heapMeasure
	if len(r.Trends) > 0 && r.Trends[0].Grows() {
		measure = r.Trends[0].Measure
	}
	text := r.table(measure)
	for _, t := range r.Trends {
		if t.Unjudged != "" {
			text += fmt.Sprintf("%s: not judged: %s\n", t.Measure, t.Unjudged)
		}
	}
	return text
}

// table draws the bars of one measure.
func (r *GrowthReport) table(measure string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "round\theap\tobjects\toutside\tdevice\tgoroutines\tfds\t  %s\n", measure)
	for _, m := range measures {
		if m.name != measure {
			continue
		}
		largest := r.largest(m.of)
		for i, s := range r.Samples {
			size := ledger.FormatBytes
			fmt.Fprintf(w, "%d\t%s\t%d\t%s\t%s\t%d\t%d\t  %s\n", r.Warmup+i, size(s.Heap), s.Objects, size(s.OffHeap),
				size(s.Device), s.Goroutines, s.Descriptors,
				strings.Repeat("#", int(20*m.of(s)/largest)))
		}
	}
	w.Flush()
	return b.String()
}

func (r *GrowthReport) largest(of func(Sample) int64) int64 {
	most := int64(1)
	for _, s := range r.Samples {
		most = max(most, of(s))
	}
	return most
}

// svg plots every measure, each on its own scale.
func (r *GrowthReport) svg() string {
	var b strings.Builder
	const width, height = 640.0, 320.0
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="monospace" font-size="11">`+"\n", width, height)
	for k, m := range measures {
		largest := r.largest(m.of)
		fmt.Fprintf(&b, `<text x="8" y="%d" fill="%s">%s, up to %d</text><polyline fill="none" stroke="%s" stroke-width="2" points="`, 14+14*k, m.color, m.name, largest, m.color)
		for i, s := range r.Samples {
			fmt.Fprintf(&b, "%.1f,%.1f ", 10+(width-20)*float64(i)/float64(max(1, len(r.Samples)-1)),
				height-10-(height-80)*float64(m.of(s))/float64(largest))
		}
		b.WriteString(`"/>` + "\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}
