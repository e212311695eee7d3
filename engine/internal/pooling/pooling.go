// Package pooling reduces the hidden states of a sequence to one vector, and turns that vector into
// what a request asks for: an embedding, or a number per class.
package pooling

import (
	"fmt"
	"math"
	"slices"
)

// Type says which rows of a sequence's hidden states are kept.
type Type string

// The types, named as in vLLM.
const (
	Last Type = "last" // the last token's: all that a causal model has read
	Mean Type = "mean" // the mean of all tokens'
	CLS  Type = "cls"  // the first token's
)

// Types lists the types for messages.
func Types() []Type { return []Type{Last, Mean, CLS} }

// Valid reports whether t is one of the types.
func (t Type) Valid() bool { return slices.Contains(Types(), t) }

// Whole reports whether a type reads rows before the last, so that a sequence has to be computed in
// one step, from its first token on.
func (t Type) Whole() bool { return t == Mean || t == CLS }

// Rows returns the rows [lo, hi) of a sequence of n that a type reads.
func (t Type) Rows(n int) (lo, hi int) {
	switch t {
	case Mean:
		return 0, n
	case CLS:
		return 0, 1
	}
	return n - 1, n
}

// Reduce computes dst, one vector, of the rows that Rows names.
func Reduce(dst, rows []float32) {
	dim := len(dst)
	if dim == 0 || len(rows) == 0 || len(rows)%dim != 0 {
		panic(fmt.Sprintf("pooling: %d elements are no rows of %d", len(rows), dim))
	}
	n := len(rows) / dim
	if n == 1 {
		copy(dst, rows)
		return
	}
	for j := range dst {
		sum := 0.0
		for i := range n {
			sum += float64(rows[i*dim+j])
		}
		dst[j] = float32(sum / float64(n))
	}
}

// Activation turns a vector into what its reader wants.
type Activation string

// The activations.
const (
	None      Activation = "none"
	Normalize Activation = "normalize" // to length 1
	Softmax   Activation = "softmax"   // probabilities that add up to 1
	Sigmoid   Activation = "sigmoid"   // a probability each
)

// Apply applies an activation in place.
func (a Activation) Apply(x []float32) {
	switch a {
	case Normalize:
		normalize(x)
	case Softmax:
		softmax(x)
	case Sigmoid:
		for i, v := range x {
			x[i] = float32(1 / (1 + math.Exp(-float64(v))))
		}
	}
}

// normalize divides by the length, or by 1e-12 when that is less, as
// torch.nn.functional.normalize.
func normalize(x []float32) {
	length := max(math.Sqrt(dot(x, x)), 1e-12)
	for i, v := range x {
		x[i] = float32(float64(v) / length)
	}
}

func softmax(x []float32) {
	if len(x) == 0 {
		return
	}
	top, sum := float64(slices.Max(x)), 0.0
	for _, v := range x {
		sum += math.Exp(float64(v) - top)
	}
	for i, v := range x {
		x[i] = float32(math.Exp(float64(v)-top) / sum)
	}
}

func dot(a, b []float32) float64 {
	sum := 0.0
	for i, v := range a {
		sum += float64(v) * float64(b[i])
	}
	return sum
}

// Cosine is the cosine of the angle between two vectors of one length; 0 when one of them is zero.
func Cosine(a, b []float32) float32 {
	n := math.Sqrt(dot(a, a)) * math.Sqrt(dot(b, b))
	if n == 0 {
		return 0
	}
	return float32(dot(a, b) / n)
}
