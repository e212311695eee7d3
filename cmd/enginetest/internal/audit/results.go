package audit

import (
	"fmt"
	"strings"

	"github.com/enginetest/enginetest/report"
)

// Test is a test in the source.
type Test struct {
	Package, Name, File string
	Line                int
	ignored             string
}

// Results compares the tests in the source with what ran: tests that no report has, and tests that
// every report skips.
func Results(tests []Test, reports []*report.Report) (findings []Finding) {
	if len(reports) == 0 {
		return nil
	}
	ran, only := map[string]bool{}, map[string]string{}
	packages := map[string]bool{}
	for _, r := range reports {
		for _, t := range r.Tests {
			packages[t.Package] = true
			id := t.ID()
			switch {
			case t.Status != report.StatusSkip:
				ran[id], only[id] = true, ""
			case !ran[id]:
				ran[id], only[id] = true, t.Message
			case only[id] != "":
				only[id] = t.Message
			}
		}
	}
	for _, t := range tests {
		id := t.Package + "." + t.Name
		f := Finding{File: t.File, Line: t.Line, Package: t.Package, Test: t.Name}
		switch {
		case !ran[id] && packages[t.Package]:
			f.Check, f.Message = CheckNeverRan, fmt.Sprintf("%s is in none of %d reports of its package", t.Name,
				len(reports))
		case only[id] != "":
			f.Check, f.Message = CheckOnlySkips, fmt.Sprintf("%s is skipped in every report: %s", t.Name, only[id])
		default:
			continue
		}
		if !strings.HasPrefix(t.ignored, f.Check+" ") {
			findings = append(findings, f)
		}
	}
	return findings
}
