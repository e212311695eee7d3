package cpu

import (
	"math"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// bestTier asks the processor.
func bestTier() Tier {
	x := &cpu.X86
	switch {
	case !x.HasAVX2 || !x.HasFMA || !x.HasBMI2 || !x.HasF16C:
		return Generic
	case x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL:
		return AVX512
	}
	return AVX2
}

func tierKernels(t Tier) *kernels {
	switch t {
	case AVX2:
		return &avx2Kernels
	case AVX512:
		return &avx512Kernels
	}
	return nil
}

// tiles are the assembly tiles of a tier, for each weight type: rows[m] takes m rows of activations
// and groups of four rows of weights, single takes one of each.
type tiles [3]struct {
	rows   [5]tileFunc
	single tileFunc
}

type tileFunc func(c *float32, ldc uintptr, a *float32, lda uintptr, w *byte, ldw, k, groups uintptr)

// run covers m rows of activations and n rows of weights with tiles.
func (ts *tiles) run(t DType, m, n int, c *float32, ldc int, a *float32, lda int, w unsafe.Pointer, ldw, k int) {
	f, size := &ts[t], t.Size()
	cb, ab, wb, kb := uintptr(4*ldc), uintptr(4*lda), uintptr(size*ldw), uintptr(k)
	groups, rest := n/4, n%4
	for i := 0; i < m; {
		ci, ai := at(c, i*ldc), at(a, i*lda)
		step := min(m-i, 4)
		for f.rows[step] == nil {
			step--
		}
		if groups > 0 {
			f.rows[step](ci, cb, ai, ab, (*byte)(w), wb, kb, uintptr(groups))
		}
		if rest > 0 {
			for r := range step {
				f.single(at(c, (i+r)*ldc+n-rest), cb, at(a, (i+r)*lda), ab, (*byte)(unsafe.Add(w, (n-rest)*ldw*size)),
					wb, kb, uintptr(rest))
			}
		}
		i += step
	}
}

type weightedFunc func(acc *float32, d uintptr, p *float32, ldp, n uintptr, v *float32)

func weightedRows(one, four weightedFunc) func(rows int, acc *float32, d int, p *float32, ldp, n int, v *float32) {
	return func(rows int, acc *float32, d int, p *float32, ldp, n int, v *float32) {
		f, step := four, 4
		for r := 0; n > 0 && r < rows; r += step {
			if rows-r < 4 {
				f, step = one, 1
			}
			f(at(acc, r*d), uintptr(d), at(p, r*ldp), uintptr(4*ldp), uintptr(n), v)
		}
	}
}

var avx512Tiles = tiles{
	F32: {[5]tileFunc{1: tile1x4F32AVX512, tile2x4F32AVX512, tile3x4F32AVX512, tile4x4F32AVX512}, tile1x1F32AVX512},
	BF16: {
		[5]tileFunc{1: tile1x4BF16AVX512, tile2x4BF16AVX512, tile3x4BF16AVX512, tile4x4BF16AVX512},
		tile1x1BF16AVX512,
	},
	F16: {[5]tileFunc{1: tile1x4F16AVX512, tile2x4F16AVX512, tile3x4F16AVX512, tile4x4F16AVX512}, tile1x1F16AVX512},
}

var avx2Tiles = tiles{
	F32:  {[5]tileFunc{1: tile1x4F32AVX2, tile2x4F32AVX2, tile3x4F32AVX2}, tile1x1F32AVX2},
	BF16: {[5]tileFunc{1: tile1x4BF16AVX2, tile2x4BF16AVX2, tile3x4BF16AVX2}, tile1x1BF16AVX2},
	F16:  {[5]tileFunc{1: tile1x4F16AVX2, tile2x4F16AVX2, tile3x4F16AVX2}, tile1x1F16AVX2},
}

func first(x []float32) *float32 { return unsafe.SliceData(x) }

func count(x []float32) uintptr { return uintptr(len(x)) }

var avx512Kernels = kernels{
	once: 4,
	tile: avx512Tiles.run,
	convert: func(t DType, dst []float32, src unsafe.Pointer) {
		switch t {
		case BF16:
			convertBF16AVX512(first(dst), (*byte)(src), count(dst))
		case F16:
			convertF16AVX512(first(dst), (*byte)(src), count(dst))
		default:
			convertGeneric(t, dst, src)
		}
	},
	weighted: weightedRows(weighted1AVX512, weighted4AVX512),
	expSum:   func(x []float32, shift float32) float32 { return expSumAVX512(first(x), count(x), shift) },
	max: func(x []float32) float32 {
		if len(x) < 16 {
			return maxGeneric(x)
		}
		return maxAVX512(first(x), count(x))
	},
	sumsq:    func(x []float32) float32 { return sumsqAVX512(first(x), count(x)) },
	scaleMul: func(dst, x, w []float32, s float32) { scaleMulAVX512(first(dst), first(x), first(w), count(dst), s) },
	scale:    func(dst []float32, s float32) { scaleMulAVX512(first(dst), first(dst), nil, count(dst), s) },
	add:      func(dst, x []float32) { addAVX512(first(dst), first(x), count(dst)) },
	axpy:     func(dst, x []float32, s float32) { axpyAVX512(first(dst), first(x), count(dst), s) },
	siluMul:  func(dst, gate, up []float32) { siluMulAVX512(first(dst), first(gate), first(up), count(dst)) },
}

// The AVX2 functions take whole vectors of eight only. What is left over goes through padded
// copies, or plain Go.
var avx2Kernels = kernels{
	once: 3,
	tile: func(t DType, m, n int, c *float32, ldc int, a *float32, lda int, w unsafe.Pointer, ldw, k int) {
		if k < 8 {
			tileGeneric(t, m, n, c, ldc, a, lda, w, ldw, k)
			return
		}
		avx2Tiles.run(t, m, n, c, ldc, a, lda, w, ldw, k)
	},
	convert: func(t DType, dst []float32, src unsafe.Pointer) {
		whole := len(dst) &^ 7
		switch {
		case t == F32:
			whole = 0
		case whole == 0:
		case t == BF16:
			convertBF16AVX2(first(dst), (*byte)(src), uintptr(whole))
		case t == F16:
			convertF16AVX2(first(dst), (*byte)(src), uintptr(whole))
		}
		if whole < len(dst) {
			convertGeneric(t, dst[whole:], unsafe.Add(src, whole*t.Size()))
		}
	},
	weighted: func(rows int, acc *float32, d int, p *float32, ldp, n int, v *float32) {
		weightedRows(weighted1AVX2, weighted4AVX2)(rows, acc, d, p, ldp, n, v)
		if d%8 != 0 {
			weightedFrom(d&^7, rows, acc, d, p, ldp, n, v)
		}
	},
	expSum: func(x []float32, shift float32) float32 {
		whole := len(x) &^ 7
		sum := expSumAVX2(first(x), uintptr(whole), shift)
		if rest := x[whole:]; len(rest) > 0 {
			pad := [8]float32{}
			for i := copy(pad[:], rest); i < 8; i++ {
				pad[i] = float32(math.Inf(-1))
			}
			sum += expSumAVX2(&pad[0], 8, shift)
			copy(rest, pad[:])
		}
		return sum
	},
	max: func(x []float32) float32 {
		whole := len(x) &^ 7
		top := maxGeneric(x[whole:])
		if whole > 0 {
			top = max(top, maxAVX2(first(x), uintptr(whole)))
		}
		return top
	},
	sumsq: func(x []float32) float32 {
		whole := len(x) &^ 7
		return sumsqAVX2(first(x), uintptr(whole)) + sumsqGeneric(x[whole:])
	},
	scaleMul: func(dst, x, w []float32, s float32) {
		whole := len(dst) &^ 7
		scaleMulAVX2(first(dst), first(x), first(w), uintptr(whole), s)
		genericKernels.scaleMul(dst[whole:], x[whole:], w[whole:], s)
	},
	scale: func(dst []float32, s float32) {
		whole := len(dst) &^ 7
		scaleMulAVX2(first(dst), first(dst), nil, uintptr(whole), s)
		genericKernels.scale(dst[whole:], s)
	},
	add: func(dst, x []float32) {
		whole := len(dst) &^ 7
		addAVX2(first(dst), first(x), uintptr(whole))
		genericKernels.add(dst[whole:], x[whole:])
	},
	axpy: func(dst, x []float32, s float32) {
		whole := len(dst) &^ 7
		axpyAVX2(first(dst), first(x), uintptr(whole), s)
		genericKernels.axpy(dst[whole:], x[whole:], s)
	},
	siluMul: func(dst, gate, up []float32) {
		whole := len(dst) &^ 7
		siluMulAVX2(first(dst), first(gate), first(up), uintptr(whole))
		if whole < len(dst) {
			var pad [16]float32
			copy(pad[:8], gate[whole:len(dst)])
			copy(pad[8:], up[whole:len(dst)])
			siluMulAVX2(&pad[0], &pad[0], &pad[8], 8)
			copy(dst[whole:], pad[:8])
		}
	},
}
