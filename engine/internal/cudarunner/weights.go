package cudarunner

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
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
	checkpoint.Config       // NumHeads, NumKVHeads and IntermediateSize are those of the rank
	weight            dtype // of all matrices: the checkpoint's when they agree, else float32
	precise           bool  // 16-bit activations keep 16 bits of mantissa in every step
	kvF32             bool
	headPad           int // HeadDim rounded up to 8, in the KV cache

	embed  matrix
	layers []layer
	norm   int64
	lmHead matrix // rows of embed when tied
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

// binder finds an architecture's tensors in a checkpoint, and returns each, or the rank's share of
// it, its place. It keeps the first error and goes on, so that its callers read like the model.
type binder struct {
	from    *checkpoint.Checkpoint
	weight  dtype
	bytes   int64
	pieces  []piece
	vectors []vector
	err     error
}

// piece is a tensor that is (a part of) a matrix: its row r is row r/8*step + base + r%8 there. Of
// each row the matrix has the columns from skip on.
type piece struct {
	src        checkpoint.Tensor
	to         matrix
	step, base int
	skip       int
}

// row is how many bytes of a row of src go to the device.
func (p piece) row() int { return len(p.src.Data) / (p.src.Shape[0] * p.src.Shape[1]) * p.to.cols }

// copyRows puts rows of src, as they go to the device, into dst.
func (p piece) copyRows(dst []byte, first, n int) {
	row, stride := p.row(), len(p.src.Data)/p.src.Shape[0]
	if row == stride {
		copy(dst, p.src.Data[first*row:(first+n)*row])
		return
	}
	for i := range n {
		from := (first+i)*stride + p.skip*(row/p.to.cols)
		copy(dst[i*row:], p.src.Data[from:from+row])
	}
}

// vector is a norm or a bias, float32 on the device: element i of src is element i/8*step + base +
// i%8.
type vector struct {
	src        checkpoint.Tensor
	at         int64
	step, base int
}

// bind finds and checks every tensor of the model, and takes a rank's share.
func bind(ckpt *checkpoint.Checkpoint, share modelrunner.Share, fast bool) (*model, *binder, error) {
	c := ckpt.Config
	m := &model{Config: share.Config, layers: make([]layer, c.NumLayers), headPad: (c.HeadDim + 7) / 8 * 8}
	b := &binder{from: ckpt, bytes: 256} // offset 0 means none
	whole := b.survey()
	all := modelrunner.Range{Hi: c.VocabSize}
	m.embed = b.matrix(c.VocabSize, c.HiddenSize)
	b.rows(m.embed, "model.embed_tokens.weight", c.VocabSize, all, 8, 0)
	for i := range m.layers {
		b.layer(&m.layers[i], &c, share, fmt.Sprintf("model.layers.%d.", i))
	}
	m.norm = b.norm("model.norm.weight", c.HiddenSize)
	switch {
	case c.TieEmbeddings && share.Vocab.Lo%panelRows == 0:
		m.lmHead = m.embed
		m.lmHead.rows = share.Vocab.Len()
		m.lmHead.at += int64(share.Vocab.Lo) * int64(roundUp(c.HiddenSize, 32)) * b.size()
	case c.TieEmbeddings:
		m.lmHead = b.matrix(share.Vocab.Len(), c.HiddenSize)
		b.rows(m.lmHead, "model.embed_tokens.weight", c.VocabSize, share.Vocab, 8, 0)
	default:
		m.lmHead = b.matrix(share.Vocab.Len(), c.HiddenSize)
		b.rows(m.lmHead, "lm_head.weight", c.VocabSize, share.Vocab, 8, 0)
	}
	if b.err == nil && c.HeadDim > maxHeadDim {
		b.err = &checkpoint.Error{
			File: ckpt.Dir, Reason: "head_dim is too large for the CUDA device",
			Got: fmt.Sprint(c.HeadDim), Want: fmt.Sprintf("at most %d", maxHeadDim),
		}
	}
	m.weight = b.weight
	m.precise = whole < small && !fast
	m.kvF32 = m.weight == f32 || m.precise
	return m, b, b.err
}

// survey finds the type of all matrices, float32 when they differ, and their size in the
// checkpoint.
func (b *binder) survey() (bytes int64) {
	first, differ := true, false
	for _, name := range b.from.Names() {
		t, err := b.from.Tensor(name)
		if err != nil || len(t.Shape) != 2 {
			continue
		}
		d := typeOf(t.DType)
		differ = differ || !first && d != b.weight
		b.weight, first = d, false
		bytes += int64(len(t.Data))
	}
	if differ {
		b.weight = f32
	}
	return bytes
}

