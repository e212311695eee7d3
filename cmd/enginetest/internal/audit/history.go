package audit

import (
	"strings"

	"github.com/enginetest/enginetest/report"
	"github.com/enginetest/enginetest/verdict"
)

// A bound is loose when no value in at least looseRuns runs reaches a tenth of it.
const (
	looseRuns   = 3
	looseFactor = 10
)

// history is what reports say about tests, subtests included.
type history struct {
	packages map[string]int // reports that have the package
	tests    map[string]*testHistory
}

type testHistory struct {
	runs, ran int    // ran: not skipped
	why       string // it was skipped
	bounds    map[string]*boundHistory
	faults    map[string]*verdict.Fault // summed up
}

type boundHistory struct {
	runs       int
	value, max float64 // the largest value, the smallest bound
	unit       string
}

func (b *boundHistory) loose() bool { return b.runs >= looseRuns && b.max >= looseFactor*b.value }

func readHistory(reports []*report.Report) *history {
	h := &history{packages: map[string]int{}, tests: map[string]*testHistory{}}
	for _, r := range reports {
		packages := map[string]bool{}
		for i := range r.Tests {
			t := &r.Tests[i]
			if t.Name == "" {
				continue // a failure outside of any test says nothing about which ran
			}
			packages[t.Package] = true
			h.add(t)
		}
		for p := range packages {
			h.packages[p]++
		}
	}
	return h
}

// add counts a result. What a subtest measures belongs to its test.
func (h *history) add(t *report.Test) {
	name, subtest, _ := strings.Cut(t.Name, "/")
	id := t.Package + "." + name
	own := h.tests[id]
	if own == nil {
		own = &testHistory{bounds: map[string]*boundHistory{}, faults: map[string]*verdict.Fault{}}
		h.tests[id] = own
	}
	if subtest == "" {
		own.runs++
		if t.Status == report.StatusSkip {
			own.why = t.Message
		} else {
			own.ran++
		}
	}
	for _, b := range t.Bounds {
		own.bound(within(b.Name, subtest), b)
	}
	for _, f := range t.Faults {
		key := within(f.Name, subtest)
		if own.faults[key] == nil {
			own.faults[key] = &verdict.Fault{Name: key}
		}
		own.faults[key].Fired += f.Fired
		own.faults[key].Passes += f.Passes
	}
}

// within names what a subtest measures.
func within(name, subtest string) string {
	if subtest == "" {
		return name
	}
	return subtest + ": " + name
}

func (h *testHistory) bound(name string, b verdict.Bound) {
	own := h.bounds[name]
	if own == nil {
		own = &boundHistory{value: b.Value, max: b.Max, unit: b.Unit}
		h.bounds[name] = own
	}
	own.runs++
	own.value, own.max = max(own.value, b.Value), min(own.max, b.Max)
}
