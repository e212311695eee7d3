package conformance_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/conformance"
	"github.com/enginetest/enginetest/conformance/internal/bundled"
	"github.com/enginetest/enginetest/engine"
)

func TestBundled(t *testing.T) { run(t, bundled.Config(engine.InProcess, 1), "") }

// The other places of an engine are checked for what is different there, and wholly in a long run.
func TestBundledInAChild(t *testing.T) { run(t, bundled.Config(engine.ChildProcess, 1), "^lifecycle") }

func TestBundledOnTwoDevices(t *testing.T) {
	run(t, bundled.Config(engine.InProcess, 2), "^same answer")
}

func run(t *testing.T, cfg engine.Config, only string) {
	t.Helper()
	opts, err := bundled.Options(t.TempDir(), cfg)
	require.NoError(t, err)
	if os.Getenv("ENGINETEST_LONG") == "" {
		opts = append(opts, conformance.Only(regexp.MustCompile(only)), conformance.Draws(600))
	}
	conformance.Run(t, bundled.Open(cfg), opts...)
}
