package kernels_test

import (
	"fmt"
	"math"
	"slices"
)

// How activations are stored, as in device.h.
const (
	plain, split, rounded = 0, 1, 2
)

// What a product does with its result.
const (
	store, siluMode, add = 0, 1, 2
)

// Tolerances of ‖out-ref‖ / ‖ref‖ of a row. The reference is computed in float64 from the very
// values that the kernel reads, so what is left is the kernel's own rounding:
//
//   - few operations in float32: 8 units of 2^-24; rsqrt.approx and ex2.approx are within 2^-22 by the PTX manual, div.full within 2 units in the last place;
//   - sums of n products in float32: each addition rounds by up to one unit of the partial sum, and the errors add up like a random walk: sqrt(n) units of 2^-24.
//     Tensor cores cut off instead of rounding, a little further down: of terms of random signs that shows no more;
//   - a result stored in 16 bits: its unit roundoff more; as two panels, the unit squared, which for float16 is cut off at 2^-25 absolute.
const few = 8 * 0x1p-24

func sum(n int) float64 { return few + math.Sqrt(float64(n))*0x1p-24 }

// stored is the tolerance of a result with this error when it is kept in a type and mode.
func stored(d dtype, mode int, tolerance float64) float64 {
	switch {
	case d == f32 || mode == plain:
		return tolerance
	case mode == split:
		return tolerance + d.unit()*d.unit()
	}
	return tolerance + d.unit()
}

// activation is room for the rows of an activation.
type activation struct {
	*buffer
	d        dtype
	mode, kb int
	plane    int  // bytes from one panel of split to the other
	rows     int  // with padding
	whole    bool // the kernel writes whole panels: zeros behind the last column, anything behind the last row
}

func modeOf(d dtype, mode int) int {
	if d == f32 {
		return plain
	}
	return mode
}

func newActivation(d dtype, mode, rows, cols int) *activation {
	a := &activation{d: d, mode: modeOf(d, mode), kb: (cols + 31) / 32, rows: (rows + 127) / 128 * 128}
	a.plane = a.rows * a.kb * 64
	return a
}

func (a *activation) bytes() int {
	switch a.mode {
	case plain:
		return 4 * a.rows * a.kb * 32
	case split:
		return a.plane + a.rows*a.kb*64
	}
	return a.rows * a.kb * 64
}

func (r *run) activation(name string, d dtype, mode, rows, cols int) *activation {
	a := newActivation(d, mode, rows, cols)
	a.buffer = r.out(name, a.bytes())
	return a
}

// value reads an element of what the kernel left.
func (a *activation) value(data []byte, row, col int) (v float64, written bool) {
	if a.mode == plain {
		raw := data[4*(row*a.kb*32+col):][:4]
		return f32.get(raw), !slices.Equal(raw, poisoned(4))
	}
	i := at(row, col, a.kb)
	raw := data[i : i+2]
	v, written = a.d.get(raw), !slices.Equal(raw, poisoned(2))
	if a.mode == split {
		low := data[a.plane+i:][:2]
		v += a.d.get(low)
		written = written || !slices.Equal(low, poisoned(2))
	}
	return v, written
}

// nearActivation compares with want, rows × columns; every other element, NaN in want included, has
// to be untouched. unit is the columns that are judged together.
func (r *run) nearActivation(a *activation, want matrix, unit int, tolerance float64) {
	a.checked = true
	var got, ref []float64
	for row := range a.rows {
		for col := range a.kb * 32 {
			w := nan
			switch {
			case row < want.rows && col < want.cols:
				w = want.row(row)[col]
			case a.whole && row >= want.rows:
				continue
			case a.whole:
				w = 0
			}
			v, written := a.value(a.after, row, col)
			if w != w && written {
				r.fault("%s: column %d of row %d was written: %g", a.name, col, row, v)
				return
			}
			if a.whole && w == 0 && v != 0 {
				r.fault("%s: column %d of row %d is padding and holds %g", a.name, col, row, v)
				return
			}
			if row < want.rows && col < want.cols {
				got, ref = append(got, v), append(ref, w)
			}
		}
	}
	tolerance = stored(a.d, a.mode, tolerance)
	if a.d == f16 && a.mode != plain { // below 2^-14 float16 has no more bits: what is cut off there is absolute
		for i, w := range ref {
			if math.Abs(got[i]-w) <= 0x1p-24 {
				got[i] = w
			}
		}
	}
	r.judge(a.name, got, ref, unit, tolerance)
}

// operand is a random matrix on the device: panels of a 16-bit type (two when split, whose sum is
// the value), rows of float32. Rows of padding are poison, columns of it zero: what another row
// holds must not matter, and columns are multiplied.
type operand struct {
	*buffer
	matrix
	plane int
}

func (r *run) operand(name string, d dtype, mode, rows, cols int, scale float64) operand {
	m := newMatrix(rows, cols)
	a := newActivation(d, mode, rows, cols)
	data := poisoned(a.bytes())
	for i := range rows {
		for j := range a.kb * 32 {
			v := 0.0
			if j < cols {
				v = r.NormFloat64() * scale
			}
			m0 := a.put(data, i, j, v)
			if j < cols {
				m.row(i)[j] = m0
			}
		}
	}
	return operand{r.in(name, data), m, a.plane}
}

// put writes an element and returns what it became.
func (a *activation) put(data []byte, row, col int, v float64) float64 {
	if a.mode == plain {
		f32.put(data[4*(row*a.kb*32+col):], v)
		return f32.round(v)
	}
	i := at(row, col, a.kb)
	high := a.d.round(v)
	a.d.put(data[i:], high)
	if a.mode != split {
		return high
	}
	low := a.d.round(v - high)
	a.d.put(data[a.plane+i:], low)
	return high + low
}

// vector is random float32 values padded with zeros to a multiple of 32; nil and the zero vector
// when it is not wanted.
func (r *run) vector(name string, wanted bool, n int, mean, scale float64) (*buffer, []float64) {
	v := make([]float64, n)
	if !wanted {
		return nil, v
	}
	for i := range v {
		v[i] = f32.round(mean + r.NormFloat64()*scale)
	}
	return r.in(name, floats(append(slices.Clone(v), make([]float64, (n+31)/32*32-n)...))), v
}

// optional is an argument that may be missing: a nil *buffer must not become a non-nil any.
func optional(b *buffer) any {
	if b == nil {
		return nil
	}
	return b
}

// floats32 is random float32 values on the device.
func (r *run) floats32(name string, rows, cols int, scale float64) (*buffer, matrix) {
	m := random(r.Rand, f32, rows, cols, scale)
	return r.in(name, floats(m.v)), m
}

// ints is 32-bit integers on the device.
func (r *run) ints(name string, v ...int) *buffer { return r.in(name, words(v...)) }

// typeOf reads the element type at the end of a kernel's name.
func typeOf(kernel string) dtype {
	for _, d := range []dtype{f32, bf16, f16} {
		if s := "_" + d.String(); len(kernel) > len(s) && kernel[len(kernel)-len(s):] == s {
			return d
		}
	}
	panic(fmt.Errorf("kernel %s: no type in its name", kernel))
}
