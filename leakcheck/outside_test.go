package leakcheck_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// outcome is what go test -json says of one test.
type outcome struct{ Verdict, Output string }

// runOutside runs the tests of a folder of testdata/outside, a module of its own, as its users
// would.
func runOutside(tb testing.TB, pkg string, args ...string) map[string]outcome {
	tb.Helper()
	cmd := exec.Command("go", append(append([]string{"test", "-json", "-count=1"}, args...), pkg)...)
	cmd.Dir = filepath.Join("testdata", "outside")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	tests := map[string]outcome{}
	for events := json.NewDecoder(bytes.NewReader(out)); ; {
		var e struct{ Action, Test, Output string }
		if decoded := events.Decode(&e); decoded == io.EOF {
			break
		} else if decoded != nil {
			require.NoError(tb, decoded, "%s\n%s", out, &stderr)
		}
		o := tests[e.Test]
		switch e.Action {
		case "output":
			o.Output += e.Output
		case "pass", "fail", "skip":
			o.Verdict = e.Action
		}
		if e.Test != "" {
			tests[e.Test] = o
		}
	}
	require.NotEmpty(tb, tests, "%v\n%s%s", err, out, &stderr)
	return tests
}

var verdictWord = regexp.MustCompile(`.*Test(Clean|Skip|Fail|Leak)`)

// TestOutside: with a real *testing.T, in another module, each test gets the verdict that its name
// starts with, and nothing else.
func TestOutside(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the tests of another module")
	}
	for _, pkg := range []string{"./plain", "./suites", "./panics"} {
		t.Run(pkg[2:], func(t *testing.T) {
			judged := 0
			tests := runOutside(t, pkg)
			for name, got := range tests {
				m := verdictWord.FindStringSubmatch(name)
				if m == nil {
					continue
				}
				judged++
				want := map[string]string{"Clean": "pass", "Skip": "skip", "Fail": "fail", "Leak": "fail"}[m[1]]
				assert.Equal(t, want, got.Verdict, "%s\n%s", name, got.Output)
				if m[1] != "Leak" {
					assert.NotContains(t, got.Output, "leakcheck: ", name)
				} else if hasSubtests := tests[name+"/0"].Verdict != ""; !hasSubtests {
					assert.Contains(t, got.Output, "global  guard.kept", name)
					assert.Equal(t, 1, strings.Count(got.Output, "leakcheck: "), got.Output)
				}
			}
			assert.NotZero(t, judged)
		})
	}
}
