package gguf

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/enginetest/enginetest/internal/checkpoint"
)

// kinds are ggml's numbers of the weight types.
var kinds = map[checkpoint.DType]uint32{checkpoint.F32: 0, checkpoint.F16: 1, checkpoint.BF16: 30}

type tensor struct {
	name  string
	shape []int
	kind  uint32
	data  []byte
}

// names are GGUF's names of the weights.
var names = map[checkpoint.Role]string{
	checkpoint.Embedding: "token_embd", checkpoint.FinalNorm: "output_norm", checkpoint.Output: "output",
	checkpoint.AttentionNorm: "attn_norm", checkpoint.AttentionOut: "attn_output", checkpoint.Query: "attn_q",
	checkpoint.Key: "attn_k", checkpoint.Value: "attn_v", checkpoint.MLPNorm: "ffn_norm", checkpoint.Gate: "ffn_gate",
	checkpoint.Up: "ffn_up", checkpoint.Down: "ffn_down",
}

// tensorsOf renames and reorders a checkpoint's tensors.
func tensorsOf(c *checkpoint.Checkpoint) ([]tensor, error) {
	var out []tensor
	for w := range c.Config.Weights() {
		shape, name := c.Config.Shape(w), names[w.Role]
		if w.Role != checkpoint.Embedding && w.Role < checkpoint.FinalNorm {
			name = fmt.Sprintf("blk.%d.%s", w.Layer, name)
		}
		t, err := tensorOf(c, w, w.Name, shape)
		if err != nil {
			return nil, err
		}
		t.name = name + ".weight"
		out = append(out, t)
		if w.Bias == "" {
			continue
		}
		if t, err = tensorOf(c, w, w.Bias, shape[:1]); err != nil {
			return nil, err
		}
		t.name = name + ".bias"
		out = append(out, t)
	}
	return out, nil
}

// tensorOf is a weight or its bias as llama.cpp wants it: vectors in F32, heads with their rows
// paired.
func tensorOf(c *checkpoint.Checkpoint, w checkpoint.Weight, name string, shape []int) (tensor, error) {
	t, err := c.Weight(name, shape...)
	if err != nil {
		return tensor{}, err
	}
	g := tensor{shape: t.Shape, kind: kinds[t.DType], data: t.Data}
	if len(shape) == 1 {
		g.kind = kinds[checkpoint.F32]
		switch t.DType {
		case checkpoint.BF16:
			g.data = widened(t.Data)
		case checkpoint.F16:
			g.data = widenedHalf(t.Data)
		}
	}
	switch w.Role {
	case checkpoint.Query:
		g.data = paired(g.data, shape[0], c.Config.NumHeads)
	case checkpoint.Key:
		g.data = paired(g.data, shape[0], c.Config.NumKVHeads)
	}
	return g, nil
}

// widened turns BF16 into F32: llama.cpp wants norms in F32.
func widened(b []byte) []byte {
	out := make([]byte, 0, 2*len(b))
	for ; len(b) >= 2; b = b[2:] {
		out = binary.LittleEndian.AppendUint32(out, uint32(binary.LittleEndian.Uint16(b))<<16)
	}
	return out
}

// widenedHalf turns F16 into F32.
func widenedHalf(b []byte) []byte {
	out := make([]byte, 0, 2*len(b))
	for ; len(b) >= 2; b = b[2:] {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(half(binary.LittleEndian.Uint16(b))))
	}
	return out
}

// half is the value of an IEEE 754 binary16.
func half(h uint16) float32 {
	sign, exponent, fraction := float64(1), int(h>>10&31), float64(h&1023)
	if h>>15 == 1 {
		sign = -1
	}
	switch {
	case exponent == 0:
		return float32(sign * math.Ldexp(fraction, -24))
	case exponent < 31:
		return float32(sign * math.Ldexp(1024+fraction, exponent-25))
	case fraction == 0:
		return float32(math.Inf(int(sign)))
	}
	return float32(math.NaN())
}

// paired reorders the rows of each head: Hugging Face rotates row i with row i+half, llama.cpp rotates neighbours.
func paired(b []byte, rows, heads int) []byte {
	size, perHead := len(b)/rows, rows/heads
	half := perHead / 2
	out := make([]byte, 0, len(b))
	for h := range heads {
		for i := range half {
			for _, row := range []int{h*perHead + i, h*perHead + half + i} {
				out = append(out, b[row*size:(row+1)*size]...)
			}
		}
	}
	return out
}
