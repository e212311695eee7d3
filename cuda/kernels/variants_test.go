package kernels_test

import (
	"fmt"
	"math"

	"github.com/enginetest/enginetest/cuda"
)

var variantTests = []kernelTest{
	{[]string{"scale"}, testScale, []wrong{set("another factor", 1, float32(5)), set("four fewer", 2, 9)}},
	{[]string{"gelu_f32", "gelu_bf16", "gelu_f16"}, testGelu, []wrong{
		set("one part fewer", 1, 2), set("no bias", 3, nil), set("columns left out", 7, 32),
	}},
}

// testScale: every element times a factor, exactly.
func testScale(k *kernel) {
	for _, fours := range []int{10, 1, 300} {
		k.run(fmt.Sprint(fours), func(r *run) {
			old := random(r.Rand, f32, 1, 4*fours, 1)
			x := r.in("x", floats(old.v))
			r.launch("scale", cuda.Dim{X: (fours + 255) / 256}, 256, 0, x, float32(8), fours)
			for i := range old.v {
				old.v[i] *= 8
			}
			r.near(x, old.v, 4*fours, 0)
		})
	}
}

// testGelu: gates from far below zero to far above, of products in one part and in several.
func testGelu(k *kernel) {
	d := typeOf(k.name)
	for _, c := range []struct {
		tokens, rows, parts, mode, shares int
		bias                              bool
	}{
		{tokens: 5, rows: 80, parts: 3, mode: plain, shares: 1, bias: true},
		{tokens: 130, rows: 64, parts: 1, mode: split, shares: 1},
		{tokens: 3, rows: 8208, parts: 2, mode: rounded, shares: 4, bias: true},
		{tokens: 1, rows: 16, parts: 1, mode: plain, shares: 3},
	} {
		k.run(fmt.Sprintf("%+v", c), func(r *run) {
			stride := (c.tokens + 2) * c.rows
			parts, sizes := newMatrix(c.parts, stride), []float64{0.1, 1, 20}
			for p := range c.parts {
				copy(parts.row(p), random(r.Rand, f32, 1, stride, sizes[p%3]).v)
			}
			x := r.in("parts", floats(parts.v))
			bias, b := r.vector("bias", c.bias, c.rows, 0, 1)
			sum, want := newMatrix(c.tokens, c.rows), newMatrix(c.tokens, c.rows/2)
			for i := range c.tokens {
				for j := range c.rows {
					for p := range c.parts {
						sum.row(i)[j] += parts.row(p)[i*c.rows+j]
					}
					sum.row(i)[j] += b[j]
				}
				for j := range want.cols {
					at := j/8*16 + j%8
					want.row(i)[j] = gelu(sum.row(i)[at]) * sum.row(i)[at+8]
				}
			}
			out := r.activation("out", d, c.mode, c.tokens, c.rows/2)
			r.launch(k.name, cuda.Dim{X: c.tokens, Y: c.shares}, 256, 0, x, c.parts, int64(stride), optional(bias),
				out.buffer, int64(out.plane), out.mode, c.rows, out.kb)
			r.nearActivation(out, want, want.cols, 4*few)
		})
	}
}

// gelu is GELU's tanh approximation.
func gelu(x float64) float64 {
	return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}
