package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// pages is a KV cache for tests whose sequences lie in shuffled blocks.
type pages struct {
	KVCache
	free []int32
	k, v map[int][]float32 // by sequence: [context, KVHeads, HeadDim]
}

func newPages(rng *rand.Rand, blocks, blockSize, kvHeads, dim int) *pages {
	c := &pages{
		KVCache: KVCache{Blocks: blocks, BlockSize: blockSize, KVHeads: kvHeads, HeadDim: dim},
		k:       map[int][]float32{}, v: map[int][]float32{},
	}
	c.K, c.V = make([]float32, c.Elements()), make([]float32, c.Elements())
	for i := range c.K { // what is not written must not be read
		c.K[i], c.V[i] = float32(math.NaN()), float32(math.NaN())
	}
	for _, b := range rng.Perm(blocks) {
		c.free = append(c.free, int32(b))
	}
	return c
}

// add writes a sequence's whole context, and returns its part of a batch in which its last n
// positions are the queries.
func (c *pages) add(p *Pool, rng *rand.Rand, id, context, n, start int) AttnSeq {
	blocks := (context + c.BlockSize - 1) / c.BlockSize
	s := AttnSeq{Start: start, Len: n, Context: context, Blocks: c.free[:blocks]}
	c.free = c.free[blocks:]
	slots := make([]int32, context)
	for i := range slots {
		slots[i] = s.Blocks[i/c.BlockSize]*int32(c.BlockSize) + int32(i%c.BlockSize)
	}
	c.k[id], c.v[id] = random(rng, context*c.KVHeads*c.HeadDim), random(rng, context*c.KVHeads*c.HeadDim)
	WriteKV(p, c.KVCache, c.k[id], c.v[id], slots)
	return s
}

// reference is softmax(q·kᵀ·scale)·v, written down as it is defined.
func (c *pages) reference(a AttnParams, id int, s AttnSeq, q []float32) []float64 {
	d := c.HeadDim
	out := make([]float64, s.Len*a.Heads*d)
	for r := range s.Len {
		pos := s.Context - s.Len + r
		first := 0
		if a.Window > 0 {
			first = max(0, pos-a.Window+1)
		}
		if a.Bidirectional {
			pos = s.Context - 1
		}
		for h := range a.Heads {
			kv := h / (a.Heads / c.KVHeads)
			var scores []float64
			var sum float64
			for t := first; t <= pos; t++ {
				var x float64
				for i := range d {
					x += float64(q[((s.Start+r)*a.Heads+h)*d+i]) * float64(c.k[id][(t*c.KVHeads+kv)*d+i])
				}
				x *= float64(a.Scale)
				scores = append(scores, math.Exp(x))
				sum += scores[len(scores)-1]
			}
			for t := first; t <= pos; t++ {
				for i := range d {
					out[(r*a.Heads+h)*d+i] += scores[t-first] / sum * float64(c.v[id][(t*c.KVHeads+kv)*d+i])
				}
			}
		}
	}
	return out
}

func TestAttentionAgainstFloat64(t *testing.T) {
	type seq struct{ context, n int }
	for _, c := range []struct {
		why                   string
		heads, kv, dim, block int
		window                int
		seqs                  []seq
	}{
		{"one token", 1, 1, 8, 16, 0, []seq{{1, 1}}},
		{"prompt from the start", 4, 4, 64, 16, 0, []seq{{37, 37}}},
		{"decode over several segments", 4, 2, 64, 16, 0, []seq{{700, 1}}},
		{"chunk at the end of a longer context", 8, 2, 32, 16, 0, []seq{{530, 21}}},
		{"mixed batch", 4, 1, 16, 16, 0, []seq{{5, 1}, {300, 1}, {64, 64}, {257, 2}, {90, 10}}},
		{"many rows over two segments", 2, 2, 24, 16, 0, []seq{{280, 280}}},
		{"odd head and block", 6, 3, 40, 7, 0, []seq{{50, 50}, {513, 3}}},
		{"heads that fill no vector", 4, 2, 6, 16, 0, []seq{{40, 40}}},
		{"heads with a rest", 4, 2, 20, 16, 0, []seq{{40, 40}, {300, 1}}},
		{"one position a block", 2, 1, 8, 1, 0, []seq{{20, 4}}},
		{"blocks larger than a segment", 2, 1, 72, 400, 0, []seq{{700, 5}}},
		{"widest head", 2, 1, 256, 32, 0, []seq{{70, 9}}},
		{"window inside a segment", 4, 2, 32, 16, 5, []seq{{40, 40}, {100, 1}}},
		{"window over segments", 4, 2, 32, 16, 300, []seq{{900, 1}, {600, 20}, {270, 90}}},
		{"window of one: the value itself", 2, 2, 16, 16, 1, []seq{{270, 20}}},
		{"more heads than a tile", 64, 1, 16, 16, 0, []seq{{40, 3}}},
	} {
		t.Run(c.why, func(t *testing.T) {
			rng, writer := rngOf(7), pool(t, 2, Generic)
			cache := newPages(rng, 4000/c.block+len(c.seqs), c.block, c.kv, c.dim)
			a := AttnParams{Heads: c.heads, Scale: float32(1 / math.Sqrt(float64(c.dim))), Window: c.window}
			var seqs []AttnSeq
			rows := 0
			for i, s := range c.seqs {
				seqs = append(seqs, cache.add(writer, rng, i, s.context, s.n, rows))
				rows += s.n
			}
			q := random(rng, rows*c.heads*c.dim)
			var want []float64
			for i, s := range seqs {
				want = append(want, cache.reference(a, i, s, q)...)
			}
			eachTier(t, func(t *testing.T, p *Pool) {
				dst := make([]float32, len(q))
				Attention(p, dst, q, a, cache.KVCache, seqs)
				near(t, want, dst, 5e-6, 5e-6)

				// Every row alone, one thread: the same bits.
				one := pool(t, 1, p.Tier())
				alone := make([]float32, len(q))
				for _, s := range seqs {
					for r := range s.Len {
						pos := s.Context - s.Len + r
						Attention(one, alone, q, a, cache.KVCache,
							[]AttnSeq{{Start: s.Start + r, Len: 1, Context: pos + 1, Blocks: s.Blocks}})
					}
				}
				require.Equal(t, bits(alone), bits(dst), "a row's result depends on its batch")
			})
		})
	}
}

