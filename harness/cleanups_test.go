package harness_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/enginetest/enginetest/harness"
)

// Testing keeps cleanups that have run, and with them the engine that they used. That is not the
// test's leak.
func TestCleanupsThatHaveRun(t *testing.T) {
	ok := t.Run("engine", func(t *testing.T) {
		r := harness.Start(t, openToy, quick...)
		e := r.Engine().(*toy)
		for range 20 {
			t.Cleanup(func() { e.Holdings() })
		}
		t.Run("parallel", func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() { e.Holdings() })
		})
	})
	assert.True(t, ok)
}
