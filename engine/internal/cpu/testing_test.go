package cpu

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eachTier runs a test on every tier that this machine has, with one thread and with more threads
// than parts of the work fit evenly.
func eachTier(t *testing.T, f func(t *testing.T, p *Pool)) {
	for tier := Generic; tier <= Best(); tier++ {
		t.Run(tier.String(), func(t *testing.T) { f(t, pool(t, 3, tier)) })
	}
}

func pool(tb testing.TB, threads int, tier Tier) *Pool {
	tb.Helper()
	p, err := NewPoolTier(threads, tier)
	require.NoError(tb, err)
	tb.Cleanup(p.Close)
	return p
}

// fenced copies data to memory that ends where an unreadable page begins: a kernel that reads past
// the end crashes the test.
func fenced(tb testing.TB, data []byte) []byte {
	tb.Helper()
	mem := fence(tb, len(data))
	copy(mem, data)
	return mem
}

func fencedFloats(tb testing.TB, x []float32) []float32 {
	tb.Helper()
	b := fenced(tb, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x)))
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(x))
}

func random(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

func rngOf(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// matrix makes random weights of a type, and returns their exact values.
func matrix(rng *rand.Rand, t DType, rows, cols int) (Matrix, []float64) {
	w := Matrix{Type: t, Rows: rows, Cols: cols, Data: make([]byte, rows*cols*t.Size())}
	exact := make([]float64, rows*cols)
	for i := range exact {
		bits := math.Float32bits(float32(rng.NormFloat64()))
		switch t {
		case F32:
			binary.LittleEndian.PutUint32(w.Data[4*i:], bits)
			exact[i] = float64(math.Float32frombits(bits))
		case BF16:
			binary.LittleEndian.PutUint16(w.Data[2*i:], uint16(bits>>16))
			exact[i] = float64(math.Float32frombits(bits &^ 0xffff))
		case F16:
			h := uint16(bits>>16)&0x8000 | uint16(8+rng.IntN(8))<<10 | uint16(rng.IntN(1024))
			binary.LittleEndian.PutUint16(w.Data[2*i:], h)
			exact[i] = halfReference(h)
		}
	}
	return w, exact
}

// halfReference is the value of a binary16 by its definition.
func halfReference(h uint16) float64 {
	sign, exp, frac := 1.0, int(h>>10)&31, float64(h&0x3ff)/1024
	if h&0x8000 != 0 {
		sign = -1
	}
	switch {
	case exp == 0:
		return sign * math.Ldexp(frac, -14)
	case exp == 31 && frac == 0:
		return sign * math.Inf(1)
	case exp == 31:
		return math.NaN()
	}
	return sign * math.Ldexp(1+frac, exp-15)
}

func bits(x []float32) []uint32 {
	b := make([]uint32, len(x))
	for i, v := range x {
		b[i] = math.Float32bits(v)
	}
	return b
}

// near compares with a float64 reference; the bound is absolute plus relative.
func near(tb testing.TB, want []float64, got []float32, abs, rel float64, msg ...any) {
	tb.Helper()
	for i := range want {
		if d := math.Abs(float64(got[i]) - want[i]); !(d <= abs+rel*math.Abs(want[i])) {
			require.Failf(tb, "too far from the float64 reference", "[%d] is %v, want %v; off by %.3g, allowed %.3g + %.3g relative; %v", i, got[i], want[i], d, abs, rel, msg)
		}
	}
}