func TestWriteKVSkipsNegativeSlots(t *testing.T) {
	p := pool(t, 1, Generic)
	c := KVCache{Blocks: 2, BlockSize: 2, KVHeads: 1, HeadDim: 1, K: make([]float32, 4), V: make([]float32, 4)}
	WriteKV(p, c, []float32{1, 2, 3}, []float32{4, 5, 6}, []int32{3, -1, 0})
	require.Equal(t, []float32{3, 0, 0, 1}, c.K)
	require.Equal(t, []float32{6, 0, 0, 4}, c.V)
	require.PanicsWithValue(t, "cpu: WriteKV: slot 4 of 4", func() {
		WriteKV(p, c, []float32{1}, []float32{1}, []int32{4})
	})
}

func TestAttentionRefusesWhatDoesNotFit(t *testing.T) {
	p := pool(t, 1, Generic)
	c := KVCache{Blocks: 2, BlockSize: 4, KVHeads: 2, HeadDim: 8, K: make([]float32, 128), V: make([]float32, 128)}
	q := make([]float32, 16)
	for _, r := range []struct {
		want  string
		heads int
		seq   AttnSeq
	}{
		{"cpu: Attention: 3 heads over 2 KV heads", 3, AttnSeq{}},
		{"cpu: Attention: 1 rows, context 5, 1 blocks of 4", 2, AttnSeq{Len: 1, Context: 5, Blocks: []int32{0}}},
		{"cpu: Attention: 1 rows, context 0, 1 blocks of 4", 2, AttnSeq{Len: 1, Blocks: []int32{0}}},
		{"cpu: Attention: block 2 of 2", 2, AttnSeq{Len: 1, Context: 1, Blocks: []int32{2}}},
		{
			"cpu: Attention: a slice of 16 elements, needs [2, 16]", 2,
			AttnSeq{Start: 1, Len: 1, Context: 1, Blocks: []int32{0}},
		},
	} {
		require.PanicsWithValue(t, r.want, func() {
			Attention(p, q, q, AttnParams{Heads: r.heads}, c, []AttnSeq{r.seq})
		})
	}
	Attention(p, q, q, AttnParams{Heads: 2}, c, nil) // nothing to do
}

func BenchmarkAttention(b *testing.B) {
	for _, c := range []struct{ context, n int }{{128, 128}, {2048, 128}, {2048, 1}, {128, 1}} {
		b.Run(fmt.Sprintf("rows=%d/context=%d", c.n, c.context), func(b *testing.B) {
			eachPool(b, func(b *testing.B, p *Pool) {
				b.Helper()
				rng := rngOf(1)
				cache := newPages(rng, c.context/16+1, 16, 12, 64)
				s := cache.add(p, rng, 0, c.context, c.n, 0)
				q := random(rng, c.n*768)
				dst := make([]float32, len(q))
				a := AttnParams{Heads: 12, Scale: 0.125}
				for b.Loop() {
					Attention(p, dst, q, a, cache.KVCache, []AttnSeq{s})
				}
				b.ReportMetric(4*768*float64(c.n)*(float64(c.context)-float64(c.n-1)/2)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		})
	}
}

// TestBidirectionalAgainstFloat64 checks that a row sees what comes behind it, over one segment and
// several, alone and in a batch.
func TestBidirectionalAgainstFloat64(t *testing.T) {
	rng, writer := rngOf(3), pool(t, 2, Generic)
	cache := newPages(rng, 200, 16, 2, 24)
	a := AttnParams{Heads: 4, Scale: 0.2, Bidirectional: true}
	var seqs []AttnSeq
	rows := 0
	for i, n := range []int{1, 5, 17, 300} {
		seqs = append(seqs, cache.add(writer, rng, i, n, n, rows))
		rows += n
	}
	q := random(rng, rows*a.Heads*cache.HeadDim)
	var want []float64
	for i, s := range seqs {
		want = append(want, cache.reference(a, i, s, q)...)
	}
	eachTier(t, func(t *testing.T, p *Pool) {
		dst := make([]float32, len(q))
		Attention(p, dst, q, a, cache.KVCache, seqs)
		near(t, want, dst, 5e-6, 5e-6)
		alone := make([]float32, len(q))
		for _, s := range seqs {
			Attention(pool(t, 1, p.Tier()), alone, q, a, cache.KVCache, []AttnSeq{s})
		}
		require.Equal(t, bits(alone), bits(dst), "a sequence's result depends on its batch")
	})
}
