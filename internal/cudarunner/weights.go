package cudarunner

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// dtype is an element type, numbered as in the kernels.
type dtype int32

const (
	f32 dtype = iota
	bf16
	f16
)

func (d dtype) String() string { return [...]string{"f32", "bf16", "f16"}[d] }

func typeOf(d checkpoint.DType) dtype {
	switch d {
	case checkpoint.BF16:
		return bf16
	case checkpoint.F16:
		return f16
	}
	return f32
}

// small is the size of weights below which precision costs nothing that matters.
const small = 512 << 20

// maxHeadDim is what a warp of the attention kernel holds.
const maxHeadDim = 256

// model is a decoder's weights: offsets in one piece of device memory.
type model struct {
	checkpoint.Config
	weight  dtype // of all matrices: the checkpoint's when they agree, else float32
	precise bool  // 16-bit activations keep 16 bits of mantissa in every step
	kvF32   bool
	headPad int // HeadDim rounded up to 8, in the KV cache

	embed  matrix
	layers []layer
	norm   int64
	lmHead matrix // embed when tied
}

type layer struct {
	inputNorm    int64
	qkv          matrix // q, k and v, one under the other
	qNorm, kNorm int64  // none in most architectures
	o            matrix
	postNorm     int64
	gateUp       matrix // rows of both, interleaved by 8
	down         matrix
}

// matrix is a weight [rows, cols] as the kernels want it: see device.h.
type matrix struct {
	at         int64
	rows, cols int
	bias       int64 // none: 0
}

// kb is the number of column blocks of 32.
func (m matrix) kb() int { return (m.cols + 31) / 32 }

// binder finds an architecture's tensors in a checkpoint and gives each its place. It keeps the first error and goes on, so that its callers read like the model.
type binder struct {
	from    *checkpoint.Checkpoint
	weight  dtype
	bytes   int64
	pieces  []piece
	vectors []vector
	err     error
}

// piece is a tensor that is (a part of) a matrix: its row r is row r/8*step + base + r%8 there.
type piece struct {
	src        checkpoint.Tensor
	to         matrix
	step, base int
}

// vector is a norm or a bias, float32 on the device: element i of src is element i/8*step + base + i%8.
type vector struct {
	src        checkpoint.Tensor
	at         int64
	step, base int
}

// bind finds and checks every tensor of the model.
func bind(ckpt *checkpoint.Checkpoint, fast bool) (*model, *binder, error) {
	c := ckpt.Config
	m := &model{Config: c, layers: make([]layer, c.NumLayers), headPad: (c.HeadDim + 7) / 8 * 8}
	b := &binder{from: ckpt, bytes: 256} // offset 0 means none
	b.weight = b.commonType()
	m.embed = b.matrix(c.VocabSize, c.HiddenSize)
	b.rows(m.embed, "model.embed_tokens.weight", c.VocabSize, 8, 0)
	for i := range m.layers {
		b.layer(&m.layers[i], &c, fmt.Sprintf("model.layers.%d.", i))
	}
	m.norm = b.norm("model.norm.weight", c.HiddenSize)
	if m.lmHead = m.embed; !c.TieEmbeddings {
		m.lmHead = b.matrix(c.VocabSize, c.HiddenSize)
		b.rows(m.lmHead, "lm_head.weight", c.VocabSize, 8, 0)
	}
	if b.err == nil && c.HeadDim > maxHeadDim {
		b.err = &checkpoint.Error{File: ckpt.Dir, Reason: "head_dim is too large for the CUDA device", Got: fmt.Sprint(c.HeadDim), Want: fmt.Sprintf("at most %d", maxHeadDim)}
	}
	m.weight = b.weight
	m.precise = b.bytes < small && !fast
	m.kvF32 = m.weight == f32 || m.precise
	return m, b, b.err
}

// commonType is the type of all matrices, or float32 when they differ.
func (b *binder) commonType() dtype {
	common, first := f32, true
	for _, name := range b.from.Names() {
		t, err := b.from.Tensor(name)
		if err != nil || len(t.Shape) != 2 {
			continue
		}
		if d := typeOf(t.DType); first {
			common, first = d, false
		} else if d != common {
			return f32
		}
	}
	return common
}

