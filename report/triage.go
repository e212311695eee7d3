package report

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
)

// Triage compares a result with earlier runs.
type Triage string

// The outcomes of a comparison.
const (
	TriageNew   Triage = "new"   // it fails, and no earlier run has this failure
	TriageKnown Triage = "known" // an earlier run has the same failure
	TriageFlaky Triage = "flaky" // the same code both passed and failed
	TriageFixed Triage = "fixed" // the last earlier run of it failed, and now it passes
)

// Compare sets the Triage of the tests of r that fail, or failed before. history is in any order;
// reports without tests are ignored.
func (r *Report) Compare(history []*Report) {
	past := map[string][]seen{}
	for _, h := range history {
		for i := range h.Tests {
			t := &h.Tests[i]
			if t.Status == StatusSkip || t.Parent {
				continue
			}
			past[t.ID()] = append(past[t.ID()], seen{t, h.Commit, h.Started})
		}
	}
	for i := range r.Tests {
		t := &r.Tests[i]
		if t.Parent || t.Status == StatusSkip {
			continue
		}
		t.Triage = t.compare(past[t.ID()], r.Commit)
	}
}

type seen struct {
	*Test
	commit string
	at     time.Time
}

func (t *Test) compare(past []seen, commit string) Triage {
	var last *seen
	same := false
	for i := range past {
		p := &past[i]
		if commit != "" && p.commit == commit && p.Status.Failed() != t.Status.Failed() {
			return TriageFlaky
		}
		if last == nil || p.at.After(last.at) {
			last = p
		}
		same = same || p.Status.Failed() && p.Signature == t.Signature
	}
	for _, a := range t.Attempts {
		if a.Status.Failed() != t.Status.Failed() && a.Status != StatusSkip {
			return TriageFlaky
		}
	}
	switch {
	case t.Status.Failed() && same:
		return TriageKnown
	case t.Status.Failed():
		return TriageNew
	case last != nil && last.Status.Failed():
		return TriageFixed
	}
	return ""
}

// Quarantine is an entry of a quarantine file: a failure that is known, has an owner, and does not
// fail the run until a day.
type Quarantine struct {
	Pattern string    `json:"pattern"`
	Owner   string    `json:"owner"`
	Expires time.Time `json:"expires"`
	Why     string    `json:"why,omitempty"`
}

// holds reports whether the entry accepts a failure now: up to the end of its last day.
func (q *Quarantine) holds(now time.Time) bool {
	return q != nil && now.Before(q.Expires.AddDate(0, 0, 1))
}

// ReadQuarantine reads a quarantine file: one entry per line, "PATTERN owner=NAME
// expires=2026-12-31 why text…". PATTERN is that of path.Match over "package.Test" or over the name
// of a test alone. Lines that begin with # are comments.
func ReadQuarantine(r io.Reader) ([]Quarantine, error) {
	var list []Quarantine
	s := bufio.NewScanner(r)
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		q, err := parseQuarantine(line)
		if err != nil {
			return nil, fmt.Errorf("quarantine: line %d: %w", n, err)
		}
		list = append(list, q)
	}
	return list, s.Err()
}

func parseQuarantine(line string) (q Quarantine, err error) {
	fields := strings.Fields(line)
	q.Pattern = fields[0]
	if _, err := path.Match(q.Pattern, ""); err != nil {
		return q, fmt.Errorf("%q is no pattern: %w", q.Pattern, err)
	}
	for i, f := range fields[1:] {
		key, value, _ := strings.Cut(f, "=")
		switch key {
		case "owner":
			q.Owner = value
		case "expires":
			if q.Expires, err = time.Parse(time.DateOnly, value); err != nil {
				return q, fmt.Errorf("expires=%s is no day like 2026-12-31", value)
			}
		default:
			q.Why = strings.Join(fields[1+i:], " ")
		}
		if q.Why != "" {
			break
		}
	}
	if q.Owner == "" || q.Expires.IsZero() {
		return q, fmt.Errorf("%s: an entry needs owner=NAME and expires=YYYY-MM-DD", q.Pattern)
	}
	return q, nil
}

// Hold marks the failures that a quarantine list covers. It returns the entries that cover no test
// of the report.
func (r *Report) Hold(list []Quarantine) (unused []Quarantine) {
	for _, q := range list {
		used := false
		for i := range r.Tests {
			t := &r.Tests[i]
			if !matches(q.Pattern, t) {
				continue
			}
			used = true
			if t.counts() {
				entry := q
				t.Quarantine = &entry
			}
		}
		if !used {
			unused = append(unused, q)
		}
	}
	return unused
}

// matches compares a pattern with each way to name a test; in subtests "*" stands for any text
// within one level.
func matches(pattern string, t *Test) bool {
	for _, name := range []string{t.Name, t.ID(), path.Base(t.Package) + "." + t.Name} {
		if ok, _ := path.Match(pattern, name); ok {
			return true
		}
	}
	return false
}
