package cpurunner

import (
	"github.com/enginetest/enginetest/engine/internal/modelrunner"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// model is a rank's share of a decoder's weights: matrices where they lie in the checkpoint's
// mapped files, norms and biases widened to float32.
type model struct {
	checkpoint.Config       // of the share
	outer             layer // the weights outside the layers
	layers            []layer
}

// layer is the weights of a layer by role; those that the model has not are zero.
type layer struct {
	norm   [checkpoint.Roles][]float32
	linear [checkpoint.Roles]linear

	experts []expert
}

// expert is an MLP that some tokens take.
type expert struct{ gate, up, down linear }

type linear struct {
	w    cpu.Matrix // [out, in]
	bias []float32  // [out] or nil
}

// into is the product's place in a cpu.MatMuls.
func (l linear) into(dst []float32) cpu.Linear { return cpu.Linear{Dst: dst, W: l.w, Bias: l.bias} }

// binder finds a model's tensors in a checkpoint. It keeps the first error and goes on.
type binder struct {
	from    *checkpoint.Checkpoint
	share   modelrunner.Share
	vectors []vector
	others  map[string]int64 // by file: the bytes of its tensors that only other ranks have
	err     error
}

// vector is a norm or bias that waits for its memory.
type vector struct {
	dst    *[]float32
	src    checkpoint.Tensor
	offset float32 // added to every element
}

// bind finds and checks every tensor of the model. Norms and biases get their memory later, in
// widen.
func bind(ckpt *checkpoint.Checkpoint, share modelrunner.Share) (*model, *binder) {
	c := ckpt.Config
	b := &binder{from: ckpt, share: share, others: map[string]int64{}}
	m := &model{Config: share.Config, layers: make([]layer, c.NumLayers)}
	for w := range c.Weights() {
		if b.err != nil {
			break
		}
		l := &m.outer
		if w.Role != checkpoint.Embedding && w.Role < checkpoint.FinalNorm {
			l = &m.layers[w.Layer]
		}
		switch w.Role {
		case checkpoint.ExpertGate:
			l.experts = append(l.experts, expert{})
			b.linear(&l.experts[w.Expert].gate, w)
		case checkpoint.ExpertUp:
			b.linear(&l.experts[w.Expert].up, w)
		case checkpoint.ExpertDown:
			b.linear(&l.experts[w.Expert].down, w)
		default:
			b.plain(l, w)
		}
	}
	if outer := &m.outer.linear; c.Head == checkpoint.OutputHead && c.TieEmbeddings && b.err == nil {
		embed := outer[checkpoint.Embedding].w
		outer[checkpoint.Output].w = part(embed, share.Vocab, modelrunner.Range{Hi: c.HiddenSize})
	}
	return m, b
}

// plain binds a weight of which the layer has one.
func (b *binder) plain(l *layer, w checkpoint.Weight) {
	if !w.IsNorm() {
		b.linear(&l.linear[w.Role], w)
		return
	}
	b.vector(&l.norm[w.Role], w.Name, w.Rows, b.from.Config.NormOffset)
	if w.Bias != "" {
		b.vector(&l.linear[w.Role].bias, w.Bias, w.Rows, 0)
	}
}

// linear binds a matrix and, when the model has it and this rank adds it, its bias.
func (b *binder) linear(l *linear, w checkpoint.Weight) {
	l.w = b.matrix(w)
	switch {
	case w.Bias == "":
	case modelrunner.Sums(w) && !b.share.First(): // the first rank adds it
		t := b.weight(w.Bias, b.from.Config.Size(w.Rows))
		b.others[t.File] += int64(len(t.Data))
	default:
		b.vector(&l.bias, w.Bias, w.Rows, 0)
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

// matrix binds the rank's part of a matrix, where it lies.
func (b *binder) matrix(w checkpoint.Weight) cpu.Matrix {
	shape := b.from.Config.Shape(w)
	t := b.weight(w.Name, shape...)
	if b.err != nil {
		return cpu.Matrix{}
	}
	all := cpu.Matrix{Data: t.Data, Type: kernelType(t.DType), Rows: shape[0], Cols: shape[1]}
	own := part(all, b.share.Part(w.Rows), b.share.Part(w.Cols))
	b.others[t.File] += all.Bytes() - own.Bytes()
	return own
}

// part views some rows and columns of a matrix.
func part(w cpu.Matrix, rows, cols modelrunner.Range) cpu.Matrix {
	at := (rows.Lo*w.Cols + cols.Lo) * w.Type.Size()
	end := ((rows.Hi-1)*w.Cols + cols.Hi) * w.Type.Size()
	return cpu.Matrix{Data: w.Data[at:end], Type: w.Type, Rows: rows.Len(), Cols: cols.Len(), Stride: w.Cols}
}

func (b *binder) vector(dst *[]float32, name string, dim checkpoint.Dim, offset float32) {
	of, own := b.from.Config.Size(dim), b.share.Part(dim)
	t := b.weight(name, of)
	if b.err != nil {
		return
	}
	size := t.DType.Size()
	b.others[t.File] += int64((of - own.Len()) * size)
	t.Data, t.Shape = t.Data[own.Lo*size:own.Hi*size], []int{own.Len()}
	b.vectors = append(b.vectors, vector{dst, t, offset})
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
		if v.offset != 0 {
			for i := range *v.dst {
				(*v.dst)[i] += v.offset
			}
		}
	}
}
