package runner_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/fixtures/fault"
	"github.com/enginetest/enginetest/internal/faketb"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/runner"
)

func TestPoolLeasesWarmEngines(t *testing.T) {
	var pool runner.Pool
	cfg := runner.Config{Model: fixtures.Bundled(), Device: "cpu"}
	var engines []runner.Engine
	use := func(cfg runner.Config) []string {
		return faketb.Run(func(ft *faketb.T) {
			r := pool.New(ft, cfg)
			engines = append(engines, r.Engine())
			assert.Equal(t, "5", r.GenerateGreedy("2+3=", 4).Text)
		})
	}
	assert.Empty(t, use(cfg))
	assert.Empty(t, use(cfg))
	other := cfg
	other.MaxNumSeqs = 3
	assert.Empty(t, use(other))
	assert.Same(t, engines[0], engines[1], "the same configuration, one engine")
	assert.NotSame(t, engines[0], engines[2], "another configuration, another engine")
	assert.Zero(t, engines[0].(*engine.Engine).Stats().KVBlocksCached, "the prefix cache was reset")
	engines = nil
	require.NoError(t, pool.Close(t.Context()))
}

func TestPoolLeasesToOneTestAtATime(t *testing.T) {
	var pool runner.Pool
	cfg := runner.Config{Model: fixtures.Bundled(), Device: "cpu"}
	assert.Empty(t, faketb.Run(func(ft *faketb.T) {
		first := pool.New(ft, cfg)
		assert.NotSame(t, first.Engine(), pool.New(ft, cfg).Engine())
	}))
	require.NoError(t, pool.Close(t.Context()))
}

func TestPoolNamesWhatATestLeft(t *testing.T) {
	var pool runner.Pool
	failures := faketb.Run(func(ft *faketb.T) {
		r := pool.New(ft, runner.Config{Model: fixtures.Bundled(), Device: "cpu"})
		require.NoError(t, r.Engine().Shutdown(t.Context()))
	})
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], "cannot be leased again after lease 1: engine: stopped")
	require.NoError(t, pool.Close(t.Context()), "it was ended, and nothing is left of it")

	failures = faketb.Run(func(ft *faketb.T) {
		pool.New(ft, runner.Config{
			Model:  fixtures.Bundled(),
			Faults: []llm.Fault{fault.Error(llm.FaultForward, 1)},
		})
	})
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], "cannot be shared")
}

type tests func() int

func (f tests) Run() int { return f() }

func TestPoolMain(t *testing.T) {
	var pool runner.Pool
	var pinned runner.Engine
	code := pool.Main(tests(func() int {
		return len(faketb.Run(func(ft *faketb.T) {
			pinned = pool.New(ft, runner.Config{Model: fixtures.Bundled(), Device: "cpu"},
				runner.WithoutDeviceMemory("no GPU in this test"), runner.TeardownTimeout(2*time.Second)).Engine()
		}))
	}))
	assert.Equal(t, 1, code, "the tests passed, and an engine is still held")
	assert.NotNil(t, pinned)
}
