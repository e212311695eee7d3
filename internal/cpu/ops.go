package cpu

import (
	"fmt"
	"math"
	"unsafe"
)

// rowsOf checks that every slice holds rows·dim elements at least.
func rowsOf(op string, rows, dim int, xs ...[]float32) {
	for _, x := range xs {
		if len(x) < rows*dim {
			panic(fmt.Sprintf("cpu: %s: a slice of %d elements, needs [%d, %d]", op, len(x), rows, dim))
		}
	}
}

// elementGrain is the number of elements that are worth a thread of their own in the cheap kernels.
const elementGrain = 16 << 10

func (p *Pool) rows(rows, dim int, body func(lo, hi int)) {
	p.Run(rows, max(1, elementGrain/max(dim, 1)), body)
}

// RMSNorm computes dst = x / √(mean(x²) + eps) · weight for each row of x [rows, dim]. dst may be x. A model whose norm multiplies by
// 1 + weight (Gemma) passes that.
func RMSNorm(p *Pool, dst, x, weight []float32, rows, dim int, eps float32) {
	rowsOf("RMSNorm", rows, dim, dst, x)
	rowsOf("RMSNorm weight", 1, dim, weight)
	p.rows(rows, dim, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			p.norm(dst[i*dim:(i+1)*dim], x[i*dim:(i+1)*dim], weight, eps)
		}
	})
}

// AddRMSNorm adds delta to residual in place, and computes dst as RMSNorm of the sum. dst may be delta.
func AddRMSNorm(p *Pool, dst, residual, delta, weight []float32, rows, dim int, eps float32) {
	rowsOf("AddRMSNorm", rows, dim, dst, residual, delta)
	rowsOf("AddRMSNorm weight", 1, dim, weight)
	p.rows(rows, dim, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			r := residual[i*dim : (i+1)*dim]
			p.k.add(r, delta[i*dim:(i+1)*dim])
			p.norm(dst[i*dim:(i+1)*dim], r, weight, eps)
		}
	})
}

func (p *Pool) norm(dst, x, weight []float32, eps float32) {
	mean := float64(p.k.sumsq(x)) / float64(len(x))
	p.k.scaleMul(dst, x, weight[:len(x)], float32(1/math.Sqrt(mean+float64(eps))))
}

// Add computes dst += x.
func Add(p *Pool, dst, x []float32) {
	rowsOf("Add", 1, len(dst), x)
	p.Run(len(dst), elementGrain, func(lo, hi int) { p.k.add(dst[lo:hi], x[lo:hi]) })
}

// Scale computes dst *= s.
func Scale(p *Pool, dst []float32, s float32) {
	p.Run(len(dst), elementGrain, func(lo, hi int) { p.k.scale(dst[lo:hi], s) })
}

// SiLUMul computes dst = gate · sigmoid(gate) · up, element by element. dst may be gate or up.
func SiLUMul(p *Pool, dst, gate, up []float32) {
	rowsOf("SiLUMul", 1, len(dst), gate, up)
	p.Run(len(dst), elementGrain/4, func(lo, hi int) { p.k.siluMul(dst[lo:hi], gate[lo:hi], up[lo:hi]) })
}

// GELUMul computes dst = gelu(gate) · up with the tanh form of gelu ("gelu_pytorch_tanh"). dst may be gate or up.
func GELUMul(p *Pool, dst, gate, up []float32) {
	rowsOf("GELUMul", 1, len(dst), gate, up)
	p.Run(len(dst), elementGrain/4, func(lo, hi int) { p.k.geluMul(dst[lo:hi], gate[lo:hi], up[lo:hi]) })
}