func (b *binder) layer(l *layer, c *checkpoint.Config, at string) {
	q, kv, inner := c.NumHeads*c.HeadDim, c.NumKVHeads*c.HeadDim, (c.IntermediateSize+7)/8*8
	l.inputNorm = b.norm(at+"input_layernorm.weight", c.HiddenSize)
	l.qkv = b.matrix(q+2*kv, c.HiddenSize)
	for _, p := range []struct {
		name       string
		rows, base int
	}{{"q_proj", q, 0}, {"k_proj", kv, q}, {"v_proj", kv, q + kv}} {
		b.rows(l.qkv, at+"self_attn."+p.name+".weight", p.rows, 8, p.base)
		if c.QKVBias {
			b.bias(&l.qkv, at+"self_attn."+p.name+".bias", p.rows, 8, p.base)
		}
	}
	if c.QKNorm {
		l.qNorm = b.norm(at+"self_attn.q_norm.weight", c.HeadDim)
		l.kNorm = b.norm(at+"self_attn.k_norm.weight", c.HeadDim)
	}
	l.o = b.matrix(c.HiddenSize, q)
	b.rows(l.o, at+"self_attn.o_proj.weight", c.HiddenSize, 8, 0)
	if c.OBias {
		b.bias(&l.o, at+"self_attn.o_proj.bias", c.HiddenSize, 8, 0)
	}
	l.postNorm = b.norm(at+"post_attention_layernorm.weight", c.HiddenSize)
	l.gateUp = b.matrix(2*inner, c.HiddenSize)
	l.down = b.matrix(c.HiddenSize, c.IntermediateSize)
	b.rows(l.gateUp, at+"mlp.gate_proj.weight", c.IntermediateSize, 16, 0)
	b.rows(l.gateUp, at+"mlp.up_proj.weight", c.IntermediateSize, 16, 8)
	b.rows(l.down, at+"mlp.down_proj.weight", c.HiddenSize, 8, 0)
	if c.MLPBias {
		b.bias(&l.gateUp, at+"mlp.gate_proj.bias", c.IntermediateSize, 16, 0)
		b.bias(&l.gateUp, at+"mlp.up_proj.bias", c.IntermediateSize, 16, 8)
		b.bias(&l.down, at+"mlp.down_proj.bias", c.HiddenSize, 8, 0)
	}
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// take gives so many bytes their place.
func (b *binder) take(n int64) int64 {
	at := b.bytes
	b.bytes += (n + 255) / 256 * 256
	return at
}

// matrix takes memory for a matrix; rows and columns are padded.
func (b *binder) matrix(rows, cols int) matrix {
	size := int64(2)
	if b.weight == f32 {
		size = 4
	}
	return matrix{at: b.take(int64(roundUp(rows, 128)) * int64(roundUp(cols, 32)) * size), rows: rows, cols: cols}
}

func (b *binder) tensor(name string, shape ...int) checkpoint.Tensor {
	if b.err != nil {
		return checkpoint.Tensor{}
	}
	t, err := b.from.Weight(name, shape...)
	b.err = err
	return t
}

// rows is a tensor that fills rows of a matrix.
func (b *binder) rows(m matrix, name string, n, step, base int) {
	b.pieces = append(b.pieces, piece{b.tensor(name, n, m.cols), m, step, base})
}

func (b *binder) norm(name string, n int) int64 {
	at := b.take(4 * int64(roundUp(n, 32)))
	b.vectors = append(b.vectors, vector{b.tensor(name, n), at, 8, 0})
	return at
}

func (b *binder) bias(m *matrix, name string, n, step, base int) {
	if m.bias == 0 {
		m.bias = b.take(4 * int64(roundUp(m.rows, 32)))
	}
	b.vectors = append(b.vectors, vector{b.tensor(name, n), m.bias, step, base})
}

// uploadVectors widens norms and biases and copies them to their places.
func (r *Runner) uploadVectors(vectors []vector) error {
	for i := 0; i < len(vectors); {
		v := vectors[i]
		var out []byte
		for ; i < len(vectors) && vectors[i].at == v.at; i++ { // biases of one matrix
			out = vectors[i].widen(out)
		}
		if err := r.weights.CopyFrom(v.at, out); err != nil {
			return err
		}
	}
	return nil
}

// widen puts the vector's elements into out as float32, which grows as needed.
func (v vector) widen(out []byte) []byte {
	n := v.src.Shape[0]
	if need := 4 * ((n-1)/8*v.step + v.base + (n-1)%8 + 1); need > len(out) {
		out = append(out, make([]byte, need-len(out))...)
	}
	for i := range n {
		var x float32
		switch typeOf(v.src.DType) {
		case bf16:
			x = math.Float32frombits(uint32(binary.LittleEndian.Uint16(v.src.Data[2*i:])) << 16)
		case f16:
			x = halfToFloat(binary.LittleEndian.Uint16(v.src.Data[2*i:]))
		default:
			x = math.Float32frombits(binary.LittleEndian.Uint32(v.src.Data[4*i:]))
		}
		binary.LittleEndian.PutUint32(out[4*(i/8*v.step+v.base+i%8):], math.Float32bits(x))
	}
	return out
}

func halfToFloat(h uint16) float32 {
	exp, frac := int(h>>10&31), float64(h&1023)/1024
	x := math.Ldexp(1+frac, exp-15)
	switch {
	case exp == 0:
		x = math.Ldexp(frac, -14)
	case exp == 31 && frac == 0:
		x = math.Inf(1)
	case exp == 31:
		x = math.NaN()
	}
	if h>>15 == 1 {
		x = -x
	}
	return float32(x)
}

// at is the address of an offset in the weights; 0 is none.
func (r *Runner) at(offset int64) cuda.DevicePtr {
	if offset == 0 {
		return 0
	}
	return r.weights.Ptr() + cuda.DevicePtr(offset)
}
