package cpu

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The dimensions that have every kind of rest: whole vectors, half ones, single elements.
var dims = []int{1, 7, 8, 9, 15, 16, 17, 33, 64, 100, 768, 2051}

func TestNormsAgainstFloat64(t *testing.T) {
	eachTier(t, func(t *testing.T, p *Pool) {
		for _, dim := range dims {
			rng := rngOf(uint64(dim))
			const rows, eps = 3, 1e-5
			x, delta, weight := random(rng, rows*dim), random(rng, rows*dim), random(rng, dim)
			want, wantSum := make([]float64, rows*dim), make([]float64, rows*dim)
			reference := func(in []float64) {
				for r := range rows {
					var ss float64
					for i := range dim {
						ss += in[r*dim+i] * in[r*dim+i]
					}
					for i := range dim {
						want[r*dim+i] = in[r*dim+i] / math.Sqrt(ss/float64(dim)+eps) * float64(weight[i])
					}
				}
			}
			for i := range x {
				want[i], wantSum[i] = float64(x[i]), float64(x[i]+delta[i])
			}
			reference(append([]float64(nil), want...))
			dst := fencedFloats(t, make([]float32, rows*dim))
			RMSNorm(p, dst, fencedFloats(t, x), fencedFloats(t, weight), rows, dim, eps)
			near(t, want, dst, 1e-6, 1e-6, dim)

			residual := fencedFloats(t, x)
			AddRMSNorm(p, dst, residual, fencedFloats(t, delta), weight, rows, dim, eps)
			near(t, wantSum, residual, 0, 0, "x + delta is one float32 addition")
			reference(wantSum)
			near(t, want, dst, 1e-6, 1e-6, dim)
		}
	})
}

func TestElementwiseAgainstFloat64(t *testing.T) {
	ops := []struct {
		name     string
		run      func(p *Pool, dst, a, b []float32)
		want     func(d, a, b float64) float64
		abs, rel float64
	}{
		{"add", func(p *Pool, dst, a, _ []float32) { Add(p, dst, a) }, func(d, a, _ float64) float64 {
			return d + a
		}, 0, 1e-7},
		{"scale", func(p *Pool, dst, _, _ []float32) { p.k.scale(dst, 1.5) }, func(d, _, _ float64) float64 {
			return d * 1.5
		}, 0, 1e-7},
		{"axpy", func(p *Pool, dst, a, _ []float32) { p.k.axpy(dst, a, 0.75) }, func(d, a, _ float64) float64 {
			return d + 0.75*a
		}, 1e-6, 1e-7},
		{"silu", func(p *Pool, dst, a, b []float32) { SiLUMul(p, dst, a, b) }, func(_, a, b float64) float64 {
			return a / (1 + math.Exp(-a)) * b
		}, 1e-30, 5e-7},
		{"gelu", func(p *Pool, dst, a, b []float32) { GELUMul(p, dst, a, b) }, func(_, a, b float64) float64 {
			return 0.5 * a * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(a+0.044715*a*a*a))) * b
		}, 1e-6, 1e-6},
		{"Scale", func(p *Pool, dst, _, _ []float32) { Scale(p, dst, 1.5) }, func(d, _, _ float64) float64 {
			return d * 1.5
		}, 0, 1e-7},
	}
	eachTier(t, func(t *testing.T, p *Pool) {
		for _, op := range ops {
			for _, n := range append(dims, 40000) {
				rng := rngOf(uint64(n))
				dst, a, b := random(rng, n), random(rng, n), random(rng, n)
				for i := range a {
					a[i] *= 5
				}
				a[0] = 80 // beyond where exp matters
				a[n-1] = -80
				want := make([]float64, n)
				for i := range want {
					want[i] = op.want(float64(dst[i]), float64(a[i]), float64(b[i]))
				}
				d := fencedFloats(t, dst)
				op.run(p, d, fencedFloats(t, a), fencedFloats(t, b))
				near(t, want, d, op.abs, op.rel, op.name, n)
			}
		}
	})
}

