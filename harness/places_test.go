package harness_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
)

// In a bubble of testing/synctest, time is not real and some methods of the test are forbidden.
func TestInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		toys := harness.Start(t, openToy, noGPU...)
		assert.Equal(t, "hello", toys.GenerateGreedy("hello", 4).Text)
	})
}

// remote is an engine without anything of its own: a client of one that someone else runs.
type remote struct{}

func (remote) Generate(context.Context, ...llm.Request) ([]llm.Output, error) {
	return []llm.Output{{Completions: make([]llm.Completion, 1)}}, nil
}

func (remote) Shutdown(context.Context) error { return nil }

func TestAnEngineMayBeEmpty(t *testing.T) {
	r := harness.Start(t, func(context.Context) (remote, error) { return remote{}, nil }, noGPU...)
	r.GenerateGreedy("x", 1)
	require.NoError(t, r.Stop().Err())
}
