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

func TestBundled(t *testing.T) { run(t, bundled.Config(engine.InProcess, 1), "", "") }

// The other places of an engine are checked for what is different there, and wholly in a long run.
func TestBundledInAChild(t *testing.T) {
	run(t, bundled.Config(engine.ChildProcess, 1), "^lifecycle", "^lifecycle/(ends|death|cancel|drain)")
}

func TestBundledOnTwoDevices(t *testing.T) {
	run(t, bundled.Config(engine.InProcess, 2), "^same answer", "^same answer/(in|cold|under)")
}

func run(t *testing.T, cfg engine.Config, only, short string) {
	t.Helper()
	opts, err := bundled.Options(t.TempDir(), cfg)
	require.NoError(t, err)
	conformance.Run(t, bundled.Open(cfg), append(opts, chosen(only, short)...)...)
}

// chosen are the properties that an ordinary and a short run check; a long run checks all.
func chosen(only, short string) []conformance.Option {
	if os.Getenv("ENGINETEST_LONG") != "" {
		return nil
	}
	draws := 3000
	if testing.Short() {
		only, draws = short, 600
	}
	return []conformance.Option{
		conformance.Only(regexp.MustCompile(only)), conformance.Draws(draws),
		conformance.Short(testing.Short()),
	}
}
