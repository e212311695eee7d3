package modelrunner

import (
	"fmt"

	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/internal/cpu"
)

// model is a decoder's weights: matrices where they lie in the checkpoint's mapped files, norms and biases widened to float32.
type model struct {
	checkpoint.Config
	embed  cpu.Matrix // [VocabSize, HiddenSize]
	layers []layer
	norm   []float32
	lmHead cpu.Matrix // [VocabSize, HiddenSize]; embed when tied
}

type layer struct {
	inputNorm    []float32
	q, k, v, o   linear
	qNorm, kNorm []float32 // [HeadDim], nil in most architectures
	postNorm     []float32
	gate, up     linear
	down         linear
}

type linear struct {
	w    cpu.Matrix // [out, in]
	bias []float32  // [out] or nil
}

// into is the product's place in a cpu.MatMuls.
func (l linear) into(dst []float32) cpu.Linear { return cpu.Linear{Dst: dst, W: l.w, Bias: l.bias} }

// binder finds an architecture's tensors in a checkpoint. It keeps the first error and goes on, so that its callers read like the model.
type binder struct {
	from    *checkpoint.Checkpoint
	vectors []vector
	err     error
}

// vector is a norm or bias that waits for its memory.
type vector struct {
	dst *[]float32
	src checkpoint.Tensor
}

// bind finds and checks every tensor of the model. Norms and biases get their memory later, in widen.
func bind(ckpt *checkpoint.Checkpoint) (*model, []vector, error) {
	c, b := ckpt.Config, &binder{from: ckpt}
	m := &model{Config: c, layers: make([]layer, c.NumLayers)}
	m.embed = b.matrix("model.embed_tokens.weight", c.VocabSize, c.HiddenSize)
	for i := range m.layers {
		b.layer(&m.layers[i], &c, fmt.Sprintf("model.layers.%d.", i))
	}
	b.vector(&m.norm, "model.norm.weight", c.HiddenSize)
	if m.lmHead = m.embed; !c.TieEmbeddings {
		m.lmHead = b.matrix("lm_head.weight", c.VocabSize, c.HiddenSize)
	}
	return m, b.vectors, b.err
}

func (b *binder) layer(l *layer, c *checkpoint.Config, at string) {
	q, kv := c.NumHeads*c.HeadDim, c.NumKVHeads*c.HeadDim
	b.vector(&l.inputNorm, at+"input_layernorm.weight", c.HiddenSize)
	b.linear(&l.q, at+"self_attn.q_proj", q, c.HiddenSize, c.QKVBias)
	b.linear(&l.k, at+"self_attn.k_proj", kv, c.HiddenSize, c.QKVBias)
	b.linear(&l.v, at+"self_attn.v_proj", kv, c.HiddenSize, c.QKVBias)
	b.linear(&l.o, at+"self_attn.o_proj", c.HiddenSize, q, c.OBias)
	if c.QKNorm {
		b.vector(&l.qNorm, at+"self_attn.q_norm.weight", c.HeadDim)
		b.vector(&l.kNorm, at+"self_attn.k_norm.weight", c.HeadDim)
	}
	b.vector(&l.postNorm, at+"post_attention_layernorm.weight", c.HiddenSize)
	b.linear(&l.gate, at+"mlp.gate_proj", c.IntermediateSize, c.HiddenSize, c.MLPBias)
	b.linear(&l.up, at+"mlp.up_proj", c.IntermediateSize, c.HiddenSize, c.MLPBias)
	b.linear(&l.down, at+"mlp.down_proj", c.HiddenSize, c.IntermediateSize, c.MLPBias)
}

func (b *binder) linear(l *linear, name string, rows, cols int, bias bool) {
	l.w = b.matrix(name+".weight", rows, cols)
	if bias {
		b.vector(&l.bias, name+".bias", rows)
	}
}

func (b *binder) weight(name string, shape ...int) checkpoint.Tensor {
	if b.err != nil {
		return checkpoint.Tensor{}
	}
	t, err := b.from.Weight(name, shape...)
	b.err = err
	return t
}

func (b *binder) matrix(name string, rows, cols int) cpu.Matrix {
	t := b.weight(name, rows, cols)
	return cpu.Matrix{Data: t.Data, Type: kernelType(t.DType), Rows: rows, Cols: cols}
}

func (b *binder) vector(dst *[]float32, name string, n int) {
	b.vectors = append(b.vectors, vector{dst, b.weight(name, n)})
}

func kernelType(d checkpoint.DType) cpu.DType {
	switch d {
	case checkpoint.BF16:
		return cpu.BF16
	case checkpoint.F16:
		return cpu.F16
	}
	return cpu.F32
}

// widen copies the vectors to memory, as float32.
func widen(p *cpu.Pool, memory []float32, vectors []vector) {
	for _, v := range vectors {
		n := v.src.Shape[0]
		*v.dst, memory = memory[:n:n], memory[n:]
		cpu.Widen(p, *v.dst, v.src.Data, kernelType(v.src.DType))
	}
}
