package kernels_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// dtype is an element type, numbered as in device.h.
type dtype int

const (
	f32 dtype = iota
	bf16
	f16
)

func (d dtype) String() string { return [...]string{"f32", "bf16", "f16"}[d] }

// unit is the largest relative error of rounding to the type (its unit roundoff).
func (d dtype) unit() float64 { return [...]float64{0x1p-24, 0x1p-8, 0x1p-11}[d] }

// size is the bytes of an element.
func (d dtype) size() int { return [...]int{4, 2, 2}[d] }

// round returns the value of the type nearest to v, ties to even.
func (d dtype) round(v float64) float64 {
	if d == f32 {
		return float64(float32(v))
	}
	bits, least := 8, -125 // of bf16: bits of mantissa, smallest exponent as math.Frexp counts
	if d == f16 {
		bits, least = 11, -13
	}
	_, exp := math.Frexp(v)
	step := math.Ldexp(1, max(exp, least)-bits)
	return math.RoundToEven(v/step) * step
}

// put writes a value of the type.
func (d dtype) put(to []byte, v float64) {
	switch d {
	case f32:
		binary.LittleEndian.PutUint32(to, math.Float32bits(float32(v)))
	case bf16:
		binary.LittleEndian.PutUint16(to, uint16(math.Float32bits(float32(v))>>16))
	default:
		binary.LittleEndian.PutUint16(to, halfBits(v))
	}
}

func (d dtype) get(from []byte) float64 {
	switch d {
	case f32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(from)))
	case bf16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(from)) << 16))
	}
	return halfValue(binary.LittleEndian.Uint16(from))
}

// halfBits encodes a value that float16 has.
func halfBits(v float64) uint16 {
	sign := uint16(0)
	if math.Signbit(v) {
		sign, v = 1<<15, -v
	}
	if v < 0x1p-14 {
		return sign | uint16(v*0x1p24)
	}
	frac, exp := math.Frexp(v) // v = frac * 2^exp, frac in [0.5, 1)
	return sign | uint16(exp+14)<<10 | uint16(frac*2048-1024)
}

func halfValue(h uint16) float64 {
	exp, frac := int(h>>10&31), float64(h&1023)
	v := math.Ldexp(1024+frac, exp-25)
	switch {
	case exp == 0:
		v = math.Ldexp(frac, -24)
	case exp == 31 && frac == 0:
		v = math.Inf(1)
	case exp == 31:
		return math.NaN()
	}
	if h>>15 == 1 {
		return -v
	}
	return v
}

// panel is the byte offset of a row's 8 columns from 8*chunk on, as device.h describes.
func panel(row, chunk, kb int) int {
	return (row/128*kb+chunk/4)*8192 + row/8%16*512 + row%8*64 + (chunk%4^row/2%4)*16
}

// at is the byte offset of an element in panels.
func at(row, col, kb int) int { return panel(row, col/8, kb) + col%8*2 }

// TestNumbers: what the references are made of. Every number of 16 bits survives, and what lies
// between two of them goes to the nearer, halves to the even one.
func TestNumbers(t *testing.T) {
	for _, d := range []dtype{bf16, f16} {
		last := math.Inf(-1)
		for bits := range 0x7c00 {
			raw, out := binary.LittleEndian.AppendUint16(nil, uint16(bits)), make([]byte, 2)
			v := d.get(raw)
			d.put(out, v)
			good := bytes.Equal(raw, out) && d.round(v) == v && v > last
			if step := v - last; good && bits > 0 {
				even := []float64{v, last}[bits%2]
				good = d.round(last+0.49*step) == last && d.round(last+0.51*step) == v &&
					d.round(last+step/2) == even && d.round(-v) == -v
			}
			if !good {
				t.Fatalf("%s %#x: %g, encoded %x, after %g", d, bits, v, out, last)
			}
			last = v
		}
	}
	require.True(t, halfValue(0x3c00) == 1 && halfValue(0x7bff) == 65504 && halfValue(1) == 0x1p-24)
	require.True(t, math.IsNaN(f16.get(poisoned(2))) && math.IsNaN(bf16.get(poisoned(2))) &&
		math.IsNaN(f32.get(poisoned(4))))
	ratio, row := worst([]float64{1, 2, 3, 4.4}, []float64{1, 2, 3, 4}, 2)
	require.InDelta(t, 0.08, ratio, 1e-9)
	require.Equal(t, 1, row)
	ratio, _ = worst([]float64{1, nan}, []float64{1, 0}, 2)
	require.True(t, math.IsInf(ratio, 1), "a NaN is no number")
	ratio, _ = worst([]float64{1, 0x1p-30}, []float64{1, 0}, 1)
	require.Positive(t, ratio, "a row of zeros has no room for errors")
}

// matrix is values in rows.
type matrix struct {
	rows, cols int
	v          []float64
}

func newMatrix(rows, cols int) matrix { return matrix{rows, cols, make([]float64, rows*cols)} }

func (m matrix) row(i int) []float64 { return m.v[i*m.cols : (i+1)*m.cols] }

// random is normally distributed values of a type.
func random(rng *rand.Rand, d dtype, rows, cols int, scale float64) matrix {
	m := newMatrix(rows, cols)
	for i := range m.v {
		m.v[i] = d.round(rng.NormFloat64() * scale)
	}
	return m
}

func (m matrix) blocks() int { return (m.cols + 31) / 32 }

// nan is how references say that an element must not be written.
var nan = math.NaN()

func untouched(n int) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = nan
	}
	return v
}

func dot(a, b []float64) float64 {
	s := 0.0
	for i, v := range a {
		s += v * b[i]
	}
	return s
}

func silu(x float64) float64 { return x / (1 + math.Exp(-x)) }

// worst is the largest ‖got-want‖ / ‖want‖ of rows of width elements; NaN in got is infinite.
// Elements that must not be written do not count.
func worst(got, want []float64, width int) (ratio float64, row int) {
	for i := 0; i < len(want); i += width {
		var diff, norm float64
		for j := i; j < min(i+width, len(want)); j++ {
			w, g := want[j], got[j]
			switch {
			case w != w || w == g:
			case g != g || math.IsInf(w, 0):
				diff = math.Inf(1)
			default:
				diff += (g - w) * (g - w)
			}
			if w == w && !math.IsInf(w, 0) {
				norm += w * w
			}
		}
		if r := math.Sqrt(diff / max(norm, 1e-300)); diff > 0 && r > ratio {
			ratio, row = r, i/width
		}
	}
	return ratio, row
}

func words(v ...int) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, uint32(int32(x)))
	}
	return b
}

func floats(v []float64) []byte {
	b := make([]byte, 4*len(v))
	for i, x := range v {
		f32.put(b[4*i:], x)
	}
	return b
}
