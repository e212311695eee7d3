package cpurunner_test

import (
	"testing"

	"github.com/enginetest/enginetest/engine/internal/cpurunner"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/modelrunner/runnertest"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/require"
)

// onCPU is the CPU runner: kept weights are the checkpoint's mapped files.
var onCPU = runnertest.Device{
	Package: "cpurunner", Dir: "../modelrunner/testdata", Owners: []string{"weights", "rope", "workspace"},
	Open: func(t *testing.T, dir string, hooks modelrunner.Hooks) (runnertest.Runner, *ledger.Ledger) {
		ckpt, err := checkpoint.Open(dir)
		require.NoError(t, err)
		l := ledger.New(true)
		r, err := cpurunner.New(ckpt, cpurunner.Options{Ledger: l, Hooks: hooks, MaxNumBatchedTokens: 64})
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, r.Close())
			require.Empty(t, l.Holdings())
		})
		return r, l
	},
	Kept: func(held []ledger.Holding) (files int64) {
		for _, h := range held {
			if h.Kind == "file" {
				files += h.Bytes
			}
		}
		return files
	},
}

func TestSleep(t *testing.T)  { runnertest.Sleep(t, onCPU) }
func TestCopyKV(t *testing.T) { runnertest.CopyKV(t, onCPU) }
