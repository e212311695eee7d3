package cpu

import (
	"encoding/binary"
	"math"
	"unsafe"
)

var genericKernels = kernels{
	once:     1,
	tile:     tileGeneric,
	convert:  convertGeneric,
	weighted: weightedGeneric,
	expSum:   expSumGeneric,
	max:      maxGeneric,
	sumsq:    sumsqGeneric,
	scaleMul: func(dst, x, w []float32, s float32) {
		x, w = x[:len(dst)], w[:len(dst)]
		for i := range dst {
			dst[i] = float32(x[i]*s) * w[i]
		}
	},
	add: func(dst, x []float32) {
		x = x[:len(dst)]
		for i := range dst {
			dst[i] += x[i]
		}
	},
	axpy: func(dst, x []float32, s float32) {
		x = x[:len(dst)]
		for i := range dst {
			dst[i] += s * x[i]
		}
	},
	scale: func(dst []float32, s float32) {
		for i := range dst {
			dst[i] *= s
		}
	},
	siluMul: siluMulGeneric,
}

// tileGeneric takes weight rows four at a time, so that each activation is loaded once for four
// products.
func tileGeneric(t DType, m, n int, c *float32, ldc int, a *float32, lda int, w unsafe.Pointer, ldw, k int) {
	if k == 0 {
		for i := range m {
			clear(unsafe.Slice(at(c, i*ldc), n))
		}
		return
	}
	var wide []float32
	for j := 0; j < n; j += 4 {
		var rows [4][]float32
		for r := range rows {
			src := unsafe.Add(w, min(j+r, n-1)*ldw*t.Size()) // past the end: the last row again, its result unused
			if t == F32 && uintptr(src)%4 == 0 && littleEndian {
				rows[r] = floats(src, k)
				continue
			}
			if wide == nil {
				wide = make([]float32, 4*k)
			}
			rows[r] = wide[r*k : (r+1)*k]
			convertGeneric(t, rows[r], src)
		}
		for i := range m {
			s := dot4(unsafe.Slice(at(a, i*lda), k), &rows)
			copy(unsafe.Slice(at(c, i*ldc+j), min(4, n-j)), s[:])
		}
	}
}

// dot4 adds up runs of 64 products apart, then the runs: rounding errors grow with the run and the
// number of runs, not with their product.
func dot4(x []float32, w *[4][]float32) (s [4]float32) {
	for lo := 0; lo < len(x); lo += 64 {
		hi := min(lo+64, len(x))
		b := x[lo:hi]
		w0, w1, w2, w3 := w[0][lo:hi], w[1][lo:hi], w[2][lo:hi], w[3][lo:hi]
		w0, w1, w2, w3 = w0[:len(b)], w1[:len(b)], w2[:len(b)], w3[:len(b)]
		var s0, s1, s2, s3 float32
		for t, v := range b {
			s0 += v * w0[t]
			s1 += v * w1[t]
			s2 += v * w2[t]
			s3 += v * w3[t]
		}
		s[0] += s0
		s[1] += s1
		s[2] += s2
		s[3] += s3
	}
	return s
}

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

func convertGeneric(t DType, dst []float32, src unsafe.Pointer) {
	b := unsafe.Slice((*byte)(src), len(dst)*t.Size())
	switch t {
	case F32:
		if littleEndian {
			copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), len(b)), b)
			return
		}
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
	case BF16:
		u := words(b)
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(u[i]) << 16)
		}
	case F16:
		u := words(b)
		for i := range dst {
			dst[i] = halfToFloat(u[i])
		}
	}
}

// words views little-endian bytes as 16-bit words; where that cannot be, it copies them.
func words(b []byte) []uint16 {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if littleEndian && uintptr(p)%2 == 0 {
		return unsafe.Slice((*uint16)(p), len(b)/2)
	}
	u := make([]uint16, len(b)/2)
	for i := range u {
		u[i] = binary.LittleEndian.Uint16(b[2*i:])
	}
	return u
}

// halfToFloat widens IEEE 754 binary16. Its exponent and fraction, read as those of a float32, are
// 2^112 times too small; subnormals too.
func halfToFloat(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	if h&0x7c00 == 0x7c00 { // infinity or NaN
		return math.Float32frombits(sign | 0x7f800000 | uint32(h&0x3ff)<<13)
	}
	return math.Float32frombits(sign | math.Float32bits(math.Float32frombits(uint32(h&0x7fff)<<13)*0x1p112))
}

func weightedGeneric(rows int, acc *float32, d int, p *float32, ldp, n int, v *float32) {
	weightedFrom(0, rows, acc, d, p, ldp, n, v)
}

// weightedFrom does the elements of each row from the given one on.
func weightedFrom(from, rows int, acc *float32, d int, p *float32, ldp, n int, v *float32) {
	for r := range rows {
		sum := unsafe.Slice(at(acc, r*d+from), d-from)
		for t, s := range unsafe.Slice(at(p, r*ldp), n) {
			row := unsafe.Slice(at(v, t*d+from), d-from)
			for i := range sum {
				sum[i] += s * row[i]
			}
		}
	}
}

func expSumGeneric(x []float32, shift float32) float32 {
	var sum float64
	for i, v := range x {
		e := math.Exp(float64(v - shift))
		x[i] = float32(e)
		sum += e
	}
	return float32(sum)
}

func maxGeneric(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		m = max(m, v)
	}
	return m
}

func sumsqGeneric(x []float32) float32 {
	var s float64
	for _, v := range x {
		s += float64(v) * float64(v)
	}
	return float32(s)
}

func siluMulGeneric(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	for i, g := range gate {
		dst[i] = g / (1 + float32(math.Exp(-float64(g)))) * up[i]
	}
}
