package cpu

import (
	"fmt"
	"math"
	"unsafe"
)

// KVCache is the keys and values of one layer, in pages. K and V are
// [Blocks, KVHeads, BlockSize, HeadDim]: the keys of one head in one block lie together, as rows
// that the matrix kernels can read.
type KVCache struct {
	K, V                                []float32
	Blocks, BlockSize, KVHeads, HeadDim int
}

// Elements is the length of K, and of V.
func (c KVCache) Elements() int { return c.Blocks * c.BlockSize * c.KVHeads * c.HeadDim }

// at is the index of a head's vector at an offset in a block.
func (c KVCache) at(block, head, offset int) int {
	return ((block*c.KVHeads+head)*c.BlockSize + offset) * c.HeadDim
}

func (c KVCache) check() {
	if n := c.Elements(); len(c.K) < n || len(c.V) < n {
		panic(fmt.Sprintf("cpu: KV cache of %d and %d elements, needs [%d, %d, %d, %d]", len(c.K), len(c.V), c.Blocks,
			c.KVHeads, c.BlockSize, c.HeadDim))
	}
}

// WriteKV stores k and v [len(slots), KVHeads, HeadDim] in the cache: row i goes to slot slots[i] =
// block·BlockSize + offset; a negative slot is not stored.
func WriteKV(p *Pool, c KVCache, k, v []float32, slots []int32) {
	c.check()
	rowsOf("WriteKV", len(slots), c.KVHeads*c.HeadDim, k, v)
	p.rows(len(slots), 2*c.KVHeads*c.HeadDim, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			s := int(slots[i])
			if s < 0 {
				continue
			}
			if s >= c.Blocks*c.BlockSize {
				panic(fmt.Sprintf("cpu: WriteKV: slot %d of %d", s, c.Blocks*c.BlockSize))
			}
			for h := range c.KVHeads {
				src, dst := (i*c.KVHeads+h)*c.HeadDim, c.at(s/c.BlockSize, h, s%c.BlockSize)
				copy(c.K[dst:dst+c.HeadDim], k[src:])
				copy(c.V[dst:dst+c.HeadDim], v[src:])
			}
		}
	})
}

// AttnSeq is one sequence's part of a batch: its query rows are the last Len positions of its
// context.
type AttnSeq struct {
	Start, Len int     // rows of q and dst
	Context    int     // positions whose keys and values are in the cache, these rows' own among them
	Blocks     []int32 // block i holds the positions [i·BlockSize, (i+1)·BlockSize)
}

// AttnParams says how a layer attends.
type AttnParams struct {
	Heads  int     // query heads: a multiple of KVHeads; head h reads KV head h / (Heads / KVHeads)
	Scale  float32 // of the scores, usually 1/√HeadDim
	Window int     // a row sees its last Window positions, itself among them; 0: all
	// every row sees the whole context, what comes behind it too: an encoder's attention; without Window
	Bidirectional bool
}

// segment is the number of positions that are reduced together. Segments begin at multiples of it
// and are added up in order: a row's result is the same whether they are worked on one after the
// other or at the same time, and whatever other rows there are.
const segment = 256

// maxTile is the number of query vectors (rows × heads of one KV head) that pass over the cache
// together.
const maxTile = 32

