package runner_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/runner"
)

// In a bubble of testing/synctest, time is not real and some methods of the test are forbidden.
func TestInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		toys := runner.Start(t, openToy, noGPU...)
		assert.Equal(t, "hello", toys.GenerateGreedy("hello", 4).Text)
		bundled := runner.New(t, runner.Config{Model: fixtures.Bundled(), Device: "cpu"})
		assert.Equal(t, "5", bundled.GenerateGreedy("2+3=", 4).Text)
		require.NoError(t, bundled.Stop().Err())
	})
}

// remote is an engine without anything of its own: a client of one that somebody else runs.
type remote struct{}

func (remote) Generate(context.Context, ...engine.Request) ([]engine.Output, error) {
	return []engine.Output{{Completions: make([]engine.Completion, 1)}}, nil
}

func (remote) Shutdown(context.Context) error { return nil }

func TestAnEngineMayBeEmpty(t *testing.T) {
	r := runner.Start(t, func(context.Context) (remote, error) { return remote{}, nil }, noGPU...)
	r.GenerateGreedy("x", 1)
	require.NoError(t, r.Stop().Err())
}
