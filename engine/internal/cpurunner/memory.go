package cpurunner

import (
	"math"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// workspace is the activations of one step and the logits of some of its rows. Every slice is a
// matrix with a row a token.
type workspace struct {
	share  *modelrunner.Share
	tokens int

	x, h    []float32 // [tokens, HiddenSize] the residual stream, and what a block reads or adds
	q, attn []float32 // [tokens, NumHeads*HeadDim]
	k, v    []float32 // [tokens, NumKVHeads*HeadDim]
	gate    []float32 // [tokens, IntermediateSize], or ExpertSize if that is larger
	up      []float32
	logits  []float32 // [logitRows, VocabSize]; in a rank but the first one, [logitRows, share.Vocab]

	// With experts: what the router says [tokens, NumExperts], the rows of one expert, the sum of all.
	router, expert, mixed []float32

	partial [2][]float32 // [tokens, HiddenSize] in a Group: what the all-reduces after o and down add up
}

// logitRows is how many rows get their logits together: a long prompt's log-probabilities never
// need [tokens, VocabSize].
const logitRows = 64

func (w *workspace) fields() (dst []*[]float32, sizes []int) {
	c := &w.share.Config
	q, kv, logits := c.NumHeads*c.HeadDim, c.NumKVHeads*c.HeadDim, c.VocabSize
	dst = []*[]float32{&w.x, &w.h, &w.q, &w.attn, &w.k, &w.v, &w.gate, &w.up}
	inner := max(c.IntermediateSize, c.ExpertSize)
	sizes = []int{c.HiddenSize, c.HiddenSize, q, q, kv, kv, inner, inner}
	if c.NumExperts > 0 {
		dst = append(dst, &w.router, &w.expert, &w.mixed)
		sizes = append(sizes, c.NumExperts, c.HiddenSize, c.HiddenSize)
	}
	if w.share.Size > 1 {
		dst, sizes = append(dst, &w.partial[0], &w.partial[1]), append(sizes, c.HiddenSize, c.HiddenSize)
	}
	for i := range sizes {
		sizes[i] *= w.tokens
	}
	if !w.share.First() {
		logits = w.share.Vocab.Len()
	}
	if c.Head != checkpoint.OutputHead {
		logits = 0
	}
	return append(dst, &w.logits), append(sizes, min(logitRows, w.tokens)*logits)
}

// size is the number of float32 that the workspace needs.
func (w *workspace) size() int {
	n := 0
	_, sizes := w.fields()
	for _, s := range sizes {
		n += s
	}
	return n
}

func (w *workspace) place(memory []float32) {
	dst, sizes := w.fields()
	for i, n := range sizes {
		*dst[i], memory = memory[:n:n], memory[n:]
	}
}

// ropeTable is the cosines and sines of every position's angles, [positions, HeadDim/2] each;
// filled in as far as positions have come.
type ropeTable struct {
	freqs     []float32
	positions int
	filled    int
	cos, sin  []float32
}

func newRopeTable(r checkpoint.Rope, headDim, positions int) ropeTable {
	t := ropeTable{positions: positions}
	for _, f := range r.InvFreq(headDim) {
		t.freqs = append(t.freqs, float32(f))
	}
	return t
}

// makeRopes allocates the tables of the model's rotary embeddings.
func (r *Runner) makeRopes() error {
	r.ropes = nil
	size := 0
	for _, rope := range r.Ropes() {
		t := newRopeTable(rope, r.HeadDim, r.options.MaxModelLen)
		size += t.size()
		r.ropes = append(r.ropes, t)
	}
	if size == 0 {
		return nil
	}
	memory, err := r.floats("rope", size)
	if err != nil {
		return err
	}
	for i := range r.ropes {
		n := r.ropes[i].size()
		r.ropes[i].place(memory[:n:n])
		memory = memory[n:]
	}
	return nil
}

// size is the number of float32 that the table needs.
func (t *ropeTable) size() int { return 2 * t.positions * len(t.freqs) }

func (t *ropeTable) place(memory []float32) {
	n := len(memory) / 2
	t.cos, t.sin = memory[:n], memory[n:]
}

// fill makes the table ready for positions below n. An angle is a float32 product, as in
// transformers: at large positions its rounding shows.
func (t *ropeTable) fill(n int) {
	if n <= t.filled {
		return
	}
	n = min(max(n, 2*t.filled, 256), t.positions)
	for ; t.filled < n; t.filled++ {
		row := t.filled * len(t.freqs)
		for i, f := range t.freqs {
			sin, cos := math.Sincos(float64(float32(t.filled) * f))
			t.cos[row+i], t.sin[row+i] = float32(cos), float32(sin)
		}
	}
}
