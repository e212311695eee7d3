// Package scale measures how the cost of a proof and of a report grows with what they look at.
package scale

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Point is one measurement: the least of several runs, which is what other work on the machine
// disturbs least.
type Point struct {
	N    int           `json:"n"`
	Took time.Duration `json:"took_ns"`
}

// Curve is the cost of one thing over its size.
type Curve struct {
	Name   string  `json:"name"`
	Of     string  `json:"of"` // what N counts
	Points []Point `json:"points"`
}

// slack is what noise may add to the exponent of a curve.
const slack = 0.15

// Growth is the exponent of the cost in the size over the last step: 1 is proportional, 2 is
// quadratic. Smaller sizes are left out, where the cost that does not grow hides the rest.
func (c Curve) Growth() float64 {
	if len(c.Points) < 2 {
		return 0
	}
	from, to := c.Points[len(c.Points)-2], c.Points[len(c.Points)-1]
	return math.Log(float64(to.Took)/float64(from.Took)) / math.Log(float64(to.N)/float64(from.N))
}

// Faster reports whether the cost grows faster than the size.
func (c Curve) Faster() bool { return c.Growth() > 1+slack }

// String formats the curve as a Markdown table.
func (c Curve) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n| %s | time | per unit |\n|---:|---:|---:|\n", c.Name, c.Of)
	for _, p := range c.Points {
		fmt.Fprintf(&b, "| %d | %s | %s |\n", p.N, round(p.Took), round(p.Took/time.Duration(p.N)))
	}
	verdict := "not faster than its input"
	if c.Faster() {
		verdict = "FASTER than its input"
	}
	fmt.Fprintf(&b, "\ngrows with the power %.2f: %s\n", c.Growth(), verdict)
	return b.String()
}

// round keeps two digits or three.
func round(d time.Duration) time.Duration {
	for unit := time.Duration(1); ; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
}

// Options say what is measured.
type Options struct {
	Only   string // a part of a curve's name; "" is all
	Repeat int    // runs of each point
	Max    int    // sizes above it are left out; 0 is none
}

// curves are all that can be measured, each with its sizes.
var curves = []struct {
	name, of string
	sizes    []int
	run      func(ctx context.Context, n int) (time.Duration, error)
}{
	{"proofs of fixtures one after another", "fixtures", []int{1, 10, 100, 1000}, oneAfterAnother},
	{"proofs of fixtures that are alive together", "fixtures", []int{1, 10, 100, 1000}, together},
	{"one proof beside a heap", "MB of heap", []int{10, 100, 1000, 4000}, besideHeap},
	{"end of a family of processes", "processes", []int{1, 10, 100, 1000, 5000}, family},
	{"account of device memory", "devices", []int{1, 4, 16, 64}, devices},
	{"report of a run", "tests", []int{100, 1000, 10_000, 100_000}, reports},
}

// Run measures the curves; say is told what is being measured.
func Run(ctx context.Context, o Options, say func(string)) (list []Curve, err error) {
	for _, c := range curves {
		if !strings.Contains(c.name, o.Only) {
			continue
		}
		curve := Curve{Name: c.name, Of: c.of}
		for _, n := range c.sizes {
			if o.Max > 0 && n > o.Max {
				continue
			}
			say(fmt.Sprintf("%s: %d %s", c.name, n, c.of))
			var took []time.Duration
			for range max(1, o.Repeat) {
				d, err := c.run(ctx, n)
				if err != nil {
					return list, fmt.Errorf("%s of %d %s: %w", c.name, n, c.of, err)
				}
				took = append(took, d)
			}
			curve.Points = append(curve.Points, Point{n, slices.Min(took)})
		}
		if len(curve.Points) > 0 {
			list = append(list, curve)
		}
	}
	return list, nil
}
