package report

import (
	_ "embed" // the page
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"

	"github.com/enginetest/enginetest/verdict"
)

//go:embed page.html
var pageHTML string

// logBudget bounds the logs of a page, and logLimit each of them.
const (
	logBudget = 2 << 20
	logLimit  = 48 << 10
)

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"took": took, "size": size, "number": number, "curve": curve, "timeline": timeline, "notes": notes, "classes": verdict.Classes,
	"date":  func(t time.Time) string { return t.Format("2006-01-02 15:04:05 MST") },
	"count": func(m map[verdict.Class]int, c verdict.Class) int { return m[c] },
}).Parse(pageHTML))

// view is what the page shows.
type view struct {
	*Report
	Failures  []card
	Fixtures  []*Test // that passed, with a timeline or a curve
	Untested  []*Test
	Repeated  []*Test
	ByPackage []packageView
	Title     string
}

type card struct {
	*Test
	Log string
}

type packageView struct {
	Package
	Tests  []*Test
	Failed int
}

// maxFixtures bounds the passed fixtures that are drawn; failures are always drawn.
const maxFixtures = 100

// WriteHTML writes one page that needs nothing else: no network, no other file.
func (r *Report) WriteHTML(w io.Writer) error {
	v := view{Report: r, Title: orElse(r.Name, "Test report")}
	left := logBudget
	for _, g := range r.groups() {
		for _, t := range g.tests {
			c := card{Test: t, Log: shorten(stripEscapes(t.Output), min(logLimit, max(left, 0)))}
			left -= len(c.Log)
			v.Failures = append(v.Failures, c)
		}
	}
	v.sort(r)
	return page.Execute(w, v)
}

func (v *view) sort(r *Report) {
	index := map[string]int{}
	for _, p := range r.Packages {
		index[p.Name] = len(v.ByPackage)
		v.ByPackage = append(v.ByPackage, packageView{Package: p})
	}
	for i := range r.Tests {
		t := &r.Tests[i]
		if at, ok := index[t.Package]; ok {
			p := &v.ByPackage[at]
			p.Tests = append(p.Tests, t)
			if t.counts() {
				p.Failed++
			}
		}
		switch {
		case t.Status == StatusSkip && t.Class == verdict.ClassCapacity:
			v.Untested = append(v.Untested, t)
		case t.Status == StatusPass && (t.Triage != "" || len(t.Attempts) > 0):
			v.Repeated = append(v.Repeated, t)
		}
		if t.Status == StatusPass && len(t.Teardowns)+len(t.Memory) > 0 && len(v.Fixtures) < maxFixtures {
			v.Fixtures = append(v.Fixtures, t)
		}
	}
}

// shorten keeps the begin and, mostly, the end of a log.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	if limit < 256 {
		return fmt.Sprintf("(%s of output; the JSON report has it)", size(int64(len(s))))
	}
	head, tail := limit/4, limit*3/4
	return fmt.Sprintf("%s\n… %s left out; the JSON report has more …\n%s", strings.ToValidUTF8(s[:head], ""),
		size(int64(len(s)-limit)),
		strings.ToValidUTF8(s[len(s)-tail:], ""))
}
