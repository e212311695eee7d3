package main

import (
	"fmt"
	"slices"
	"strings"
)

// report is what was measured. Rates are tokens a second.
type report struct {
	Build int      `json:"llama_cpp_build"`
	Load  []string `json:"load_average"` // of the machine, before and after
	Rows  []*row   `json:"rows"`
}

type row struct {
	What    string `json:"what"` // "decode" or "prefill"
	Types   string `json:"types"`
	Threads int    `json:"threads"`
	Ours    rates  `json:"ours"`
	Theirs  rates  `json:"llama_cpp"`
	Floor   rates  `json:"floor,omitempty"` // memory bandwidth ÷ bytes of our weights
}

type rates []float64

func (r *rates) add(v float64) { *r = append(*r, v) }

func (r rates) median() float64 {
	s := slices.Sorted(slices.Values(r))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

func (r rates) best() float64 { return slices.Max(r) }

// row finds or makes a row.
func (r *report) row(what string, p pair, threads int) *row {
	types := fmt.Sprintf("%s vs %s", strings.ToLower(p.ours), strings.ToLower(p.theirs))
	for _, w := range r.Rows {
		if w.What == what && w.Types == types && w.Threads == threads {
			return w
		}
	}
	w := &row{What: what, Types: types, Threads: threads}
	r.Rows = append(r.Rows, w)
	return w
}

// String is a Markdown table: medians with the best in brackets, the ratio of each, and the floor
// with the share of it that our median and best reach.
func (r *report) String() string {
	slices.SortStableFunc(r.Rows, func(a, b *row) int {
		return 100*strings.Compare(a.What, b.What) - 10*strings.Compare(a.Types, b.Types) + a.Threads - b.Threads
	})
	var b strings.Builder
	b.WriteString("| tokens/s: median (best) | threads | enginetest | llama.cpp | ratio | floor | share |\n|---|---|---|---|---|---|---|\n")
	for _, w := range r.Rows {
		fmt.Fprintf(&b, "| %s, %s | %d | %.1f (%.1f) | %.1f (%.1f) | %.2f (%.2f) |", w.What, w.Types, w.Threads,
			w.Ours.median(), w.Ours.best(), w.Theirs.median(), w.Theirs.best(), w.Ours.median()/w.Theirs.median(), w.Ours.best()/w.Theirs.best())
		if w.Floor == nil {
			b.WriteString(" – | – |\n")
			continue
		}
		fmt.Fprintf(&b, " %.1f (%.1f) | %.0f %% (%.0f %%) |\n", w.Floor.median(), w.Floor.best(),
			100*w.Ours.median()/w.Floor.median(), 100*w.Ours.best()/w.Floor.best())
	}
	fmt.Fprintf(&b, "\n%d rounds in turns; llama.cpp build %d; load average of the machine %s", len(r.Rows[0].Ours),
		r.Build, strings.Join(r.Load, " before, "))
	return b.String() + " after.\n"
}
