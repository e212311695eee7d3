package engine_test

import (
	"fmt"
	"testing"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/runner"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a suite does with the fixture: the same text before and after each sleep, and nothing left,
// also when the test ends in a sleep.
func TestSleepThroughTheFixture(t *testing.T) {
	const prompt = "The lighthouse"
	want := runner.New(t, runner.Config{Model: fixtures.Bundled()}).GenerateGreedy(prompt, 24).Text
	for _, core := range []engine.Core{engine.InProcess, engine.ChildProcess} {
		for _, level := range []int{1, 2} {
			t.Run(fmt.Sprint(core, " level ", level), func(t *testing.T) {
				r := runner.New(t, runner.Config{Model: fixtures.Bundled(), Core: core, OffloadBytes: 1 << 20})
				assert.Equal(t, want, r.GenerateGreedy(prompt, 24).Text)
				r.Sleep(level)
				r.Wake()
				assert.Equal(t, want, r.GenerateGreedy(prompt, 24).Text)
				r.Sleep(level)
				r.Wake(engine.TagWeights)
				r.Wake(engine.TagKVCache)
				assert.Equal(t, want, r.GenerateGreedy(prompt, 24).Text)
				r.ResetPrefixCache()
				r.Sleep(level)
				report := r.Stop()
				require.NoError(t, report.Err())
			})
		}
	}
}
