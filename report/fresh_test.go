package report

import "testing"

// TestFresh classifies logs of programs that really fail, made by compat/failures. Each set was
// measured before the rules were mended with it: docs/reports.md has the numbers.
func TestFresh(t *testing.T) {
	for _, set := range []string{"fresh1", "fresh2", "fresh3", "fresh4", "fresh5", "fresh6"} {
		t.Run(set, func(t *testing.T) { scoreLogs(t, "testdata/"+set, 140) })
	}
}
