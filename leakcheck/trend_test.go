package leakcheck

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTrend(t *testing.T) {
	for _, row := range []struct {
		why        string
		y          []float64
		slope      float64
		confidence float64
	}{
		{"five that rise: one order of 120", []float64{1, 2, 3, 4, 5}, 1, 1 - 1.0/120},
		{"one pair swapped: 1+4 orders of 120 are as good", []float64{1, 3, 2, 4, 5}, 1, 1 - 5.0/120},
		{"constant", []float64{7, 7, 7, 7, 7}, 0, 0},
		{"falling", []float64{5, 4, 3, 2, 1}, -1, 0},
		{"one outlier does not move the slope", []float64{0, 10, 20, 1e9, 40, 50, 60}, 10, 0},
	} {
		assert.InDelta(t, row.slope, slope(row.y), 1e-9, row.why)
		if row.confidence > 0 {
			assert.InDelta(t, row.confidence, confidence(row.y), 1e-9, row.why)
		}
	}
	assert.InDelta(t, 0, confidence([]float64{7, 7, 7, 7, 7}), 1e-9)
	assert.InDelta(t, 0, confidence([]float64{5, 4, 3, 2, 1}), 1e-9)
	assert.Less(t, confidence([]float64{0, 0, 0, 100, 100, 100, 100, 100}), minConfidence, "a jump is no trend")
}

// TestConfidenceOnNoise: of series without a trend, five in a hundred pass the threshold, in the exact and in the approximate form.
func TestConfidenceOnNoise(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{6, 12, 60} {
		passed := 0
		const runs = 2000
		for range runs {
			y := make([]float64, n)
			for i := range y {
				y[i] = r.Float64()
			}
			if confidence(y) >= minConfidence {
				passed++
			}
		}
		assert.InDelta(t, 0.05, float64(passed)/runs, 0.025, "n = %d", n)
	}
}
