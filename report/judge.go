package report

import (
	"fmt"
	"regexp"
	"time"

	"github.com/enginetest/enginetest/verdict"
)

// Policy says what a run may lack and still pass.
type Policy struct {
	// CapacitySkips is how many tests may be skipped because the machine lacks something; negative
	// is any number.
	CapacitySkips int
	// AllowSkip accepts a skip for lack of capacity when "package.Test: reason" matches.
	AllowSkip []*regexp.Regexp
	// MaxSkips is how many tests may be skipped for any reason; negative or nil is any number.
	MaxSkips *int
	// Part says that the report is one shard, judged by itself: the others are not missed.
	Part bool
	// Exit is the exit code of the test command: one that no failure explains fails the run.
	Exit int
	// Now decides which quarantine entries have expired; the zero time is the present.
	Now time.Time
}

// Judge counts the tests and sets Result and Why: a failure fails the run unless a quarantine entry
// holds it, and a run that tested less than its policy demands is incomplete, never a pass.
func (r *Report) Judge(p Policy) {
	if p.Now.IsZero() {
		p.Now = time.Now()
	}
	r.Counts, r.Why, r.Result = Counts{ByClass: map[verdict.Class]int{}, Triage: map[Triage]int{}}, nil, ResultPass
	failures, beyond := 0, 0
	for i := range r.Tests {
		t := &r.Tests[i]
		r.Counts.add(t)
		switch {
		case t.counts() && !t.Quarantine.holds(p.Now):
			failures++
		case t.counts():
			r.Counts.Held++
		case t.Status == StatusSkip && t.Class == verdict.ClassCapacity && !p.allows(t):
			beyond++
		}
	}
	if failures > 0 {
		r.lower(ResultFail, fmt.Sprintf("%s failed", number(failures, "test")))
	}
	if p.CapacitySkips >= 0 && beyond > p.CapacitySkips {
		r.lower(ResultIncomplete, fmt.Sprintf("%s skipped because the machine lacks something, at most %d may be",
			number(beyond, "test"), p.CapacitySkips))
	}
	if p.MaxSkips != nil && *p.MaxSkips >= 0 && r.Counts.Skipped > *p.MaxSkips {
		r.lower(ResultIncomplete, fmt.Sprintf("%s skipped, at most %d may be", number(r.Counts.Skipped, "test"),
			*p.MaxSkips))
	}
	if p.Exit != 0 && r.Counts.Failed == 0 && r.Counts.Retried == 0 {
		r.lower(ResultFail, fmt.Sprintf("the test command exited with %d and no test failed", p.Exit))
	}
	if lost := r.lostShards(); lost != "" && !p.Part {
		r.lower(ResultIncomplete, lost)
	}
	for _, in := range r.Inputs {
		if in.Broken {
			r.lower(ResultIncomplete, in.Name+": "+in.Problem)
		}
	}
	if r.Counts.Tests == 0 && !p.Part { // one shard of many may have nothing to do
		r.lower(ResultIncomplete, "no test ran")
	}
}

// lower sets a result unless it is already worse.
func (r *Report) lower(to Result, why string) {
	if r.Result != ResultFail {
		r.Result = to
	}
	r.Why = append(r.Why, why)
}

func (p Policy) allows(t *Test) bool {
	for _, re := range p.AllowSkip {
		if re.MatchString(t.ID() + ": " + t.Message) {
			return true
		}
	}
	return false
}

func (c *Counts) add(t *Test) {
	if t.Name != "" {
		c.Tests++
	}
	switch {
	case t.Status == StatusPass:
		c.Passed++
		for _, a := range t.Attempts {
			if a.Retried && a.Status.Failed() {
				c.Retried++
				break
			}
		}
	case t.Status == StatusSkip:
		c.Skipped++
		if t.Class == verdict.ClassCapacity {
			c.Capacity++
		}
	case t.counts():
		c.Failed++
		if t.Status == StatusUnfinished {
			c.Unfinished++
		}
		c.ByClass[t.Class]++
	}
	if t.Triage != "" {
		c.Triage[t.Triage]++
	}
}

// number formats "1 test" and "2 tests".
func number(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
