package runner_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/runner"
)

// In a bubble of testing/synctest, time is not real and some methods of the test are forbidden.
func TestInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bundled := runner.New(t, runner.Config{Model: fixtures.Bundled(), Device: "cpu"})
		assert.Equal(t, "5", bundled.GenerateGreedy("2+3=", 4).Text)
		require.NoError(t, bundled.Stop().Err())
	})
}