func (b *binder) layer(l *layer, c *checkpoint.Config, share modelrunner.Share, at string) {
	d, hidden := c.HeadDim, c.HiddenSize
	heads, kvHeads := rowsOfHeads(share.Heads, d), rowsOfHeads(share.KVHeads, d)
	q, kv, inner := heads.Len(), kvHeads.Len(), roundUp(share.Intermediate.Len(), 8)
	l.inputNorm = b.norm(at+"input_layernorm.weight", hidden)
	l.qkv = b.matrix(q+2*kv, hidden)
	for _, p := range []struct {
		name string
		of   int
		take modelrunner.Range
		base int
	}{{"q_proj", c.NumHeads * d, heads, 0}, {"k_proj", c.NumKVHeads * d, kvHeads, q}, {
		"v_proj", c.NumKVHeads * d,
		kvHeads, q + kv,
	}} {
		b.rows(l.qkv, at+"self_attn."+p.name+".weight", p.of, p.take, 8, p.base)
		if c.QKVBias {
			b.bias(&l.qkv, at+"self_attn."+p.name+".bias", p.of, p.take, 8, p.base)
		}
	}
	if c.QKNorm {
		l.qNorm = b.norm(at+"self_attn.q_norm.weight", d)
		l.kNorm = b.norm(at+"self_attn.k_norm.weight", d)
	}
	all := modelrunner.Range{Hi: hidden}
	l.o = b.matrix(hidden, q)
	b.columns(l.o, at+"self_attn.o_proj.weight", c.NumHeads*d, heads)
	if c.OBias {
		b.bias(&l.o, at+"self_attn.o_proj.bias", hidden, all, 8, 0)
	}
	l.postNorm = b.norm(at+"post_attention_layernorm.weight", hidden)
	of, take := c.IntermediateSize, share.Intermediate
	l.gateUp = b.matrix(2*inner, hidden)
	l.down = b.matrix(hidden, take.Len())
	b.rows(l.gateUp, at+"mlp.gate_proj.weight", of, take, 16, 0)
	b.rows(l.gateUp, at+"mlp.up_proj.weight", of, take, 16, 8)
	b.columns(l.down, at+"mlp.down_proj.weight", of, take)
	if c.MLPBias {
		b.bias(&l.gateUp, at+"mlp.gate_proj.bias", of, take, 16, 0)
		b.bias(&l.gateUp, at+"mlp.up_proj.bias", of, take, 16, 8)
		b.bias(&l.down, at+"mlp.down_proj.bias", hidden, all, 8, 0)
	}
}

func rowsOfHeads(heads modelrunner.Range, dim int) modelrunner.Range {
	return modelrunner.Range{Lo: heads.Lo * dim, Hi: heads.Hi * dim}
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// take assigns this many bytes their place.
func (b *binder) take(n int64) int64 {
	at := b.bytes
	b.bytes += (n + 255) / 256 * 256
	return at
}

// matrix takes memory for a matrix; rows and columns are padded.
func (b *binder) matrix(rows, cols int) matrix {
	return matrix{
		at: b.take(int64(roundUp(rows, panelRows)) * int64(roundUp(cols, 32)) * b.size()), rows: rows,
		cols: cols,
	}
}

// panelRows is how many rows of a matrix lie together: see device.h.
const panelRows = 128

// size is that of a matrix's element.
func (b *binder) size() int64 {
	if b.weight == f32 {
		return 4
	}
	return 2
}

func (b *binder) tensor(name string, shape ...int) checkpoint.Tensor {
	if b.err != nil {
		return checkpoint.Tensor{}
	}
	t, err := b.from.Weight(name, shape...)
	b.err = err
	return t
}

// rows is a tensor of this many rows, of which some fill rows of a matrix.
func (b *binder) rows(m matrix, name string, of int, take modelrunner.Range, step, base int) {
	b.pieces = append(b.pieces, piece{src: rowsOf(b.tensor(name, of, m.cols), take), to: m, step: step, base: base})
}

// columns is a tensor of this many columns, of which some are a matrix.
func (b *binder) columns(m matrix, name string, of int, take modelrunner.Range) {
	b.pieces = append(b.pieces, piece{src: b.tensor(name, m.rows, of), to: m, step: 8, skip: take.Lo})
}

// rowsOf are some rows of a tensor, or elements of a vector.
func rowsOf(t checkpoint.Tensor, take modelrunner.Range) checkpoint.Tensor {
	if len(t.Shape) == 0 { // not found
		return t
	}
	row := len(t.Data) / t.Shape[0]
	t.Data = t.Data[take.Lo*row : take.Hi*row]
	t.Shape = append([]int{take.Len()}, t.Shape[1:]...)
	return t
}

func (b *binder) norm(name string, n int) int64 {
	at := b.take(4 * int64(roundUp(n, 32)))
	b.vectors = append(b.vectors, vector{b.tensor(name, n), at, 8, 0})
	return at
}

func (b *binder) bias(m *matrix, name string, of int, take modelrunner.Range, step, base int) {
	if m.bias == 0 {
		m.bias = b.take(4 * int64(roundUp(m.rows, 32)))
	}
	b.vectors = append(b.vectors, vector{rowsOf(b.tensor(name, of), take), m.bias, step, base})
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