// Attention computes attention over the paged cache: dst and q are [T, Heads, HeadDim]. A row sees
// the positions up to its own, or all of them when it is bidirectional. The keys and values of the
// batch must have been written.
func Attention(p *Pool, dst, q []float32, a AttnParams, c KVCache, seqs []AttnSeq) {
	c.check()
	if a.Heads <= 0 || c.KVHeads <= 0 || a.Heads%c.KVHeads != 0 {
		panic(fmt.Sprintf("cpu: Attention: %d heads over %d KV heads", a.Heads, c.KVHeads))
	}
	var items []attnItem
	group := a.Heads / c.KVHeads
	step := max(1, maxTile/group)
	parts, longest := 0, 0
	for i := range seqs {
		s := &seqs[i]
		rowsOf("Attention", s.Start+s.Len, a.Heads*c.HeadDim, dst, q)
		if s.Len > s.Context || s.Context > len(s.Blocks)*c.BlockSize {
			panic(fmt.Sprintf("cpu: Attention: %d rows, context %d, %d blocks of %d", s.Len, s.Context, len(s.Blocks),
				c.BlockSize))
		}
		for _, b := range s.Blocks[:(s.Context+c.BlockSize-1)/c.BlockSize] {
			if b < 0 || int(b) >= c.Blocks {
				panic(fmt.Sprintf("cpu: Attention: block %d of %d", b, c.Blocks))
			}
		}
		longest = max(longest, min(step, s.Len))
		for row := 0; row < s.Len; row += step {
			it := attnItem{seq: s, row: row, rows: min(step, s.Len-row)}
			first, last := a.sees(s, row), a.last(s, row+it.rows-1)
			it.lo, it.hi = first/segment, last/segment+1
			for h := range c.KVHeads {
				it.head = h
				items = append(items, it)
				parts += it.hi - it.lo
			}
		}
	}
	at := &attention{
		p: p, dst: dst, q: q, AttnParams: a, c: c, group: group,
		stride: group * longest * (2*c.HeadDim + 2 + segment),
	}
	if p.threads > 1 && len(items) < 3*p.threads && parts > len(items) {
		at.split(items, parts)
		return
	}
	p.Run(len(items), max(1, len(items)/(8*p.threads)), func(lo, hi int) {
		buf := p.scratch.get(2 * at.stride)
		defer p.scratch.put(buf)
		for i := lo; i < hi; i++ {
			it := &items[i]
			sum := buf[:at.stride]
			at.segment(it, it.lo, sum)
			for s := it.lo + 1; s < it.hi; s++ {
				next := buf[at.stride:]
				at.segment(it, s, next)
				at.merge(it, sum, next)
			}
			at.finish(it, sum)
		}
	})
}

// last is the last position that a row of a sequence sees.
func (a *AttnParams) last(s *AttnSeq, row int) int {
	if a.Bidirectional {
		return s.Context - 1
	}
	return s.Context - s.Len + row
}

// sees is the first one.
func (a *AttnParams) sees(s *AttnSeq, row int) int { return firstSeen(a.last(s, row), a.Window) }

// firstSeen is the first position that a row at pos sees.
func firstSeen(pos, window int) int {
	if window <= 0 {
		return 0
	}
	return max(0, pos-window+1)
}

// An attnItem is some rows of one sequence with the heads of one KV head, over segments [lo, hi).
type attnItem struct {
	seq       *AttnSeq
	row, rows int
	head      int
	lo, hi    int
}

type attention struct {
	AttnParams
	p      *Pool
	dst, q []float32
	c      KVCache
	group  int
	stride int // of a partial result: outputs, maxima and sums of a tile, then room for its queries and scores
}

// split works on the segments of few items at the same time, then adds them up.
func (at *attention) split(items []attnItem, parts int) {
	type part struct{ item, seg int }
	list := make([]part, 0, parts)
	for i, it := range items {
		for s := it.lo; s < it.hi; s++ {
			list = append(list, part{i, s})
		}
	}
	buf := at.p.scratch.get(parts * at.stride)
	defer at.p.scratch.put(buf)
	at.p.Run(parts, 1, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			at.segment(&items[list[i].item], list[i].seg, buf[i*at.stride:(i+1)*at.stride])
		}
	})
	i := 0
	for j := range items {
		it, sum := &items[j], buf[i*at.stride:]
		for i++; i < parts && list[i].item == j; i++ {
			at.merge(it, sum, buf[i*at.stride:])
		}
		at.finish(it, sum)
	}
}

// partial views a buffer as the outputs, maxima and sums of a tile, and the room behind them.
func (at *attention) partial(it *attnItem, buf []float32) (out, top, sum, room []float32) {
	n := it.rows * at.group
	out, buf = buf[:n*at.c.HeadDim], buf[n*at.c.HeadDim:]
	return out, buf[:n], buf[n : 2*n], buf[2*n:]
}

