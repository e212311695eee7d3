package cpu

import (
	"fmt"
	"unsafe"
)

// DType is the type of a weight.
type DType uint8

// The weight types: little-endian, as in a safetensors file.
const (
	F32 DType = iota
	BF16
	F16
)

// Size is the number of bytes of one element.
func (t DType) Size() int {
	if t == F32 {
		return 4
	}
	return 2
}

func (t DType) String() string {
	switch t {
	case F32:
		return "F32"
	case BF16:
		return "BF16"
	case F16:
		return "F16"
	}
	return fmt.Sprintf("DType(%d)", uint8(t))
}

// Matrix is a weight matrix as it lies in a checkpoint: row-major [Rows, Cols] = [out, in]. Its
// data needs no alignment and is not copied.
type Matrix struct {
	Data       []byte
	Type       DType
	Rows, Cols int
	Stride     int // elements from one row to the next; 0 is Cols
}

func (w Matrix) stride() int {
	if w.Stride == 0 {
		return w.Cols
	}
	return w.Stride
}

func (w Matrix) row(i int) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(w.Data)), i*w.stride()*w.Type.Size())
}

// Bytes is the memory that one pass over the matrix reads.
func (w Matrix) Bytes() int64 { return int64(w.Rows) * int64(w.Cols) * int64(w.Type.Size()) }

func (w Matrix) check() {
	if w.Rows < 0 || w.Cols < 0 || w.Type > F16 || w.stride() < w.Cols {
		panic(fmt.Sprintf("cpu: bad matrix [%d, %d] of %v with stride %d", w.Rows, w.Cols, w.Type, w.Stride))
	}
	if w.Rows == 0 || w.Cols == 0 {
		return
	}
	if need := ((w.Rows-1)*w.stride() + w.Cols) * w.Type.Size(); len(w.Data) < need {
		panic(fmt.Sprintf("cpu: matrix [%d, %d] of %v has %d bytes of data, needs %d", w.Rows, w.Cols, w.Type,
			len(w.Data), need))
	}
}

// Linear is one of the products of [MatMuls].
type Linear struct {
	Dst    []float32 // [m, W.Rows]
	W      Matrix
	Bias   []float32 // [W.Rows] or nil
	Stride int       // elements from one row of Dst to the next; 0 is W.Rows
}

func (l *Linear) stride() int {
	if l.Stride == 0 {
		return l.W.Rows
	}
	return l.Stride
}

// MatMul computes dst[m, w.Rows] = x[m, w.Cols] · wᵀ + bias. bias may be nil.
func MatMul(p *Pool, dst, x []float32, m int, w Matrix, bias []float32) {
	matMuls(p, x, m, []Linear{{Dst: dst, W: w, Bias: bias}})
}

// MatMuls computes several products with the same x [m, Cols] in one pass over the threads: q, k
// and v, or gate and up. Each result is the one that MatMul gives.
func MatMuls(p *Pool, x []float32, m int, out ...Linear) { matMuls(p, x, m, out) }

// A panel is the unit of work of a thread: some rows of one weight matrix, times all rows of x.
const (
	tileRows  = 4         // of weights: panels are multiples of it
	panelSize = 192 << 10 // bytes of weights that stay in the L2 cache while the rows of x pass
	// streamSize is the most of it in a panel that is read once: the garbage collector cannot stop
	// a thread inside a kernel, so this bounds the pause of all others to some 0.2 ms.
	streamSize = 4 << 20
	// widenAt is the number of rows of x from which 16-bit weights are widened once a panel rather
	// than once a tile.
	widenAt = 12
)

func matMuls(p *Pool, x []float32, m int, out []Linear) {
	if m == 0 || len(out) == 0 {
		return
	}
	cols, rows := out[0].W.Cols, 0
	for i := range out {
		out[i].check(x, m, cols)
		rows += out[i].W.Rows
	}
	panel := p.panelRows(rows, cols, m, out[0].W.Type)
	panels := 0
	for i := range out {
		panels += out[i].panels(panel)
	}
	p.Run(panels, 1, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			j, at := 0, i
			for ; at >= out[j].panels(panel); j++ {
				at -= out[j].panels(panel)
			}
			l := &out[j]
			p.linear(l, x, m, at*panel, min(l.W.Rows, (at+1)*panel))
		}
	})
}

func (l *Linear) check(x []float32, m, cols int) {
	l.W.check()
	if l.W.Cols != cols {
		panic(fmt.Sprintf("cpu: matrices of one pass have %d and %d columns", cols, l.W.Cols))
	}
	if len(x) < m*cols {
		panic(fmt.Sprintf("cpu: x has %d elements, needs [%d, %d]", len(x), m, cols))
	}
	if need := (m-1)*l.stride() + l.W.Rows; len(l.Dst) < need || l.stride() < l.W.Rows {
		panic(fmt.Sprintf("cpu: result has %d elements, needs [%d, %d] with stride %d", len(l.Dst), m, l.W.Rows,
			l.stride()))
	}
	if l.Bias != nil && len(l.Bias) != l.W.Rows {
		panic(fmt.Sprintf("cpu: bias has %d elements, needs %d", len(l.Bias), l.W.Rows))
	}
}

// panels is the number of panels of this many rows.
func (l *Linear) panels(rows int) int { return (l.W.Rows + rows - 1) / rows }

// panelRows is the number of weight rows in a panel. When x passes once, the weights only stream
// by, and the longer the streams the better: a few panels for each thread. Otherwise a panel has to
// stay in the cache.
func (p *Pool) panelRows(rows, cols, m int, t DType) int {
	share := rows
	if p.threads > 1 {
		share = rows / (3 * p.threads)
	}
	size, limit := t.Size(), streamSize
	if m > p.k.once {
		limit = panelSize
	}
	if m >= widenAt {
		size = 4
	}
	n := max(min(max(share, 32), limit/(size*max(cols, 1))), 16)
	return max(n/tileRows*tileRows, tileRows)
}

// linear computes columns [lo, hi) of a product: rows [lo, hi) of its weights.
func (p *Pool) linear(l *Linear, x []float32, m, lo, hi int) {
	w, n, k := l.W, hi-lo, l.W.Cols
	t, src, ldw := w.Type, w.row(lo), w.stride()
	if k == 0 {
		t, src, ldw = F32, nil, 0
	} else if t != F32 && m >= widenAt {
		buf := p.scratch.get(n * k)
		defer p.scratch.put(buf)
		for r := range n {
			p.k.convert(t, buf[r*k:(r+1)*k], w.row(lo+r))
		}
		t, src, ldw = F32, unsafe.Pointer(unsafe.SliceData(buf)), k
	}
	p.k.tile(t, m, n, &l.Dst[lo], l.stride(), unsafe.SliceData(x), k, src, ldw, k)
	if l.Bias != nil {
		for i := range m {
			p.k.add(l.Dst[i*l.stride()+lo:i*l.stride()+hi], l.Bias[lo:hi])
		}
	}
}
