package pooling

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestReduce(t *testing.T) {
	rows := []float32{1, 2, 3, 4, 8, 12}
	for typ, want := range map[Type][]float32{Last: {8, 12}, Mean: {4, 6}, CLS: {1, 2}} {
		got := make([]float32, 2)
		lo, hi := typ.Rows(3)
		Reduce(got, rows[2*lo:2*hi])
		assert.Equal(t, want, got, typ)
		assert.True(t, typ.Valid())
	}
	assert.False(t, Type("max").Valid())
	assert.False(t, Last.Whole(), "a causal model's last row can come after any number of steps")
	assert.True(t, Mean.Whole())
	assert.True(t, CLS.Whole())
	assert.PanicsWithValue(t, "pooling: 3 elements are no rows of 2", func() { Reduce(make([]float32, 2), rows[:3]) })
}

// TestMeanOfMany adds up more rows than float32 could without loss.
func TestMeanOfMany(t *testing.T) {
	rows := make([]float32, 1<<20)
	for i := range rows {
		rows[i] = 0.1
	}
	got := make([]float32, 1)
	Reduce(got, rows)
	assert.InDelta(t, 0.1, got[0], 1e-8)
}

func TestActivations(t *testing.T) {
	apply := func(a Activation, x ...float32) []float32 { a.Apply(x); return x }
	assert.Equal(t, []float32{3, 4}, apply(None, 3, 4))
	assert.Equal(t, []float32{0.6, 0.8}, apply(Normalize, 3, 4))
	assert.Equal(t, []float32{0, 0}, apply(Normalize, 0, 0), "no NaN")
	assert.InDeltaSlice(t, []float64{0.5, 0.5}, floats(apply(Softmax, 1000, 1000)), 1e-7, "no overflow")
	assert.InDeltaSlice(t, []float64{0.09003057, 0.24472847, 0.66524096}, floats(apply(Softmax, 1, 2, 3)), 1e-7)
	assert.InDeltaSlice(t, []float64{0.5, 0.88079708, 0, 1}, floats(apply(Sigmoid, 0, 2, -200, 200)), 1e-7)
	assert.Empty(t, apply(Softmax))
}

func floats(x []float32) (out []float64) {
	for _, v := range x {
		out = append(out, float64(v))
	}
	return out
}

func TestCosine(t *testing.T) {
	assert.InDelta(t, 1/math.Sqrt2, Cosine([]float32{1, 0}, []float32{5, 5}), 1e-7)
	assert.InDelta(t, -1, Cosine([]float32{2, 0}, []float32{-3, 0}), 1e-7)
	assert.Zero(t, Cosine([]float32{0, 0}, []float32{1, 1}))
}
