package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/verdict"
)

// TextOptions are the options of WriteText.
type TextOptions struct {
	Color bool
	Max   int // failures that are printed; 0 is all
}

// WriteText writes the summary for a terminal: failures by class, what was not tested, and the
// result in the last line.
func (r *Report) WriteText(w io.Writer, o TextOptions) error {
	p := printer{w: w, color: o.Color}
	shown := 0
	for _, g := range r.groups() {
		p.printf("%s\n", p.bold(fmt.Sprintf("%s: %s", strings.ToUpper(string(g.class)),
			number(len(g.tests), "failure"))))
		for _, t := range g.tests {
			if o.Max > 0 && shown == o.Max {
				break
			}
			shown++
			p.failure(t)
		}
	}
	if hidden := r.Counts.Failed - shown; hidden > 0 {
		p.printf("… and %s more\n", number(hidden, "failure"))
	}
	p.rest(r)
	p.last(r)
	return p.err
}

// group is the failures of one class.
type group struct {
	class verdict.Class
	tests []*Test
}

// groups returns the failures by class, the most serious first.
func (r *Report) groups() (list []group) {
	for _, class := range verdict.Classes() {
		g := group{class: class}
		for i := range r.Tests {
			if t := &r.Tests[i]; t.counts() && t.Class == class {
				g.tests = append(g.tests, t)
			}
		}
		if len(g.tests) > 0 {
			list = append(list, g)
		}
	}
	return list
}

// printer keeps the first error of its writer.
type printer struct {
	w     io.Writer
	color bool
	err   error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *printer) bold(s string) string   { return p.paint("1", s) }
func (p *printer) red(s string) string    { return p.paint("31", s) }
func (p *printer) green(s string) string  { return p.paint("32", s) }
func (p *printer) yellow(s string) string { return p.paint("33", s) }

func (p *printer) paint(code, s string) string {
	if !p.color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p *printer) failure(t *Test) {
	p.printf("  %s %s.%s%s\n", p.red("✗"), t.Package, t.Title(), notes(t))
	if t.Message != "" {
		p.printf("      %s\n", t.Message)
	}
	if t.Evidence != "" {
		p.printf("      %s: %s\n", t.Class, t.Evidence)
	}
	for _, m := range t.Memory {
		for _, h := range m.Holders {
			p.printf("      pid %d holds %s of %s: %s\n", h.PID, size(h.Bytes), m.Device,
				orElse(h.Command, "unknown command"))
		}
	}
	if t.Repro != "" {
		p.printf("      to reproduce: %s\n", t.Repro)
	}
}

// notes are what else is known of a failure: "  (unfinished, flaky, quarantined by ada until
// 2026-12-31)".
func notes(t *Test) string {
	var list []string
	if t.Status == StatusUnfinished {
		list = append(list, "unfinished")
	}
	if t.Triage != "" {
		list = append(list, string(t.Triage))
	}
	if n := len(t.Attempts); n > 0 {
		list = append(list, "run "+number(n+1, "time"))
	}
	if q := t.Quarantine; q != nil {
		list = append(list, fmt.Sprintf("quarantined by %s until %s", q.Owner, q.Expires.Format("2006-01-02")))
	}
	if t.Shard != "" {
		list = append(list, "shard "+t.Shard)
	}
	if list == nil {
		return ""
	}
	return "  (" + strings.Join(list, ", ") + ")"
}

// rest prints what is no failure and still has to be known.
func (p *printer) rest(r *Report) {
	for i := range r.Tests {
		t := &r.Tests[i]
		switch {
		case t.Status == StatusPass && t.Triage == TriageFixed:
			p.printf("%s %s\n", p.green("fixed:"), t.ID())
		case t.Status == StatusPass && t.Triage == TriageFlaky && len(t.Attempts) == 0:
			p.printf("%s %s: it failed before on the same code\n", p.yellow("flaky:"), t.ID())
		}
		for _, a := range t.Attempts {
			if t.Status == StatusPass && a.Status.Failed() {
				p.printf("%s %s: failed first (%s: %s), then passed\n", p.yellow("retried:"), t.ID(),
					orElse(string(a.Class), "unfinished"), a.Message)
			}
		}
		if t.Status == StatusSkip && t.Class == verdict.ClassCapacity {
			p.printf("%s %s: %s\n", p.yellow("not tested:"), t.ID(), t.Message)
		}
	}
	for _, in := range r.Inputs {
		if in.Problems > 0 && in.Tests == 0 || in.Broken {
			p.printf("%s %s: %s\n", p.yellow("input:"), in.Name, in.Problem)
		}
	}
}

func (p *printer) last(r *Report) {
	c := r.Counts
	line := fmt.Sprintf("%s: %s, %d passed, %d failed", r.Result, number(c.Tests, "test"), c.Passed, c.Failed)
	if s := classes(c); s != "" {
		line += " (" + s + ")"
	}
	line += fmt.Sprintf(", %d skipped", c.Skipped)
	if c.Capacity > 0 {
		line += fmt.Sprintf(" (%d for lack of capacity)", c.Capacity)
	}
	if c.Held > 0 {
		line += fmt.Sprintf(", %d in quarantine", c.Held)
	}
	if r.Elapsed > 0 {
		line += " in " + took(r.Elapsed)
	}
	switch r.Result {
	case ResultPass:
		line = p.green(line)
	case ResultFail:
		line = p.red(line)
	case ResultIncomplete:
		line = p.yellow(line)
	}
	p.printf("%s\n", line)
	if r.Result == ResultIncomplete {
		p.printf("  %s\n", strings.Join(r.Why, "; "))
	}
}

// classes formats the failures by class: "2 leak, 1 infra".
func classes(c Counts) string {
	var list []string
	for _, class := range verdict.Classes() {
		if n := c.ByClass[class]; n > 0 {
			list = append(list, fmt.Sprintf("%d %s", n, class))
		}
	}
	return strings.Join(list, ", ")
}

func size(n int64) string { return ledger.FormatBytes(n) }
