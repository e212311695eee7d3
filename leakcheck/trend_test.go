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
			assert.InDelta(t, row.confidence, orderConfidence(row.y), 1e-9, row.why)
		}
	}
	assert.InDelta(t, 0, confidence([]float64{7, 7, 7, 7, 7}), 1e-9)
	assert.InDelta(t, 0, confidence([]float64{5, 4, 3, 2, 1}), 1e-9)
}

// TestStudentT: percentiles of the printed tables.
func TestStudentT(t *testing.T) {
	for df, at := range map[int]float64{1: 31.821, 2: 6.965, 3: 4.541, 4: 3.747, 5: 3.365, 6: 3.143, 30: 2.457} {
		assert.InDelta(t, 0.99, studentT(at, df), 1e-4, "df = %d", df)
		assert.InDelta(t, 0.01, studentT(-at, df), 1e-4, "df = %d", df)
	}
}

func TestGrows(t *testing.T) {
	for _, row := range []struct {
		why  string
		y    []float64
		want bool
	}{
		{"five on a line", []float64{0, 10, 20, 30, 40}, true},
		{"five nearly on a line", []float64{0, 10.1, 19.9, 30, 40}, true},
		{"five that rise anyhow", []float64{0, 1, 15, 16, 40}, false},
		{"constant", []float64{7, 7, 7, 7, 7, 7, 7, 7}, false},
		{"a jump", []float64{0, 0, 0, 100, 100, 100, 100, 100}, false},
		{"one jump in the middle of noise", []float64{1, 3, 2, 1, 3, 101, 103, 102, 101, 103, 102, 103}, false},
		{"a cache that is full by the half", []float64{0, 10, 20, 30, 40, 50, 50, 50, 50, 50, 50, 50, 50}, false},
		{"with one outlier", []float64{0, 10, 20, 30, 1e6, 50, 60, 70, 80, 90, 100, 110}, true},
		{"under the allowance", []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, false},
	} {
		assert.Equal(t, row.want, newTrend("it", row.y, 2).Grows(), row.why)
	}
}

// TestLevelOnNoise: of series without a trend, none in ten thousand may be called growth, whatever
// their noise and however few samples.
func TestLevelOnNoise(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, row := range []struct { // no map: its order would make the draws others in each run
		name  string
		noise func() float64
	}{
		{"uniform", r.Float64},
		{"normal", r.NormFloat64},
		{"exponential", r.ExpFloat64},
		{"two values", func() float64 { return float64(r.IntN(2)) }},
		{"ten values", func() float64 { return float64(r.IntN(10)) }},
	} {
		for _, n := range []int{5, 6, 7, 8, 12, 24} {
			alarms := 0
			const runs = 2000
			for range runs {
				y := make([]float64, n)
				for i := range y {
					y[i] = row.noise()
				}
				if confidence(y) >= minConfidence && newTrend("it", y, 0).Grows() {
					alarms++
				}
			}
			assert.LessOrEqual(t, alarms, 2, "%s, n = %d", row.name, n)
		}
	}
}

// ring returns the sizes of a full ring of k buffers of random sizes, one of which is replaced in
// each of n rounds: each sum depends on the ones before.
func ring(r *rand.Rand, k, n int) (y []float64) {
	sizes, sum := make([]float64, k), 0.0
	for i := range k + n {
		size := (64 << 10) * r.Float64()
		sum += size - sizes[i%k]
		if sizes[i%k] = size; i >= k {
			y = append(y, sum)
		}
	}
	return y
}

// TestLevelOnWanderingNoise: where samples depend on the ones before, one series wanders up by
// chance; the same number of objects, and a second series, tell it from growth.
func TestLevelOnWanderingNoise(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, buffers := range []int{2, 4, 8, 16, 32} {
		for _, n := range []int{5, 9, 13, 25} {
			if n == 25 && testing.Short() {
				continue
			}
			first, both := 0, 0
			const runs = 2000
			for range runs {
				y := ring(r, buffers, 2*n-1)
				one, two := newTrend("it", y[:n], 4<<10), newTrend("it", y[n-1:], 4<<10)
				one.doubt, two.doubt = !oneGrows(y[:n]), !oneGrows(y[n-1:])
				if one.Grows() {
					first++
					if two.grows(confirming) {
						both++
					}
				}
			}
			assert.LessOrEqual(t, first, runs/50, "%d buffers, %d samples", buffers, n)
			assert.LessOrEqual(t, both, 1, "%d buffers, %d samples", buffers, n)
		}
	}
}
