package server_test

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func itoa(n int) string { return strconv.Itoa(n) }

// A suite of a foreign server links neither the bundled engine, nor its kernels, nor cgo.
func TestLinksNoEngine(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}} {{len .CgoFiles}} {{.Standard}}",
		".").CombinedOutput()
	if err != nil {
		t.Skipf("no Go, or no sources: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		require.Len(t, f, 3, line)
		for _, banned := range []string{
			"enginetest/enginetest/engine", "enginetest/enginetest/cuda", "/purego",
			"/go-nvml", "/testify",
		} {
			require.NotContains(t, f[0], banned)
		}
		require.True(t, f[1] == "0" || f[2] == "true", "%s has cgo", f[0])
	}
}
