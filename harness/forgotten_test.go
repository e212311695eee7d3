package harness_test

import (
	"context"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/gpuwait/gpuwaittest"
	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/internal/faketb"
	"github.com/enginetest/enginetest/ledger"
)

// gpuToy is a toy with memory on the scripted GPU.
type gpuToy struct {
	*toy
	src  *gpuwaittest.Source
	more ledger.ID
}

func openGPUToy(src *gpuwaittest.Source, bytes int64) func(context.Context) (*gpuToy, error) {
	return func(ctx context.Context) (*gpuToy, error) {
		e, err := openToy(ctx)
		g := &gpuToy{toy: e, src: src}
		g.more = e.ledger.Add(ledger.Holding{Owner: "kv_cache", Kind: "plain", Device: "GPU-1", Bytes: bytes})
		return g, err
	}
}

// A fixture that is dropped without Close leaves an engine that no one can end: the next teardown
// names the line that opened it.
func TestADroppedFixtureIsNamed(t *testing.T) {
	src, opts := board(t, 0)
	me := os.Getpid()
	failures := faketb.Run(func(ft *faketb.T) {
		r := harness.Start(ft, func(ctx context.Context) (*gpuToy, error) {
			return openGPUToy(src, gib)(ctx)
		}, append(opts, harness.TeardownTimeout(2*time.Second))...)
		e := harness.EngineOf[*gpuToy](r)
		e.onClose = func(context.Context) error { return e.ledger.Remove(e.more) }
		dropFixture(t, openGPUToy(src, 3*gib), opts)
		for range 3 {
			runtime.GC()
		}
		set(src, held(me, 3*gib+512<<20))
	})
	require.Len(t, failures, 1)
	assert.Regexp(t, `GPU-1 .*: 3\.5 GiB: engine opened at forgotten_test\.go:\d+, never shut down`, failures[0])
	assert.Contains(t, failures[0], "by its ledger 3.0 GiB of it; the rest is what the driver took for it")
}

//go:noinline
func dropFixture(t *testing.T, open func(context.Context) (*gpuToy, error), opts []harness.Option) {
	f, err := harness.Open(t.Context(), open, opts...)
	require.NoError(t, err)
	quit := f.Engine().(*gpuToy).quit
	t.Cleanup(func() { close(quit) })
}

// While a fixture is alive, what its engine holds is on purpose.
func TestALiveFixtureIsNotForgotten(t *testing.T) {
	src, opts := board(t, 0)
	me := os.Getpid()
	failures := faketb.Run(func(ft *faketb.T) {
		harness.Start(ft, openToy, append(opts, harness.TeardownTimeout(2*time.Second))...)
		f, err := harness.Open(t.Context(), openGPUToy(src, 3*gib), opts...)
		require.NoError(t, err)
		set(src, held(me, 6*gib))
		t.Cleanup(func() {
			set(src)
			f.Close(context.Background())
		})
	})
	require.Len(t, failures, 1, "there is more than it owns")
	assert.NotContains(t, failures[0], "never shut down")
}
