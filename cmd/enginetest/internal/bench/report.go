package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/ledger"
)

// Report is what was measured.
type Report struct {
	Model     string   `json:"model"`
	Device    string   `json:"device"`
	Devices   int      `json:"devices"` // that share the model
	Threads   int      `json:"threads"`
	StepBytes int64    `json:"step_bytes,omitempty"` // weights that one decoding step reads
	Results   []Result `json:"results"`
}

// Result is one measurement.
type Result struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Runs   int     `json:"runs"`
	Floor  float64 `json:"floor,omitempty"` // what the machine allows, in the same unit; 0 when there is no such number
	Note   string  `json:"note,omitempty"`
}

func summarize(name, unit string, values []float64) Result {
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	return Result{
		Name: name, Unit: unit, Median: (values[(n-1)/2] + values[n/2]) / 2, Min: values[0], Max: values[n-1],
		Runs: n,
	}
}

// String is a table.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s, %d threads", r.Model, r.Device, r.Threads)
	if r.Devices > 1 {
		fmt.Fprintf(&b, ", %d devices", r.Devices)
	}
	if r.StepBytes > 0 {
		fmt.Fprintf(&b, ", %s of weights in a step", ledger.FormatBytes(r.StepBytes))
	}
	fmt.Fprintf(&b, "\n%-28s %10s %10s %10s  %-9s %4s  %s\n", "", "median", "min", "max", "", "runs", "floor")
	for _, m := range r.Results {
		floor := ""
		if m.Floor > 0 {
			floor = fmt.Sprintf("%.4g (%.0f%%) ", m.Floor, 100*share(m))
		}
		fmt.Fprintf(&b, "%-28s %10.4g %10.4g %10.4g  %-9s %4d  %s%s\n", m.Name, m.Median, m.Min, m.Max, m.Unit, m.Runs,
			floor, m.Note)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// share is how near the median comes to the floor, whether more or less is better.
func share(m Result) float64 {
	if strings.HasSuffix(m.Unit, "/s") {
		return m.Median / m.Floor
	}
	return m.Floor / m.Median
}
