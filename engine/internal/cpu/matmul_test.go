package cpu

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMatMulAgainstFloat64(t *testing.T) {
	shapes := []struct {
		m, rows, cols int
		why           string
	}{
		{1, 1, 1, "the smallest"},
		{1, 4, 16, "one tile, one vector"},
		{1, 4, 8, "half an AVX-512 vector"},
		{1, 3, 7, "less than a vector, less than a tile"},
		{2, 5, 9, "one more than a vector"},
		{3, 7, 15, "one less than two vectors"},
		{4, 8, 31, "one less than the unrolled step"},
		{5, 9, 33, "one more than the unrolled step"},
		{7, 13, 47, "the rest has a whole vector and a tail"},
		{8, 64, 64, "no rest"},
		{11, 66, 100, "the last row count before widening"},
		{12, 66, 100, "widened panels"},
		{17, 129, 77, "widened, odd"},
		{33, 70, 200, "more tiles than one panel"},
		{1, 300, 768, "decode"},
		{64, 48, 2048, "long rows"},
		{1, 5, 0, "no columns: zero"},
		{3, 0, 8, "no rows"},
		{0, 4, 8, "no activations"},
	}
	eachTier(t, func(t *testing.T, p *Pool) {
		for _, dt := range []DType{F32, BF16, F16} {
			for _, s := range shapes {
				t.Run(fmt.Sprintf("%v/%s", dt, s.why), func(t *testing.T) {
					checkMatMul(t, p, dt, s.m, s.rows, s.cols)
				})
			}
		}
	})
}

// Every length of a row up to four AVX-512 vectors and a bit, in a batch that takes several shapes
// of tiles.
func TestMatMulEveryTail(t *testing.T) {
	eachTier(t, func(t *testing.T, p *Pool) {
		for _, dt := range []DType{F32, BF16, F16} {
			for cols := 1; cols <= 70; cols++ {
				checkMatMul(t, p, dt, 1+cols%7, 1+cols%11, cols)
			}
		}
	})
}

// checkMatMul compares one product with its float64 value. All that it reads and writes ends where
// memory ends.
func checkMatMul(t *testing.T, p *Pool, dt DType, m, rows, cols int) {
	t.Helper()
	rng := rngOf(uint64(m*1000003 + rows*1009 + cols))
	w, exact := matrix(rng, dt, rows, cols)
	w.Data = fenced(t, w.Data)
	x := fencedFloats(t, random(rng, m*cols))
	bias := random(rng, rows)
	dst := fencedFloats(t, make([]float32, m*rows))
	MatMul(p, dst, x, m, w, bias)
	want := make([]float64, m*rows)
	for i := range want {
		want[i] = float64(bias[i%rows])
		for k := range cols {
			want[i] += float64(x[i/rows*cols+k]) * exact[i%rows*cols+k]
		}
	}
	near(t, want, dst, 1.2e-6*math.Sqrt(float64(cols)), 1e-6, fmt.Sprintf("%v: %d rows × [%d, %d]", dt, m, rows, cols))
}

// One row alone, in any batch, in any place, with any number of threads: the same bits.
func TestMatMulIsBatchInvariant(t *testing.T) {
	eachTier(t, func(t *testing.T, p *Pool) {
		one := pool(t, 1, p.Tier())
		for _, dt := range []DType{F32, BF16, F16} {
			for _, cols := range []int{5, 64, 77, 100, 768} {
				rng := rngOf(uint64(cols))
				const m, rows = 37, 70
				w, _ := matrix(rng, dt, rows, cols)
				x := random(rng, m*cols)
				alone := make([]float32, m*rows)
				for i := range m {
					MatMul(one, alone[i*rows:(i+1)*rows], x[i*cols:(i+1)*cols], 1, w, nil)
				}
				for _, n := range []int{1, 2, 3, 4, 5, 7, 11, 12, 13, 37} {
					got := make([]float32, n*rows)
					MatMul(p, got, x[(m-n)*cols:], n, w, nil)
					require.Equal(t, bits(alone[(m-n)*rows:]), bits(got), "%v, %d columns, batch of %d", dt, cols, n)
				}
			}
		}
	})
}

