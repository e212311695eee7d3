package cudarunner

import (
	"encoding/binary"
	"math"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

const (
	logitRows   = 64   // rows that get their logits together
	maxUnits    = 1024 // parts of split attention
	raceShares  = 64   // blocks that share a row of logits
	skinnyRows  = 64   // the most rows that the skinny kernels take
	exactRows   = 16   // with so few rows, activations of two parts cost nothing
	maxSplits   = 16   // parts of a product
	partialRows = 2048 // rows of parts that there is room for, at least
)

// workspace is the activations of one step: offsets in one piece of device memory. Rows are padded
// as device.h says; paddings are zero and stay zero, which is why no two activations share memory.
type workspace struct {
	memory *cuda.Memory
	bytes  int64
	tokens int
	rows   int // of parts

	x               int64    // [tokens, HiddenSize] float32: the residual stream
	h, attn, mlp    activity // inputs of products
	last            activity // rows before the output layer
	qkv, y          int64    // [parts, tokens, columns] float32: products that the next kernel adds up
	sum             int64    // [tokens, HiddenSize] float32: their sum, to be normalized
	q               int64    // [tokens, NumHeads, HeadDim] float16: queries for the prefill kernels
	logits          int64    // [logitRows, VocabSize] float32
	h1, attn1, mlp1 int64    // of a single row, float32
	partial, done   int64    // of split attention
	best, tokensOut int64    // of the draw; tokens only from sift.cu, which reads them again

	// [logitRows, VocabSize] float32: logits of rows with penalties and the like
	edited                                  int64
	tops, bins, borders, lists, kept, found int64 // of sift.cu
	room                                    int   // tokens in a list
}

// activity is room for an activation in any mode.
type activity struct {
	at, plane int64
	kb        int
}

func (w *workspace) plan(r *attention) {
	w.tokens = min(r.options.MaxNumBatchedTokens, passRows)
	padded := roundUp(w.tokens, 128)
	w.rows = max(padded, partialRows)
	take := func(n int) int64 {
		at := w.bytes
		w.bytes += int64(roundUp(max(n, 1), 256))
		return at
	}
	act := func(rows, cols int) activity {
		kb := (cols + 31) / 32
		return activity{at: take(rows * kb * 128), plane: int64(rows * kb * 64), kb: kb}
	}
	hidden, q := roundUp(r.HiddenSize, 32), r.NumHeads*r.HeadDim
	w.x = take(4 * padded * hidden)
	w.h, w.attn, w.mlp = act(padded, r.HiddenSize), act(padded, q), act(padded, r.IntermediateSize)
	w.last = act(128, r.HiddenSize)
	parts := r.layers[0].qkv.rows
	if r.Activation != checkpoint.SiLU { // gates and their like come in parts as well
		parts = max(parts, r.layers[0].gateUp.rows)
	}
	w.qkv, w.y = take(4*w.rows*parts), take(4*w.rows*hidden)
	if r.PostNorms {
		w.sum = take(4 * padded * hidden)
	}
	if r.tiled() {
		w.q = take(2 * padded * q)
	}
	vocab := r.VocabSize
	if r.Head != checkpoint.OutputHead {
		vocab = 1
	}
	w.logits = take(4 * logitRows * vocab)
	w.h1, w.attn1, w.mlp1 = take(4*hidden), take(4*roundUp(q, 32)), take(4*roundUp(r.IntermediateSize, 32))
	w.partial, w.done = take(4*maxUnits*headsTogether*(r.headPad+2)), take(4*maxUnits)
	w.best, w.tokensOut = take(16*logitRows*raceShares), take(4*logitRows)
	w.room = min(listedMost, vocab)
	w.edited, w.tops, w.bins = take(4*logitRows*vocab), take(2*4*logitRows*raceShares), take(2*logitRows*binsBytes)
	w.borders, w.lists = take(2*borderBytes*logitRows), take(2*8*logitRows*w.room)
	w.kept, w.found = take(16*logitRows), take(logitRows*int(foundBytes))
}

// ptr is an address in the workspace.
func (w *workspace) ptr(at int64) cuda.DevicePtr { return w.memory.Ptr() + cuda.DevicePtr(at) }

// ropeTable is the cosines and sines of every position's angles, [positions, HeadDim/2] each;
// filled in as far as positions have come.
type ropeTable struct {
	memory    *cuda.Memory
	freqs     []float32
	positions int
	filled    int
}

func newRopeTable(r checkpoint.Rope, headDim, positions int) ropeTable {
	t := ropeTable{positions: positions}
	for _, f := range r.InvFreq(headDim) {
		t.freqs = append(t.freqs, float32(f))
	}
	return t
}

func (t *ropeTable) bytes() int64 { return 2 * 4 * int64(t.positions) * int64(len(t.freqs)) }

func (t *ropeTable) cos() cuda.DevicePtr { return t.memory.Ptr() }
func (t *ropeTable) sin() cuda.DevicePtr { return t.memory.Ptr() + cuda.DevicePtr(t.bytes()/2) }

// fill makes the table ready for positions below n. An angle is a float32 product, as in
// transformers: at large positions its rounding shows.
func (t *ropeTable) fill(n int) error {
	if n <= t.filled {
		return nil
	}
	n = min(max(n, 2*t.filled, 2048), t.positions)
	var cos, sin []byte
	for p := t.filled; p < n; p++ {
		for _, f := range t.freqs {
			s, c := math.Sincos(float64(float32(p) * f))
			cos = binary.LittleEndian.AppendUint32(cos, math.Float32bits(float32(c)))
			sin = binary.LittleEndian.AppendUint32(sin, math.Float32bits(float32(s)))
		}
	}
	at := 4 * int64(t.filled) * int64(len(t.freqs))
	if err := t.memory.CopyFrom(at, cos); err != nil {
		return err
	}
	if err := t.memory.CopyFrom(t.bytes()/2+at, sin); err != nil {
		return err
	}
	t.filled = n
	return nil
}
