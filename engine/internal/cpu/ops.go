package cpu

import (
	"fmt"
	"math"
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

// RMSNorm computes dst = x / √(mean(x²) + eps) · weight for each row of x [rows, dim]. dst may be
// x. A model whose norm multiplies by 1 + weight (Gemma) passes that.
func RMSNorm(p *Pool, dst, x, weight []float32, rows, dim int, eps float32) {
	rowsOf("RMSNorm", rows, dim, dst, x)
	rowsOf("RMSNorm weight", 1, dim, weight)
	p.rows(rows, dim, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			p.norm(dst[i*dim:(i+1)*dim], x[i*dim:(i+1)*dim], weight, eps)
		}
	})
}

// AddRMSNorm adds delta to residual in place, and computes dst as RMSNorm of the sum. dst may be
// delta.
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

// SiLUMul computes dst = gate · sigmoid(gate) · up, element by element. dst may be gate or up.
func SiLUMul(p *Pool, dst, gate, up []float32) {
	rowsOf("SiLUMul", 1, len(dst), gate, up)
	p.Run(len(dst), elementGrain/4, func(lo, hi int) { p.k.siluMul(dst[lo:hi], gate[lo:hi], up[lo:hi]) })
}

// GELUMul computes dst = GELU(gate) · up, element by element, with GELU's tanh approximation: gate ·
// sigmoid(2z), z = √(2/π) · (gate + 0.044715 gate³). dst may be gate or up.
func GELUMul(p *Pool, dst, gate, up []float32) {
	rowsOf("GELUMul", 1, len(dst), gate, up)
	p.Run(len(dst), elementGrain/8, func(lo, hi int) {
		// With s = 2z / gate it is SiLU(s · gate) · up / s, which has a vector kernel.
		var x, y [256]float32
		for at := lo; at < hi; at += len(x) {
			n := min(len(x), hi-at)
			for i := range n {
				g := gate[at+i]
				s := float32(2*0.7978845608028654) * (1 + 0.044715*min(g*g, 1e4)) // beyond 100 the sigmoid is 0 or 1
				x[i], y[i] = s*g, up[at+i]/s
			}
			p.k.siluMul(dst[at:at+n], x[:n], y[:n])
		}
	})
}

// Scale computes x *= by.
func Scale(p *Pool, x []float32, by float32) {
	p.Run(len(x), elementGrain, func(lo, hi int) {
		for i := range x[lo:hi] {
			x[lo+i] *= by
		}
	})
}

// Rope rotates x [rows, heads, headDim] in place, in the half-split layout of Hugging Face
// ("rotate_half"): with h = rotary/2, element i < h of a head pairs with element i+h; elements from
// rotary on stay as they are. cos and sin are tables [positions, h], row by position.
func Rope(p *Pool, x []float32, rows, heads, headDim, rotary int, positions []int32, cos, sin []float32) {
	rowsOf("Rope", rows, heads*headDim, x)
	h := rotary / 2
	if rotary%2 != 0 || rotary > headDim || len(positions) < rows {
		panic(fmt.Sprintf("cpu: Rope: rotary %d of head %d, %d positions for %d rows", rotary, headDim, len(positions),
			rows))
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

// Widen converts weights of type t to float32, exactly: the small ones (norms, biases) that a model
// keeps so.
func Widen(p *Pool, dst []float32, src []byte, t DType) {
	Gather(p, dst, Matrix{Data: src, Type: t, Rows: 1, Cols: len(dst)}, []int32{0})
}
