package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Verdict is what became of a property.
type Verdict string

// The verdicts.
const (
	Passes Verdict = "passes"
	Fails  Verdict = "fails"
	Lacks  Verdict = "lacks" // the engine lacks a capability that the property needs
)

// Result is one property's verdict.
type Result struct {
	Property string
	Why      string // it matters, in a sentence
	Verdict  Verdict
	Lacking  Capability // when the engine lacks it
	Detail   string     // what failed, with the smallest example; what is lacking and why; what was measured
	Took     time.Duration
}

// Report is the verdicts of one engine.
type Report struct {
	Engine  string
	Rule    string // how answers were compared
	Results []Result
	Took    time.Duration
}

// Failed returns the results that fail.
func (r Report) Failed() []Result { return r.with(Fails) }

// Lacking returns the results of properties that the engine lacks something for.
func (r Report) Lacking() []Result { return r.with(Lacks) }

// reasons are the different reasons why properties are not checked.
func (r Report) reasons() (out []string) {
	for _, x := range r.Lacking() {
		if !slices.Contains(out, x.Detail) {
			out = append(out, x.Detail)
		}
	}
	return out
}

func (r Report) with(v Verdict) (out []Result) {
	for _, x := range r.Results {
		if x.Verdict == v {
			out = append(out, x)
		}
	}
	return out
}

// String counts the verdicts, states how answers were compared, and lists what failed and what is
// lacking.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "conformance of %s: %d properties pass, %d fail, %d are not checked (%s)\n", r.Engine,
		len(r.with(Passes)), len(r.Failed()), len(r.Lacking()), r.Took.Round(10*time.Millisecond))
	fmt.Fprintf(&b, "  answers compared: %s\n", r.Rule)
	for _, x := range r.Failed() {
		line, _, _ := strings.Cut(x.Detail, "\n")
		fmt.Fprintf(&b, "  fails  %-36s %s\n", x.Property, line)
	}
	for _, reason := range r.reasons() {
		var names []string
		for _, x := range r.Lacking() {
			if x.Detail == reason {
				names = append(names, x.Property)
			}
		}
		fmt.Fprintf(&b, "  lacks  %s\n           not checked: %s\n", reason, strings.Join(names, ", "))
	}
	return strings.TrimRight(b.String(), "\n")
}
