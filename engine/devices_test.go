package engine

import (
	"os"
	"testing"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/internal/cudatest"
	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/require"
)

// testDevice is a device that sleeps.
type testDevice struct {
	config string   // Config.Device
	pkg    string   // of its runner, in errors
	blank  bool     // it computes nothing: tokens mean nothing
	opens  []string // owners of what Open allocates, in order
}

var (
	onCPU  = testDevice{config: "cpu", pkg: "cpurunner", opens: []string{"weights", "rope", "workspace", "kv_cache"}}
	onCUDA = testDevice{
		config: "cuda", pkg: "cudarunner",
		opens: []string{"weights", "rope", "workspace", "staging", "kv_cache"},
	}
)

// onDevices runs a test on the CPU, on the stand-in for libcuda, whose kernels compute nothing, and
// on a GPU when there is one.
func onDevices(t *testing.T, test func(t *testing.T, d testDevice)) {
	t.Run("cpu", func(t *testing.T) { test(t, onCPU) })
	t.Run("stub", func(t *testing.T) {
		d := onCUDA
		d.blank = true
		t.Setenv("ENGINETEST_LIBCUDA", cudatest.New(t, 1, 1<<30).Path)
		test(t, d)
	})
	t.Run("gpu", func(t *testing.T) {
		if err := cuda.Available(); err != nil {
			t.Skipf("no GPU: %v", err)
		}
		test(t, onCUDA)
	})
}

// golden is what the tiny Llama makes on this device.
func (d testDevice) golden(t *testing.T) golden {
	g := loadGolden(t)
	if d.blank {
		for i, p := range g.Prompts {
			g.Prompts[i].Greedy = make([]int32, len(p.Greedy))
		}
	}
	return g
}

// kept is what a sleep that keeps the weights has on the host: the checkpoint's file, or what the
// device had.
func (d testDevice) kept(t *testing.T, e *Engine) int64 {
	if d.pkg == "cudarunner" {
		return bytesOf(e)["weights"]
	}
	info, err := os.Stat(tinyLlama + "/model.safetensors")
	require.NoError(t, err)
	return info.Size()
}

// bytesOf is what an engine holds, without what has no bytes: a context, a stream.
func bytesOf(e *Engine) map[string]int64 {
	m := ledger.ByOwner(e.Holdings())
	for owner, n := range m {
		if n == 0 {
			delete(m, owner)
		}
	}
	return m
}

// The stand-in's tokens are all zero: what the tests compare with it says something about lengths
// and order only.
func TestStandInIsBlank(t *testing.T) {
	t.Setenv("ENGINETEST_LIBCUDA", cudatest.New(t, 1, 1<<30).Path)
	e := openTiny(t, Config{Device: "cuda"})
	require.Equal(t, make([]int32, 5), one(t, e, ids(3, 0), SamplingParams{MaxTokens: 5, IgnoreEOS: true}).TokenIDs)
}
