package leakcheck

import (
	"math"
	"slices"
)

// Trend is the growth of one measure.
type Trend struct {
	Measure    string
	PerRound   float64 // Theil–Sen: the median of the slopes between all pairs of samples
	Confidence float64 // that it grows at all: 1 − p of the Mann–Kendall test, one-sided, exact for up to 50 samples
	Allowed    float64
	Slowing    bool // the second half grew less than half as much as the first: a cache that fills up looks so
	bytes      bool
}

// Grows reports whether the trend is a finding.
func (t Trend) Grows() bool { return t.PerRound > t.Allowed && t.Confidence >= minConfidence }

const minConfidence = 0.95

// slope is the Theil–Sen estimator (Sen 1968).
func slope(y []float64) float64 {
	var s []float64
	for i := range y {
		for j := i + 1; j < len(y); j++ {
			s = append(s, (y[j]-y[i])/float64(j-i))
		}
	}
	if len(s) == 0 {
		return 0
	}
	slices.Sort(s)
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// confidence is 1 − p of the one-sided Mann–Kendall trend test: p is the share of all orders of the samples with no more inversions than were
// seen (Mann 1945).
func confidence(y []float64) float64 {
	n, inversions := len(y), 0
	for i := range y {
		for j := i + 1; j < n; j++ {
			if y[j] <= y[i] {
				inversions++
			}
		}
	}
	if n > 50 { // normal approximation
		mean := float64(n*(n-1)) / 4
		sigma := math.Sqrt(float64(n*(n-1)*(2*n+5)) / 72)
		return 0.5 * (1 + math.Erf((mean-float64(inversions)-0.5)/sigma/math.Sqrt2))
	}
	share := []float64{1} // share[k] of the orders of m samples have k inversions
	for m := 2; m <= n; m++ {
		next := make([]float64, len(share)+m-1)
		for k, p := range share {
			for add := range m {
				next[k+add] += p / float64(m)
			}
		}
		share = next
	}
	p := 0.0
	for k := 0; k <= inversions && k < len(share); k++ {
		p += share[k]
	}
	return max(0, 1-p)
}