// Rope rotates x [rows, heads, headDim] in place, in the half-split layout of Hugging Face ("rotate_half"): with h = rotary/2, element i < h of
// a head pairs with element i+h; elements from rotary on stay as they are. cos and sin are tables [positions, h], row by position.
func Rope(p *Pool, x []float32, rows, heads, headDim, rotary int, positions []int32, cos, sin []float32) {
	rowsOf("Rope", rows, heads*headDim, x)
	h := rotary / 2
	if rotary%2 != 0 || rotary > headDim || len(positions) < rows {
		panic(fmt.Sprintf("cpu: Rope: rotary %d of head %d, %d positions for %d rows", rotary, headDim, len(positions), rows))
	}
	p.rows(rows, heads*headDim, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			at := int(positions[r]) * h
			c, s := cos[at:at+h], sin[at:at+h]
			for j := range heads {
				head := x[(r*heads+j)*headDim:]
				a, b := head[:h], head[h:2*h]
				for i := range c {
					u, v := a[i], b[i]
					a[i] = u*c[i] - v*s[i]
					b[i] = v*c[i] + u*s[i]
				}
			}
		}
	})
}

// Gather copies rows ids of table, widened to float32, to dst [len(ids), table.Cols]: an embedding.
func Gather(p *Pool, dst []float32, table Matrix, ids []int32) {
	table.check()
	dim := table.Cols
	rowsOf("Gather", len(ids), dim, dst)
	p.rows(len(ids), dim, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			id := int(ids[i])
			if id < 0 || id >= table.Rows {
				panic(fmt.Sprintf("cpu: Gather: row %d of a table of %d", id, table.Rows))
			}
			p.k.convert(table.Type, dst[i*dim:(i+1)*dim], table.row(id))
		}
	})
}

// Widen converts weights of type t to float32, exactly: the small ones (norms, biases) that a model keeps so.
func Widen(p *Pool, dst []float32, src []byte, t DType) {
	Gather(p, dst, Matrix{Data: src, Type: t, Rows: 1, Cols: len(dst)}, []int32{0})
}

// Softmax replaces each row of x [rows, dim] by its softmax.
func Softmax(p *Pool, x []float32, rows, dim int) {
	rowsOf("Softmax", rows, dim, x)
	p.rows(rows, 4*dim, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			r := x[i*dim : (i+1)*dim]
			p.k.scale(r, 1/p.k.expSum(r, p.k.max(r)))
		}
	})
}

// Dot is Σ a·b.
func Dot(p *Pool, a, b []float32) float32 {
	rowsOf("Dot", 1, len(a), b)
	if len(a) == 0 {
		return 0
	}
	var s float32
	p.k.tile(F32, 1, 1, &s, 1, &a[0], len(a), unsafe.Pointer(&b[0]), len(a), len(a))
	return s
}

// Axpy computes dst += s·x.
func Axpy(p *Pool, dst, x []float32, s float32) {
	rowsOf("Axpy", 1, len(dst), x)
	p.k.axpy(dst, x[:len(dst)], s)
}

// ArgMax is the index of the largest element, the first of them when several are equal; -1 when x has no number (it is empty or all NaN).
func ArgMax(x []float32) int {
	best, at := float32(math.Inf(-1)), -1
	for i, v := range x {
		if v > best || (at < 0 && v == best) {
			best, at = v, i
		}
	}
	return at
}

// LogSumExp is log Σ exp(x) of one row; log-probability i of a softmax is x[i] minus it. Its sum is kept in float64 over short runs, so that the
// result is good to a few float32 roundings for any vocabulary.
func LogSumExp(p *Pool, x []float32) float64 {
	if len(x) == 0 {
		return math.Inf(-1)
	}
	top := p.k.max(x)
	if math.IsInf(float64(top), 0) || top != top {
		return float64(top)
	}
	const run = 1024
	var sum float64
	buf := p.scratch.get(run)
	defer p.scratch.put(buf)
	for lo := 0; lo < len(x); lo += run {
		n := copy(buf, x[lo:])
		sum += float64(p.k.expSum(buf[:n], top))
	}
	return float64(top) + math.Log(sum)
}

// LogSoftmax computes dst = x - LogSumExp(x) for each row of x [rows, dim]. dst may be x.
func LogSoftmax(p *Pool, dst, x []float32, rows, dim int) {
	rowsOf("LogSoftmax", rows, dim, dst, x)
	p.rows(rows, 4*dim, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			lse := LogSumExp(p, x[i*dim:(i+1)*dim])
			for j := i * dim; j < (i+1)*dim; j++ {
				dst[j] = float32(float64(x[j]) - lse)
			}
		}
	})
}
