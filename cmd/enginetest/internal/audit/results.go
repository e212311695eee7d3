package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/internal/lint"
	"github.com/enginetest/enginetest/report"
)

// Results compares the tests in the source with what ran.
func Results(tests []lint.Test, reports []*report.Report) (findings []Finding) {
	if len(reports) == 0 {
		return nil
	}
	seen := readHistory(reports)
	for _, t := range tests {
		add := func(check, format string, args ...any) {
			if !strings.HasPrefix(t.Ignored, check+" ") {
				findings = append(findings, Finding{check, t.File, t.Line, t.Package, t.Name, fmt.Sprintf(format, args...)})
			}
		}
		h := seen.tests[t.Package+"."+t.Name]
		if h == nil {
			if n := seen.packages[t.Package]; n > 0 {
				add(CheckNeverRan, "%s is in none of %s of its package", t.Name, count(n, "report"))
			}
			continue
		}
		if h.ran == 0 {
			add(CheckOnlySkips, "%s is skipped in every report: %s", t.Name, h.why)
		}
		for _, name := range slices.Sorted(maps.Keys(h.bounds)) {
			if b := h.bounds[name]; b.loose() {
				add(CheckLooseBound, "%s: at most %s allowed, and the most that %s measured is %s: nothing comes near it",
					name, amount(b.max, b.unit), count(b.runs, "run"), amount(b.value, b.unit))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(h.faults)) {
			if f := h.faults[name]; f.Fired == 0 {
				add(CheckNeverFired, "the fault %q never struck: its point was passed %s in %s", name,
					count(f.Passes, "time"), count(h.runs, "run"))
			}
		}
	}
	return findings
}

func count(n int, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return fmt.Sprintf("%d %ss", n, unit)
}

func amount(v float64, unit string) string {
	return strings.TrimSpace(fmt.Sprintf("%.4g %s", v, unit))
}
