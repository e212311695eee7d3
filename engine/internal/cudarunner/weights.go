package cudarunner

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

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

// weightStore is a rank's share of a model's weights on its device, and where they come from.
type weightStore struct {
	*device
	*model
	share   modelrunner.Share
	weights *cuda.Memory
	source  modelrunner.Source
	saved   *cuda.Pinned  // the weights, while they are asleep and kept
	took    time.Duration // how long loading took, for reports
}

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
	score  int64  // of a classifier; not packed, for the host
}

// layer is the weights of a layer. Norms are by role; 0 for those that the model has not.
type layer struct {
	norm   [checkpoint.Roles]int64
	qkv    matrix // q, k and v, one under the other
	o      matrix
	gateUp matrix // rows of both, interleaved by 8
	down   matrix
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
	share   modelrunner.Share
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

// vector is a norm or a bias, float32 on the device: element i of src, plus offset, is element
// i/8*step + base + i%8.
type vector struct {
	src        checkpoint.Tensor
	at         int64
	step, base int
	offset     float32
}

// Computes reports whether the kernels compute an architecture.
func Computes(c *checkpoint.Config) bool {
	return !c.Encoder && c.NumExperts == 0
}

// bind finds and checks every tensor of the model, and takes a rank's share.
func bind(ckpt *checkpoint.Checkpoint, share modelrunner.Share, fast bool) (*model, *binder, error) {
	c := ckpt.Config
	m := &model{Config: share.Config, layers: make([]layer, c.NumLayers), headPad: (c.HeadDim + 7) / 8 * 8}
	b := &binder{from: ckpt, share: share, bytes: 256} // offset 0 means none
	whole := b.survey()
	var embedding checkpoint.Weight
	if !Computes(&c) {
		b.err = &checkpoint.Error{
			File: ckpt.Dir, Reason: "the CUDA device does not compute this architecture", Got: c.Architecture,
			Want: `the device "cpu" for it`,
		}
	}
	if c.NumExperts > 0 {
		b.err = &checkpoint.Error{
			File: ckpt.Dir, Field: "num_experts", Reason: "the CUDA device computes no mixtures of experts",
			Got: fmt.Sprint(c.NumExperts), Want: `0, or the device "cpu"`,
		}
	}
	for w := range c.Weights() {
		if b.err != nil {
			break
		}
		switch w.Role {
		case checkpoint.Embedding:
			m.embed = b.matrix(c.VocabSize, c.HiddenSize)
			b.rows(&m.embed, w, 8, 0)
			embedding = w
		case checkpoint.FinalNorm:
			m.norm = b.norm(w)
		case checkpoint.Score:
			m.score = b.flat(w)
		case checkpoint.Output:
			m.lmHead = b.matrix(share.Vocab.Len(), c.HiddenSize)
			b.rows(&m.lmHead, w, 8, 0)
		default:
			b.layer(&m.layers[w.Layer], w)
		}
	}
	if c.TieEmbeddings && c.Head == checkpoint.OutputHead {
		m.lmHead = b.tied(m.embed, embedding)
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

// tied is the output layer of a model whose embedding is its weight: some of its rows, where they
// are when they begin at a panel's first.
func (b *binder) tied(embed matrix, w checkpoint.Weight) matrix {
	own, hidden := b.share.Vocab, embed.cols
	if own.Lo%panelRows == 0 {
		embed.rows = own.Len()
		embed.at += int64(own.Lo) * int64(roundUp(hidden, 32)) * b.size()
		return embed
	}
	m := b.matrix(own.Len(), hidden)
	w.Rows = checkpoint.DimLogits
	b.rows(&m, w, 8, 0)
	return m
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

// layer finds a weight of a layer, and assigns it its place.
func (b *binder) layer(l *layer, w checkpoint.Weight) {
	hidden, q, kv := b.part(checkpoint.DimHidden), b.part(checkpoint.DimQuery), b.part(checkpoint.DimKV)
	inner := b.part(checkpoint.DimInner)
	switch w.Role {
	case checkpoint.Query:
		l.qkv = b.matrix(q+2*kv, hidden)
		b.rows(&l.qkv, w, 8, 0)
	case checkpoint.Key:
		b.rows(&l.qkv, w, 8, q)
	case checkpoint.Value:
		b.rows(&l.qkv, w, 8, q+kv)
	case checkpoint.AttentionOut:
		l.o = b.matrix(hidden, q)
		b.columns(&l.o, w)
	case checkpoint.Gate:
		l.gateUp = b.matrix(2*roundUp(inner, 8), hidden)
		b.rows(&l.gateUp, w, 16, 0)
	case checkpoint.Up:
		b.rows(&l.gateUp, w, 16, 8)
	case checkpoint.Down:
		l.down = b.matrix(hidden, inner)
		b.columns(&l.down, w)
	default:
		l.norm[w.Role] = b.norm(w)
	}
}

// part is how much the rank has of a dimension.
func (b *binder) part(d checkpoint.Dim) int { return b.share.Part(d).Len() }

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

// rows is a weight of which the rank has some rows: they, and their biases, are rows of a matrix.
func (b *binder) rows(m *matrix, w checkpoint.Weight, step, base int) {
	src := rowsOf(b.tensor(w.Name, b.from.Config.Shape(w)...), b.share.Part(w.Rows))
	b.pieces = append(b.pieces, piece{src: src, to: *m, step: step, base: base})
	b.bias(m, w, step, base)
}

// columns is a weight of which the rank has some columns, which are a matrix.
func (b *binder) columns(m *matrix, w checkpoint.Weight) {
	src := b.tensor(w.Name, b.from.Config.Shape(w)...)
	b.pieces = append(b.pieces, piece{src: src, to: *m, step: 8, skip: b.share.Part(w.Cols).Lo})
	b.bias(m, w, 8, 0)
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

func (b *binder) norm(w checkpoint.Weight) int64 {
	n := b.from.Config.Size(w.Rows)
	at := b.take(4 * int64(roundUp(n, 32)))
	b.vectors = append(b.vectors, vector{b.tensor(w.Name, n), at, 8, 0, b.from.Config.NormOffset})
	return at
}

// bias is the bias of a weight, if it has one, beside those of the same matrix.
func (b *binder) bias(m *matrix, w checkpoint.Weight, step, base int) {
	if w.Bias == "" {
		return
	}
	if m.bias == 0 {
		m.bias = b.take(4 * int64(roundUp(m.rows, 32)))
	}
	src := rowsOf(b.tensor(w.Bias, b.from.Config.Size(w.Rows)), b.share.Part(w.Rows))
	b.vectors = append(b.vectors, vector{src, m.bias, step, base, 0})
}

// uploadVectors widens norms and biases and copies them to their places.
func (r *weightStore) uploadVectors(vectors []vector) error {
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
		binary.LittleEndian.PutUint32(out[4*(i/8*v.step+v.base+i%8):], math.Float32bits(x+v.offset))
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
func (r *weightStore) at(offset int64) cuda.DevicePtr {
	if offset == 0 {
		return 0
	}
	return r.weights.Ptr() + cuda.DevicePtr(offset)
}
