package conformance_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/conformance"
	"github.com/enginetest/enginetest/conformance/internal/bundled"
)

func TestMain(m *testing.M) {
	bundled.ServeIfTold()
	os.Exit(m.Run())
}

// TestServed runs the suite on a server in a process of its own.
func TestServed(t *testing.T) {
	open, err := bundled.Served()
	require.NoError(t, err)
	opts := chosen("^wire/|^same answer/s|^lifecycle/(ends|death|cancel)|^stops/", "^wire/|^lifecycle/death")
	conformance.Run(t, open, append(bundled.ServerOptions(), opts...)...)
}
