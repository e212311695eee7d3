package cpu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// layerNormReference is the formula in float64.
func layerNormReference(x []float64, weight, bias []float32, eps float64) []float64 {
	dim := len(weight)
	out := make([]float64, len(x))
	for at := 0; at < len(x); at += dim {
		mean, variance := 0.0, 0.0
		for _, v := range x[at : at+dim] {
			mean += v / float64(dim)
		}
		for _, v := range x[at : at+dim] {
			variance += (v - mean) * (v - mean) / float64(dim)
		}
		for i, v := range x[at : at+dim] {
			out[at+i] = (v-mean)/math.Sqrt(variance+eps)*float64(weight[i]) + float64(bias[i])
		}
	}
	return out
}

func TestLayerNormAgainstFloat64(t *testing.T) {
	eachTier(t, func(t *testing.T, p *Pool) {
		for _, dim := range dims {
			rng := rngOf(uint64(dim))
			const rows, eps = 3, 1e-12
			x, delta := random(rng, rows*dim), random(rng, rows*dim)
			weight, bias := random(rng, dim), random(rng, dim)
			for i := range x {
				x[i] += 100 // a mean that swamps the variance of one pass
			}
			exact, sum := make([]float64, len(x)), make([]float64, len(x))
			for i := range x {
				exact[i], sum[i] = float64(x[i]), float64(x[i]+delta[i])
			}
			dst := fencedFloats(t, make([]float32, rows*dim))
			LayerNorm(p, dst, fencedFloats(t, x), fencedFloats(t, weight), fencedFloats(t, bias), rows, dim, eps)
			near(t, layerNormReference(exact, weight, bias, eps), dst, 1e-6, 1e-6, dim)

			AddLayerNorm(p, x, delta, weight, bias, rows, dim, eps)
			near(t, layerNormReference(sum, weight, bias, eps), x, 1e-6, 1e-6, dim)
		}
	})
	p := pool(t, 1, Generic)
	require.Panics(t, func() { LayerNorm(p, make([]float32, 4), make([]float32, 4), nil, nil, 1, 4, 0) })
}

func TestGELUAgainstFloat64(t *testing.T) {
	eachTier(t, func(t *testing.T, p *Pool) {
		for _, n := range append(dims, 40000) {
			x := random(rngOf(uint64(n)), n)
			x[0], x[n-1] = 20, -20
			want := make([]float64, n)
			for i, v := range x {
				want[i] = float64(v) * (1 - 0.5*math.Erfc(float64(v)/math.Sqrt2))
			}
			GELU(p, x)
			near(t, want, x, 1e-7, 1e-6, n)
		}
	})
}
