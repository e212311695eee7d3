package ginkgo

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestVerdicts runs the suite in specs and compares each spec's verdict with the first word of its text.
func TestVerdicts(t *testing.T) {
	report := filepath.Join(t.TempDir(), "report.json")
	out, _ := exec.Command("go", "test", "-count=1", "./specs", "-ginkgo.json-report="+report).CombinedOutput()
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var suites []struct {
		SpecReports []struct {
			LeafNodeText, State string
			Failure             struct{ Message string }
			AdditionalFailures  []any
		}
	}
	if err := json.Unmarshal(text, &suites); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, s := range suites[0].SpecReports {
		want, _, _ := strings.Cut(s.LeafNodeText, ":")
		seen[want] = true
		state := map[string]string{"Clean": "passed", "Skip": "skipped", "Fail": "failed", "Leak": "failed"}[want]
		leaked := strings.Contains(s.Failure.Message, "global  ") && strings.Contains(s.Failure.Message, ".kept")
		if s.State != state || leaked != (want == "Leak") || len(s.AdditionalFailures) > 0 {
			t.Errorf("%q: %s %s, %d more failures", s.LeafNodeText, s.State, s.Failure.Message, len(s.AdditionalFailures))
		}
	}
	if len(seen) != 4 {
		t.Errorf("only specs of %v have run\n%s", seen, out)
	}
}
