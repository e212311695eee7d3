package cpu

import "math"

// LayerNorm computes dst = (x − mean) / √(variance + eps) · weight + bias for each row of x [rows,
// dim]. dst may be x.
func LayerNorm(p *Pool, dst, x, weight, bias []float32, rows, dim int, eps float32) {
	rowsOf("LayerNorm", rows, dim, dst, x)
	rowsOf("LayerNorm weight", 1, dim, weight, bias)
	p.rows(rows, dim, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			layerNorm(dst[i*dim:(i+1)*dim], x[i*dim:(i+1)*dim], weight, bias, eps)
		}
	})
}

// AddLayerNorm adds delta to x in place and normalizes the sum, in place too.
func AddLayerNorm(p *Pool, x, delta, weight, bias []float32, rows, dim int, eps float32) {
	rowsOf("AddLayerNorm", rows, dim, x, delta)
	rowsOf("AddLayerNorm weight", 1, dim, weight, bias)
	p.rows(rows, dim, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			r := x[i*dim : (i+1)*dim]
			p.k.add(r, delta[i*dim:(i+1)*dim])
			layerNorm(r, r, weight, bias, eps)
		}
	})
}

func layerNorm(dst, x, weight, bias []float32, eps float32) {
	var sum float64
	for _, v := range x {
		sum += float64(v)
	}
	mean := sum / float64(len(x))
	var squares float64
	for _, v := range x {
		d := float64(v) - mean
		squares += d * d
	}
	scale := 1 / math.Sqrt(squares/float64(len(x))+float64(eps))
	for i, v := range x {
		dst[i] = float32((float64(v)-mean)*scale*float64(weight[i]) + float64(bias[i]))
	}
}

// GELU computes x · Φ(x) in place, with the error function.
func GELU(p *Pool, x []float32) {
	p.Run(len(x), elementGrain/16, func(lo, hi int) {
		for i, v := range x[lo:hi] {
			x[lo+i] = float32(0.5 * float64(v) * (1 + math.Erf(float64(v)/math.Sqrt2)))
		}
	})
}