// segment computes the partial result of a tile over one segment: Σ exp(score - top)·v, top, and Σ
// exp(score - top), for every query vector.
func (at *attention) segment(it *attnItem, seg int, buf []float32) {
	out, top, sum, room := at.partial(it, buf)
	clear(out)
	k, d, n := at.p.k, at.c.HeadDim, it.rows*at.group
	q, scores := at.queries(it, room), room[n*d:]
	lo := max(seg*segment, at.first(it, 0))
	hi := min((seg+1)*segment, at.pos(it, n-1)+1)
	at.runs(it, lo, hi, at.c.K, func(from, length, i int) {
		k.tile(F32, n, length, &scores[from-lo], segment, q, d, unsafe.Pointer(&at.c.K[i]), d, d)
	})
	for v := range n {
		a, b := max(lo, at.first(it, v)), min(hi, at.pos(it, v)+1)
		if a >= b {
			top[v], sum[v] = float32(math.Inf(-1)), 0
			continue
		}
		s := scores[v*segment+a-lo : v*segment+b-lo]
		k.scale(s, at.Scale)
		top[v] = k.max(s)
		sum[v] = k.expSum(s, top[v])
	}
	allLo, allHi := max(lo, at.first(it, n-1)), min(hi, at.pos(it, 0)+1) // what every vector of the tile sees
	at.runs(it, lo, hi, at.c.V, func(from, length, i int) {
		add := func(v, rows, a, b int) { // rows vectors from v on, positions [a, b)
			if a < b {
				k.weighted(rows, &out[v*d], d, &scores[v*segment+a-lo], segment, b-a, &at.c.V[i+(a-from)*d])
			}
		}
		a := min(max(from, allLo), from+length)
		b := max(a, min(from+length, allHi))
		if a > from {
			for v := range n {
				add(v, 1, max(from, at.first(it, v)), min(a, at.pos(it, v)+1))
			}
		}
		add(0, n, a, b)
		if b < from+length {
			for v := range n {
				add(v, 1, max(b, at.first(it, v)), min(from+length, at.pos(it, v)+1))
			}
		}
	})
}

// pos is the last position that a query vector of a tile sees, first the first one.
func (at *attention) pos(it *attnItem, v int) int { return at.last(it.seq, it.row+v/at.group) }

func (at *attention) first(it *attnItem, v int) int { return at.sees(it.seq, it.row+v/at.group) }

// queries puts the query vectors of a tile beside each other; those of one row lie so already.
func (at *attention) queries(it *attnItem, room []float32) *float32 {
	width := at.group * at.c.HeadDim
	from := ((it.seq.Start+it.row)*at.Heads + it.head*at.group) * at.c.HeadDim
	if it.rows == 1 {
		return &at.q[from]
	}
	for r := range it.rows {
		copy(room[r*width:(r+1)*width], at.q[from+r*at.Heads*at.c.HeadDim:])
	}
	return &room[0]
}

// runs calls f for the stretches of positions [lo, hi) that lie in one block: first position,
// length, index of its vector in the cache. The next stretch of x, keys or values, is fetched
// meanwhile: blocks lie apart, so the processor does not foresee it.
func (at *attention) runs(it *attnItem, lo, hi int, x []float32, f func(from, n, i int)) {
	for lo < hi {
		off := lo % at.c.BlockSize
		n := min(hi-lo, at.c.BlockSize-off)
		next := lo + n
		if next < hi {
			i := at.c.at(int(it.seq.Blocks[next/at.c.BlockSize]), it.head, 0)
			prefetch(&x[i], uintptr(min(hi-next, at.c.BlockSize)*at.c.HeadDim))
		}
		f(lo, n, at.c.at(int(it.seq.Blocks[lo/at.c.BlockSize]), it.head, off))
		lo = next
	}
}

// merge adds the partial result of a later segment to sum.
func (at *attention) merge(it *attnItem, sum, next []float32) {
	d := at.c.HeadDim
	o, t, s, _ := at.partial(it, sum)
	o2, t2, s2, _ := at.partial(it, next)
	for v := range t {
		switch {
		case s2[v] == 0: // the row sees nothing of that segment
			continue
		case s[v] == 0:
			t[v], s[v] = t2[v], s2[v]
			copy(o[v*d:(v+1)*d], o2[v*d:])
			continue
		}
		top := max(t[v], t2[v])
		a, b := expf(t[v]-top), expf(t2[v]-top)
		t[v], s[v] = top, float32(s[v]*a)+float32(s2[v]*b)
		at.p.k.scale(o[v*d:(v+1)*d], a)
		at.p.k.axpy(o[v*d:(v+1)*d], o2[v*d:(v+1)*d], b)
	}
}

func (at *attention) finish(it *attnItem, sum []float32) {
	d := at.c.HeadDim
	out, _, s, _ := at.partial(it, sum)
	for v := range s {
		row, head := it.seq.Start+it.row+v/at.group, it.head*at.group+v%at.group
		dst := at.dst[(row*at.Heads+head)*d:][:d]
		copy(dst, out[v*d:(v+1)*d])
		at.p.k.scale(dst, 1/s[v])
	}
}

func expf(x float32) float32 { return float32(math.Exp(float64(x))) }