func TestMatMulsGivesWhatMatMulGives(t *testing.T) {
	eachTier(t, func(t *testing.T, p *Pool) {
		rng := rngOf(1)
		const m, cols = 5, 96
		x := random(rng, m*cols)
		q, _ := matrix(rng, BF16, 64, cols)
		k, _ := matrix(rng, F16, 18, cols)
		v, _ := matrix(rng, F32, 7, cols)
		bias := random(rng, 18)
		want := [3][]float32{make([]float32, m*64), make([]float32, m*18), make([]float32, m*7)}
		MatMul(p, want[0], x, m, q, nil)
		MatMul(p, want[1], x, m, k, bias)
		MatMul(p, want[2], x, m, v, nil)
		// q and k beside each other in one wide result.
		wide, gotV := make([]float32, m*82), make([]float32, m*7)
		MatMuls(p, x, m, Linear{Dst: wide, W: q, Stride: 82}, Linear{Dst: wide[64:], W: k, Bias: bias, Stride: 82},
			Linear{Dst: gotV, W: v})
		for i := range m {
			require.Equal(t, bits(want[0][i*64:(i+1)*64]), bits(wide[i*82:i*82+64]))
			require.Equal(t, bits(want[1][i*18:(i+1)*18]), bits(wide[i*82+64:(i+1)*82]))
		}
		require.Equal(t, bits(want[2]), bits(gotV))
	})
}

func TestMatrixNeedsNoAlignmentAndTakesAStride(t *testing.T) {
	eachTier(t, func(t *testing.T, p *Pool) {
		for _, dt := range []DType{F32, BF16, F16} {
			rng := rngOf(2)
			w, exact := matrix(rng, dt, 9, 40)
			data := append(make([]byte, 1, len(w.Data)+1), w.Data...)
			// the right half of each row
			half := Matrix{Data: data[1:][20*dt.Size():], Type: dt, Rows: 9, Cols: 20, Stride: 40}
			x := random(rng, 3*20)
			got, want := make([]float32, 27), make([]float64, 27)
			MatMul(p, got, x, 3, half, nil)
			for i := range want {
				for k := range 20 {
					want[i] += float64(x[i/9*20+k]) * exact[i%9*40+20+k]
				}
			}
			near(t, want, got, 1e-5, 1e-6)
		}
	})
}

// Every float16 and every bfloat16 widens to its exact value, and NaN stays NaN.
func TestWidenEveryValue(t *testing.T) {
	eachTier(t, func(t *testing.T, p *Pool) {
		src := make([]byte, 2<<16)
		for i := range 1 << 16 {
			src[2*i], src[2*i+1] = byte(i), byte(i>>8)
		}
		got := make([]float32, 1<<16)
		Widen(p, got, src, F16)
		for i, v := range got {
			if want := halfReference(uint16(i)); float64(v) != want && (v == v || want == want) {
				t.Fatalf("float16 %#04x is %v, want %v", i, v, want)
			}
		}
		Widen(p, got, src, BF16)
		for i, v := range got {
			if math.Float32bits(v) != uint32(i)<<16 {
				t.Fatalf("bfloat16 %#04x is %v", i, v)
			}
		}
	})
}

func TestMatMulRefusesWrongShapes(t *testing.T) {
	p := pool(t, 1, Generic)
	w := Matrix{Data: make([]byte, 4*2*3), Rows: 2, Cols: 3}
	for want, f := range map[string]func(){
		"cpu: x has 5 elements, needs [2, 3]": func() {
			MatMul(p, make([]float32, 4), make([]float32, 5), 2, w, nil)
		},
		"cpu: result has 3 elements, needs [2, 2] with stride 2": func() {
			MatMul(p, make([]float32, 3), make([]float32, 6), 2, w, nil)
		},
		"cpu: bias has 1 elements, needs 2": func() {
			MatMul(p, make([]float32, 4), make([]float32, 6), 2, w, make([]float32, 1))
		},
		"cpu: matrix [3, 3] of F32 has 24 bytes of data, needs 36": func() {
			MatMul(p, make([]float32, 9), make([]float32, 9), 1, Matrix{Data: w.Data, Rows: 3, Cols: 3}, nil)
		},
		"cpu: matrices of one pass have 3 and 2 columns": func() {
			MatMuls(p, make([]float32, 9), 1, Linear{Dst: make([]float32, 2), W: w}, Linear{W: Matrix{Cols: 2}})
		},
		"cpu: bad matrix [2, 3] of F32 with stride 2": func() {
			MatMul(p, make([]float32, 9), make([]float32, 9), 1, Matrix{Data: w.Data, Rows: 2, Cols: 3, Stride: 2}, nil)
		},
		"cpu: Gather: row 2 of a table of 2": func() { Gather(p, make([]float32, 3), w, []int32{2}) },
	} {
		require.PanicsWithValue(t, want, f)
	}
}