// The vector exponential is within 2 units in the last place of float64's over the whole range that
// softmax uses, and 0 below.
func TestExpError(t *testing.T) {
	eachTier(t, func(t *testing.T, p *Pool) {
		const n = 1 << 20
		x, in := make([]float32, n), make([]float32, n)
		for i := range x {
			in[i] = -87.3 * float32(i) / n
		}
		copy(x, in)
		p.k.expSum(x, 0)
		worst := 0.0
		for i := range x {
			want := math.Exp(float64(in[i]))
			ulp := float64(math.Nextafter32(float32(want), 2) - float32(want))
			worst = max(worst, math.Abs(float64(x[i])-want)/ulp)
		}
		t.Logf("worst error %.2f ulp", worst)
		require.Less(t, worst, 2.0)

		low := []float32{-88.5, -1000, float32(math.Inf(-1)), 0}
		p.k.expSum(low, 0)
		near(t, []float64{0, 0, 0, 1}, low, 1e-37, 0)
	})
}

// A softmax as attention makes it: exp(x - max) and its sum.
func TestSoftmaxAgainstFloat64(t *testing.T) {
	eachTier(t, func(t *testing.T, p *Pool) {
		for _, dim := range append(dims, 32000) {
			for _, spread := range []float32{1, 30} {
				x := random(rngOf(uint64(dim)), dim)
				for i := range x {
					x[i] *= spread
				}
				got := fencedFloats(t, x)
				top := p.k.max(got)
				require.InDelta(t, slices.Max(x), top, 0, "%d × %v", dim, spread)
				want, sum := make([]float64, dim), 0.0
				for i, v := range x {
					want[i] = math.Exp(float64(v - top))
					sum += want[i]
				}
				total := p.k.expSum(got, top)
				require.InEpsilon(t, sum, float64(total), 1e-6, "%d × %v", dim, spread)
				near(t, want, got, 1e-30, 4e-6, dim)
			}
		}
	})
}

// A NaN among the scores must reach the result: it is how a broken layer is noticed.
func TestNaNIsNotHidden(t *testing.T) {
	nan := float32(math.NaN())
	eachTier(t, func(t *testing.T, p *Pool) {
		for _, n := range []int{1, 5, 8, 16, 40} {
			for at := range n {
				x := make([]float32, n)
				x[at] = nan
				g := append([]float32(nil), x...)
				SiLUMul(p, g, g, g)
				require.True(t, math.IsNaN(float64(g[at])))
				g[at] = nan
				GELUMul(p, g, g, g)
				require.True(t, math.IsNaN(float64(g[at])))
				require.True(t, math.IsNaN(float64(p.k.expSum(x, p.k.max(x)))), "sum of %d, NaN at %d", n, at)
				require.True(t, math.IsNaN(float64(x[at])), "exp of %d, NaN at %d", n, at)
			}
		}
	})
}

func TestRopeIsRotateHalf(t *testing.T) {
	eachTier(t, func(t *testing.T, p *Pool) {
		for _, c := range []struct{ heads, dim, rotary int }{{2, 16, 16}, {3, 12, 8}, {1, 64, 64}, {4, 6, 2}} {
			t.Run(fmt.Sprintf("%v", c), func(t *testing.T) {
				rng := rngOf(3)
				positions := []int32{0, 5, 3}
				h := c.rotary / 2
				cos, sin := random(rng, 8*h), random(rng, 8*h)
				x := random(rng, len(positions)*c.heads*c.dim)
				want := make([]float64, len(x))
				for i, v := range x {
					want[i] = float64(v)
				}
				for r, pos := range positions {
					for head := range c.heads {
						v := want[(r*c.heads+head)*c.dim:][:c.rotary]
						half := append([]float64(nil), v...) // rotate_half: the second half, negated, then the first
						for i := range v {
							turned := half[(i+h)%c.rotary]
							if i < h {
								turned = -turned
							}
							v[i] = v[i]*float64(cos[int(pos)*h+i%h]) + turned*float64(sin[int(pos)*h+i%h])
						}
					}
				}
				Rope(p, x, len(positions), c.heads, c.dim, c.rotary, positions, cos, sin)
				near(t, want, x, 1e-6, 1e-6)
			})
		}
	})
}

func TestGather(t *testing.T) {
	eachTier(t, func(t *testing.T, p *Pool) {
		for _, dt := range []DType{F32, BF16, F16} {
			w, exact := matrix(rngOf(4), dt, 10, 33)
			w.Data = fenced(t, w.Data)
			ids := []int32{9, 0, 3, 3}
			got := make([]float32, len(ids)*33)
			Gather(p, got, w, ids)
			for i, id := range ids {
				near(t, exact[int(id)*33:][:33], got[i*33:], 0, 0)
			}
		}
	})
}
