package cpu

import "unsafe"

// kernels are the inner loops of one tier. Every one of them gives the same result for the same
// numbers wherever they lie and whatever is computed beside them.
type kernels struct {
	// tile computes c[i*ldc+j] = Σ a[i*lda+t]·w[j*ldw+t] over t < k, for i < m and j < n. Strides
	// are in elements of c, a and w.
	tile func(t DType, m, n int, c *float32, ldc int, a *float32, lda int, w unsafe.Pointer, ldw, k int)
	// once is the number of rows of a that a tile takes together: this many pass over w once.
	once int
	// convert widens len(dst) weights to float32, exactly.
	convert func(t DType, dst []float32, src unsafe.Pointer)
	// weighted adds Σ p[r*ldp+t]·v[t*d+i] over t < n, in order, to acc[r*d+i], for r < rows and i <
	// d.
	weighted func(rows int, acc *float32, d int, p *float32, ldp, n int, v *float32)
	// expSum replaces x[i] by exp(x[i]-shift) and returns their sum. x[i] ≤ shift.
	expSum func(x []float32, shift float32) float32
	max    func(x []float32) float32
	sumsq  func(x []float32) float32
	// scaleMul computes dst = (x·s)·w, element by element.
	scaleMul func(dst, x, w []float32, s float32)
	add      func(dst, x []float32)
	axpy     func(dst, x []float32, s float32) // dst += s·x
	scale    func(dst []float32, s float32)
	siluMul  func(dst, gate, up []float32)
}

func kernelsOf(t Tier) *kernels {
	if k := tierKernels(t); k != nil {
		return k
	}
	return &genericKernels
}

func at[T any](p *T, i int) *T {
	return (*T)(unsafe.Add(unsafe.Pointer(p), uintptr(i)*unsafe.Sizeof(*p)))
}

func floats(p unsafe.Pointer, n int) []float32 { return unsafe.Slice((*float32)(p), n) }
