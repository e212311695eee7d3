package cpurunner

import (
	"fmt"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// model is a rank's share of a decoder's weights: matrices where they lie in the checkpoint's
// mapped files, norms and biases widened to float32.
type model struct {
	checkpoint.Config            // of the share
	embed             cpu.Matrix // [VocabSize, HiddenSize]
	layers            []layer
	norm              []float32
	lmHead            cpu.Matrix // [share.Vocab, HiddenSize]; of embed when tied
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

// binder finds an architecture's tensors in a checkpoint. It keeps the first error and goes on, so
// that its callers read like the model.
type binder struct {
	from    *checkpoint.Checkpoint
	share   modelrunner.Share
	vectors []vector
	others  map[string]int64 // by file: the bytes of its tensors that only other ranks have
	err     error
}

// vector is a norm or bias that waits for its memory.
type vector struct {
	dst *[]float32
	src checkpoint.Tensor
}

// cut is the part of a dimension that a rank has.
type cut struct {
	modelrunner.Range
	of int
}

func whole(n int) cut { return cut{modelrunner.Range{Lo: 0, Hi: n}, n} }

// times is the cut of heads of this many elements.
func (c cut) times(n int) cut { return cut{modelrunner.Range{Lo: c.Lo * n, Hi: c.Hi * n}, c.of * n} }

// bind finds and checks every tensor of the model. Norms and biases get their memory later, in
// widen.
func bind(ckpt *checkpoint.Checkpoint, share modelrunner.Share) (*model, *binder) {
	c := ckpt.Config
	b := &binder{from: ckpt, share: share, others: map[string]int64{}}
	m := &model{Config: share.Config, layers: make([]layer, c.NumLayers)}
	m.embed = b.matrix("model.embed_tokens.weight", whole(c.VocabSize), whole(c.HiddenSize))
	for i := range m.layers {
		b.layer(&m.layers[i], &c, fmt.Sprintf("model.layers.%d.", i))
	}
	b.vector(&m.norm, "model.norm.weight", whole(c.HiddenSize))
	if vocab := (cut{share.Vocab, c.VocabSize}); !c.TieEmbeddings {
		m.lmHead = b.matrix("lm_head.weight", vocab, whole(c.HiddenSize))
	} else if b.err == nil {
		m.lmHead = part(m.embed, vocab.Range, modelrunner.Range{Lo: 0, Hi: c.HiddenSize})
	}
	return m, b
}

func (b *binder) layer(l *layer, c *checkpoint.Config, at string) {
	q, kv := cut{b.share.Heads, c.NumHeads}.times(c.HeadDim), cut{b.share.KVHeads, c.NumKVHeads}.times(c.HeadDim)
	hidden, inner := whole(c.HiddenSize), cut{b.share.Intermediate, c.IntermediateSize}
	first := b.share.First() // adds the biases of sums
	b.vector(&l.inputNorm, at+"input_layernorm.weight", hidden)
	b.linear(&l.q, at+"self_attn.q_proj", q, hidden, c.QKVBias, true)
	b.linear(&l.k, at+"self_attn.k_proj", kv, hidden, c.QKVBias, true)
	b.linear(&l.v, at+"self_attn.v_proj", kv, hidden, c.QKVBias, true)
	b.linear(&l.o, at+"self_attn.o_proj", hidden, q, c.OBias, first)
	if c.QKNorm {
		b.vector(&l.qNorm, at+"self_attn.q_norm.weight", whole(c.HeadDim))
		b.vector(&l.kNorm, at+"self_attn.k_norm.weight", whole(c.HeadDim))
	}
	b.vector(&l.postNorm, at+"post_attention_layernorm.weight", hidden)
	b.linear(&l.gate, at+"mlp.gate_proj", inner, hidden, c.MLPBias, true)
	b.linear(&l.up, at+"mlp.up_proj", inner, hidden, c.MLPBias, true)
	b.linear(&l.down, at+"mlp.down_proj", hidden, inner, c.MLPBias, first)
}

// linear binds a matrix and, when the model has it and this rank adds it, its bias.
func (b *binder) linear(l *linear, name string, rows, cols cut, bias, adds bool) {
	l.w = b.matrix(name+".weight", rows, cols)
	if bias && adds {
		b.vector(&l.bias, name+".bias", rows)
	} else if bias {
		t := b.weight(name+".bias", rows.of)
		b.others[t.File] += int64(len(t.Data))
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

// matrix binds the part of a matrix that is in both cuts, where it lies.
func (b *binder) matrix(name string, rows, cols cut) cpu.Matrix {
	t := b.weight(name, rows.of, cols.of)
	if b.err != nil {
		return cpu.Matrix{}
	}
	all := cpu.Matrix{Data: t.Data, Type: kernelType(t.DType), Rows: rows.of, Cols: cols.of}
	own := part(all, rows.Range, cols.Range)
	b.others[t.File] += all.Bytes() - own.Bytes()
	return own
}

// part views some rows and columns of a matrix.
func part(w cpu.Matrix, rows, cols modelrunner.Range) cpu.Matrix {
	at := (rows.Lo*w.Cols + cols.Lo) * w.Type.Size()
	end := ((rows.Hi-1)*w.Cols + cols.Hi) * w.Type.Size()
	return cpu.Matrix{Data: w.Data[at:end], Type: w.Type, Rows: rows.Len(), Cols: cols.Len(), Stride: w.Cols}
}

func (b *binder) vector(dst *[]float32, name string, c cut) {
	t := b.weight(name, c.of)
	if b.err != nil {
		return
	}
	b.others[t.File] += int64((c.of - c.Len()) * t.DType.Size())
	t.Data, t.Shape = t.Data[c.Lo*t.DType.Size():c.Hi*t.DType.Size()], []int{c.Len()}
	b.vectors = append(b.vectors, vector{dst, t})
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
