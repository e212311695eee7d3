package report

import "testing"

// TestFresh classifies logs of programs that really fail, made by compat/failures: set 1 after the
// rules, which were mended with it; set 2 has other cases, and was looked at only after that.
func TestFresh(t *testing.T) {
	for _, set := range []string{"fresh1", "fresh2", "fresh3"} {
		t.Run(set, func(t *testing.T) { scoreLogs(t, "testdata/"+set, 150) })
	}
}
