package conformance_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/conformance"
	"github.com/enginetest/enginetest/conformance/internal/bundled"
)

// TestForeignServers runs the whole suite against the servers of other projects that are installed.
func TestForeignServers(t *testing.T) {
	if os.Getenv("ENGINETEST_LONG") == "" {
		t.Skip("takes minutes: ENGINETEST_LONG=1")
	}
	for _, f := range bundled.ForeignServers {
		t.Run(f.Name, func(t *testing.T) {
			if !f.Installed() {
				t.Skipf("%s is not in PATH; scripts/install-servers installs it", f.Program)
			}
			open, opts, err := f.Open(t.TempDir())
			require.NoError(t, err)
			conformance.Run(t, open, opts...)
		})
	}
}
