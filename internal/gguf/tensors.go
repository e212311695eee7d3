package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

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

var rename = strings.NewReplacer(
	"model.embed_tokens", "token_embd", "lm_head", "output", "model.norm", "output_norm", "model.layers.", "blk.",
	"self_attn.q_proj", "attn_q", "self_attn.k_proj", "attn_k", "self_attn.v_proj", "attn_v", "self_attn.o_proj", "attn_output",
	"mlp.gate_proj", "ffn_gate", "mlp.up_proj", "ffn_up", "mlp.down_proj", "ffn_down",
	"input_layernorm", "attn_norm", "post_attention_layernorm", "ffn_norm",
)

// tensorsOf renames and reorders a checkpoint's tensors.
func tensorsOf(c *checkpoint.Checkpoint) ([]tensor, error) {
	var out []tensor
	for _, name := range c.Names() {
		t, err := c.Tensor(name)
		if err != nil {
			return nil, err
		}
		kind, ok := kinds[t.DType]
		if !ok {
			return nil, fmt.Errorf("gguf: tensor %q has type %s", name, t.DType)
		}
		g := tensor{name: rename.Replace(name), shape: t.Shape, kind: kind, data: t.Data}
		switch {
		case len(t.Shape) == 1:
			switch t.DType {
			case checkpoint.BF16:
				g.data = widened(t.Data)
			case checkpoint.F16:
				g.data = widenedHalf(t.Data)
			}
			g.kind = kinds[checkpoint.F32]
		case strings.HasSuffix(g.name, "attn_q.weight"):
			g.data = paired(t.Data, t.Shape[0], c.Config.NumHeads)
		case strings.HasSuffix(g.name, "attn_k.weight"):
			g.data = paired(t.Data, t.Shape[0], c.Config.NumKVHeads)
		}
		out = append(out, g)
	}
	return out, nil
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
