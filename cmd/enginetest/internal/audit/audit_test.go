package audit

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/internal/lint"
	"github.com/enginetest/enginetest/report"
	"github.com/enginetest/enginetest/verdict"
)

var source = []lint.Test{
	{Package: "p", Name: "TestA", File: "a_test.go", Line: 3},
	{Package: "p", Name: "TestB", File: "a_test.go", Line: 4},
	{Package: "p", Name: "TestC", File: "a_test.go", Line: 5, Ignored: "never-ran built for another system"},
	{Package: "q", Name: "TestD", File: "d_test.go", Line: 6},
}

func texts(findings []Finding) (list []string) {
	for _, f := range findings {
		list = append(list, f.String())
	}
	return list
}

// What ran says which tests were never run; a package that no report has is unknown.
func TestNeverRan(t *testing.T) {
	run := func(status report.Status) *report.Report {
		return &report.Report{Tests: []report.Test{{Package: "p", Name: "TestA", Status: status, Message: "no GPU"}}}
	}
	assert.Equal(t, []string{"a_test.go:4: never-ran: TestB is in none of 2 reports of its package"},
		texts(Results(source, []*report.Report{run(report.StatusSkip), run(report.StatusPass)})))
	assert.Equal(t, []string{
		"a_test.go:3: only-skips: TestA is skipped in every report: no GPU",
		"a_test.go:4: never-ran: TestB is in none of 1 report of its package",
	}, texts(Results(source, []*report.Report{run(report.StatusSkip)})))
	assert.Empty(t, Results(source, nil), "without results nothing is known")
	built := &report.Report{Tests: []report.Test{{Package: "p", Status: report.StatusFail}}}
	assert.Empty(t, Results(source, []*report.Report{built}), "a package that did not build ran nothing")
}

// A bound is loose when nothing in three runs reaches a tenth of it; a subtest that does saves only
// its own bound.
func TestLooseBound(t *testing.T) {
	run := func(values ...float64) (list []*report.Report) {
		for _, v := range values {
			b := verdict.Bound{Name: "growth", Value: v, Max: 1000, Unit: "bytes"}
			list = append(list, &report.Report{Tests: []report.Test{
				{Package: "p", Name: "TestA", Status: report.StatusPass},
				{Package: "p", Name: "TestA/x", Status: report.StatusPass, Bounds: []verdict.Bound{b}},
				{Package: "p", Name: "TestB", Status: report.StatusPass},
			}})
		}
		return list
	}
	assert.Equal(t, []string{"a_test.go:3: loose-bound: x: growth: at most 1000 bytes allowed, and the most that " +
		"3 runs measured is 12 bytes: nothing comes near it"}, texts(Results(source, run(0, 12, 7))))
	assert.Empty(t, Results(source, run(0, 12)), "two runs say little")
	assert.Empty(t, Results(source, run(0, 12, 7, 101)), "one run comes near it")
}

func TestNeverFired(t *testing.T) {
	run := func(fired int) *report.Report {
		return &report.Report{Tests: []report.Test{
			{Package: "p", Name: "TestA", Status: report.StatusPass},
			{
				Package: "p", Name: "TestB", Status: report.StatusPass,
				Faults: []verdict.Fault{{Name: "error at forward", Fired: fired, Passes: 2}},
			},
		}}
	}
	assert.Equal(t, []string{
		`a_test.go:4: never-fired: the fault "error at forward" never struck: its point was passed 4 times in 2 runs`,
	}, texts(Results(source, []*report.Report{run(0), run(0)})))
	assert.Empty(t, Results(source, []*report.Report{run(0), run(1)}))
}

// The static checks find what is planted, with the place where it stands.
func TestSource(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles what the corpus imports")
	}
	units, err := lint.Load(t.Context(), "../../../..", "./internal/lint/testdata/src/skip")
	require.NoError(t, err)
	findings, tests := Source(units)
	require.Len(t, findings, 5)
	assert.Equal(t, "TestBare", findings[0].Test)
	assert.Contains(t, findings[0].String(), "a_test.go:8: skip-reason: Skip does not say why")
	assert.Equal(t, "github.com/enginetest/enginetest/internal/lint/testdata/src/skip", findings[0].Package)
	assert.Len(t, tests, 9)
}
