package leakcheck

import (
	"math"
	"slices"
	"sync"
)

// Trend is the growth of one measure.
type Trend struct {
	Measure    string
	PerRound   float64 // Theil–Sen: the median of the slopes between all pairs of samples
	Confidence float64 // that it grows at all: 1 − p of the Mann–Kendall test, or of a linear fit where that is surer
	Allowed    float64
	Slowing    bool   // the second half grew less than half as much as the first: a cache that fills up looks so
	Unjudged   string // why this measure cannot tell a leak here; empty when it can

	bytes     bool
	sustained bool // both halves grew more than allowed
	doubt     bool // another measure of the same thing does not grow
	once      bool // it did not grow in the second series
}

// Grows reports whether the trend is a finding: more than allowed, in both halves, with a
// confidence that noise reaches less than once in ten thousand series.
func (t Trend) Grows() bool { return !t.once && t.grows(minConfidence) }

func (t Trend) grows(level float64) bool {
	return t.PerRound > t.Allowed && t.sustained && !t.doubt && t.Unjudged == "" && t.Confidence >= level
}

const (
	minConfidence = 0.9999
	// confirming is the level of the second series: chance has to reach both.
	confirming = 0.99
	// suggestive is the level at which the order of the samples allows a linear fit to speak, and
	// two measures agree.
	suggestive = 0.95
)

// newTrend judges one series.
func newTrend(measure string, y []float64, allowed float64) Trend {
	half := len(y) / 2
	first, second := slope(y[:half+1]), slope(y[half:])
	return Trend{
		Measure: measure, PerRound: slope(y), Confidence: confidence(y), Allowed: allowed,
		Slowing: len(y) >= 8 && second < first/2, sustained: first > allowed && second > allowed,
	}
}

// confidence is that of [orderConfidence]. A few samples that all rise are at best 1 in n!
// surprising; where their order suggests growth, how well they lie on a line may be surer.
func confidence(y []float64) float64 {
	c := orderConfidence(y)
	if c < suggestive {
		return c
	}
	return max(c, lineConfidence(y))
}

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

// orderConfidence is 1 − p of the one-sided Mann–Kendall trend test, exact for up to 50 samples: p
// is the share of all orders of the samples with no more inversions than were seen (Mann 1945).
// Equal samples count as inverted.
func orderConfidence(y []float64) float64 {
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
	return max(0, 1-inversionShares(n)[inversions])
}

var shares struct {
	sync.Mutex
	upTo map[int][]float64
}

// inversionShares says for every k which share of the orders of n samples has at most k inversions.
func inversionShares(n int) []float64 {
	shares.Lock()
	defer shares.Unlock()
	if s := shares.upTo[n]; s != nil {
		return s
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
	for k := 1; k < len(share); k++ {
		share[k] += share[k-1]
	}
	if shares.upTo == nil {
		shares.upTo = map[int][]float64{}
	}
	shares.upTo[n] = share
	return share
}

// lineConfidence is 1 − p of the one-sided t-test for the slope of the least-squares line.
func lineConfidence(y []float64) float64 {
	if len(y) < 3 {
		return 0
	}
	rise, err := line(y)
	switch {
	case rise <= 0:
		return 0
	case err == 0:
		return 1
	}
	return studentT(rise/err, len(y)-2)
}

// slopeError is the standard error of the slope of the least-squares line.
func slopeError(y []float64) float64 { _, err := line(y); return err }

// line fits one by least squares: its slope, and the standard error of that.
func line(y []float64) (rise, err float64) {
	n := float64(len(y))
	var mean float64
	for _, v := range y {
		mean += v / n
	}
	var sxx, sxy, syy float64
	for i, v := range y {
		x := float64(i) - (n-1)/2
		sxx, sxy, syy = sxx+x*x, sxy+x*(v-mean), syy+(v-mean)*(v-mean)
	}
	rest := max(0, syy-sxy*sxy/sxx)
	return sxy / sxx, math.Sqrt(rest / (n - 2) / sxx)
}

// studentT is Student's t distribution for whole degrees of freedom (Abramowitz and Stegun 26.7.3
// and 26.7.4).
func studentT(t float64, df int) float64 {
	theta := math.Atan2(t, math.Sqrt(float64(df)))
	sin, cos := math.Sincos(theta)
	term, sum, k := 1.0, 1.0, 1
	if df%2 == 1 {
		term, sum, k = cos, cos, 2
		if df == 1 {
			term, sum = 0, 0
		}
	}
	for ; k < df-1; k += 2 {
		term *= cos * cos * float64(k) / float64(k+1)
		sum += term
	}
	if df%2 == 1 {
		return 0.5 + (theta+sin*sum)/math.Pi
	}
	return 0.5 + sin*sum/2
}

// oneGrows reports whether a series can be that of one object that gets larger: it hardly ever falls
// over many samples, and never over few.
func oneGrows(y []float64) bool {
	switch n := len(y); {
	case n < 8:
		return false
	case n < 12:
		return steadiness(y) == 1
	}
	return steadiness(y) >= 0.9
}

// steadiness is the rise from the first sample to the last, as a part of the whole way up and down:
// 1 for a series that never falls.
func steadiness(y []float64) float64 {
	var way float64
	for i := 1; i < len(y); i++ {
		way += math.Abs(y[i] - y[i-1])
	}
	if way == 0 {
		return 0
	}
	return (y[len(y)-1] - y[0]) / way
}
