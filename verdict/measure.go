package verdict

import "github.com/enginetest/enginetest/internal/testlog"

// Bound is a measured value beside the most that it may be. A passing test that records it lets
// "enginetest audit" find bounds that no run comes near: such a check cannot fail.
type Bound struct {
	Name  string  `json:"name"` // what is measured: "device memory left"
	Value float64 `json:"value"`
	Max   float64 `json:"max"`
	Unit  string  `json:"unit,omitempty"` // "bytes"
}

// Fault is a fault that a test injected, and how often it struck. One that never strikes in any run
// tests nothing; "enginetest audit" finds it.
type Fault struct {
	Name   string `json:"name"` // what and where: "error at step after 3 passes"
	Fired  int    `json:"fired"`
	Passes int    `json:"passes"` // how often its point was passed
}

// Measure attaches bounds to a test's output, under the same conditions as [Record].
func Measure(t interface{ Helper() }, bounds ...Bound) { attachAll(t, testlog.KindBound, bounds) }

// Faults attaches injected faults to a test's output, under the same conditions as [Record].
func Faults(t interface{ Helper() }, faults ...Fault) { attachAll(t, testlog.KindFault, faults) }

func attachAll[T any](t interface{ Helper() }, kind string, list []T) {
	if len(list) > 0 {
		testlog.Attach(t, kind, list)
	}
}
