package audit

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/report"
)

// Each planted weakness is found, and its sound twin is not.
func TestSource(t *testing.T) {
	for name, c := range map[string]struct{ bad, good string }{
		CheckExit: {
			"func TestMain(m *testing.M) { m.Run(); os.Exit(0) }",
			"func TestMain(m *testing.M) { os.Exit(m.Run()) }\nfunc init() { os.Exit(0) }",
		},
		CheckExit + " never": {
			"func TestMain(m *testing.M) { setUp() }",
			"func TestMain(m *testing.M) { forkproc.Main(m) }",
		},
		CheckSkipReason: {
			"func TestA(t *testing.T) { t.Skip() }",
			`func TestA(t *testing.T) { t.Skip("needs a GPU"); sql.Skip() }`,
		},
		CheckSkipReason + " now": {
			"func TestA(t *testing.T) { t.SkipNow() }",
			`func TestA(t *testing.T) { t.Skipf("%d", 1) }`,
		},
		CheckSkipReason + " empty": {
			`func TestA(t *testing.T) { t.Skip("  ") }`,
			"func TestA(t *testing.T) { t.Skip(why) }",
		},
		CheckNoProof: {
			`func TestA(t *testing.T) { runner.New(t, cfg, runner.WithoutDeviceMemory("x"), runner.WithoutHost("x")) }`,
			`func TestA(t *testing.T) { runner.New(t, cfg, runner.WithoutDeviceMemory("no GPU")) }`,
		},
		CheckGuardOrder: {
			"func TestA(t *testing.T) {\n\te := runner.New(t, cfg)\n\tleakcheck.Guard(t)\n\t_ = e\n}",
			"func TestA(t *testing.T) {\n\tleakcheck.Guard(t)\n\te := runner.New(t, cfg)\n\t_ = e\n}",
		},
		CheckCannotFail: {
			"func TestA(t *testing.T) { engine.Generate() }",
			"func TestA(t *testing.T) { check(t, engine.Generate()) }\nfunc TestB(t *testing.T) {}\nfunc Testing(t *testing.T) { x() }",
		},
	} {
		t.Run(name, func(t *testing.T) {
			check, _, _ := cut(name)
			found, _, err := Source("p", "a_test.go", "package p\n"+c.bad)
			require.NoError(t, err)
			require.Len(t, found, 1)
			assert.Equal(t, check, found[0].Check, found[0].String())
			found, _, err = Source("p", "a_test.go", "package p\n"+c.good)
			require.NoError(t, err)
			assert.Empty(t, found)
		})
	}
}

func cut(name string) (string, string, bool) {
	for i := range name {
		if name[i] == ' ' {
			return name[:i], name[i+1:], true
		}
	}
	return name, "", false
}

func TestIgnore(t *testing.T) {
	for comment, want := range map[string]int{
		"// audit:ignore skip-reason the linter plays a broken suite": 0,
		"// audit:ignore skip-reason":                                 1, // without a reason
		"// audit:ignore exit another check":                          1,
	} {
		found, _, err := Source("p", "a_test.go", "package p\nfunc TestA(t *testing.T) {\n\t"+comment+"\n\tt.Skip()\n}")
		require.NoError(t, err)
		assert.Len(t, found, want, comment)
	}
	_, _, err := Source("p", "a_test.go", "package")
	require.Error(t, err)
}

func TestResults(t *testing.T) {
	_, tests, err := Source("p", "a_test.go", "package p\nfunc TestA(t *testing.T) {}\nfunc TestB(t *testing.T) {}\nfunc TestC(t *testing.T) {}\nfunc helper() {}")
	require.NoError(t, err)
	require.Len(t, tests, 3)
	run := func(status report.Status) *report.Report {
		return &report.Report{Tests: []report.Test{
			{Package: "p", Name: "TestA", Status: status, Message: "no GPU"}, {
				Package: "p", Name: "TestB",
				Status: report.StatusSkip, Message: "no GPU",
			},
		}}
	}
	var got []string
	for _, f := range Results(tests, []*report.Report{run(report.StatusSkip), run(report.StatusPass)}) {
		got = append(got, f.String())
	}
	assert.Equal(t, []string{
		"a_test.go:3: only-skips: TestB is skipped in every report: no GPU",
		"a_test.go:4: never-ran: TestC is in none of 2 reports of its package",
	}, got)
	assert.Empty(t, Results(tests, nil), "without results nothing is known")
}
