package leakcheck_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestThreadsOfC: a thread with a name that C code leaves running is a finding, whether it has called Go or not; one
// that ends, or was there before, is not, and neither are Go's own.
func TestThreadsOfC(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the tests of another module")
	}
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("threads of C need cgo and a C compiler:", err)
	}
	t.Setenv("CGO_ENABLED", "1")
	tests := runOutside(t, "./cthreads")
	for name, want := range map[string]string{
		"TestLeakNamed":     `"decoder" in cthreads.test still runs, `,
		"TestLeakCallsGo":   `"caller" in cthreads.test still runs, `,
		"TestCleanNameless": "",
		"TestCleanJoined":   "",
		"TestCleanGo":       "",
		"TestCleanSpinning": "",
		"TestCleanTimer":    "",
	} {
		got := tests[name]
		if want == "" {
			assert.Equal(t, "pass", got.Verdict, "%s\n%s", name, got.Output)
			continue
		}
		assert.Equal(t, "fail", got.Verdict, "%s\n%s", name, got.Output)
		assert.Contains(t, got.Output, want, name)
		assert.Equal(t, 1, strings.Count(got.Output, "leakcheck: "), got.Output)
	}
}
