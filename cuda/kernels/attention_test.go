package kernels_test

import (
	"fmt"
	"math"
	"slices"

	"github.com/enginetest/enginetest/cuda"
)

var attentionTests = []kernelTest{
	{[]string{"rope_f32", "rope_f16"}, testRope, []wrong{
		swap("cosines and sines", 8, 9),
		set("epsilon twice as large", 7, float32(2*normEps)), swap("keys and values", 13, 14),
	}},
	{attends(), testAttend, []wrong{
		set("another scale", 24, float32(0.5)), set("a window of one more", 23, 12),
		swap("norms of queries and keys", 5, 6),
	}},
	{
		[]string{"prefill_64", "prefill_64_2", "prefill_80", "prefill_96", "prefill_128"},
		testPrefill,
		[]wrong{swap("keys and values", 3, 4), set("a window of one more", 11, 72)},
	},
	{qkvs(), testQKV, []wrong{
		set("epsilon twice as large", 12, float32(2*normEps)), swap("cosines and sines", 13,
			14), swap("keys and values", 18, 19), set("no bias", 9, nil), swap("norms of queries and keys", 10, 11),
		set("another scale", 26, float32(0.31)), set("two column blocks fewer", 4, 4),
	}},
}

func attends() (names []string) {
	for _, kv := range []dtype{f32, f16} {
		for _, lanes := range []int{2, 4, 8, 16, 32} {
			for _, together := range []int{1, 4} {
				names = append(names, fmt.Sprintf("attend_%s_%d_%d", kv, lanes, together))
			}
		}
	}
	return names
}

func qkvs() (names []string) {
	for _, d := range []dtype{bf16, f16} {
		for _, tile := range []int{128, 256} {
			for _, dim := range []int{64, 128} {
				names = append(names, fmt.Sprintf("wgmma%d_qkv%d_%s", tile, dim, d))
			}
		}
	}
	return names
}

// attention is what the attention kernels have in common: sequences of a model's heads, and their
// paged cache.
type attention struct {
	heads, kvHeads, dim int
	kv                  dtype
	parts               int  // of the product that the heads come from
	norms, bias         bool // of queries and keys; of all heads
	window              int
	seqs                []sequence
	scale               float64

	blockSize, pad, ld, maxBlocks int
	positions, slots, rowSeqs     []int
	tables                        [][]int

	qkv                       matrix // [part][row of ld]: a row here is a part
	b, qNorm, kNorm, cos, sin []float64
	k, v                      []float64 // [block][KV head][offset][pad]; NaN: no one has written it

	args           []any // of the parameters that all these kernels begin with
	qkvBuf         *buffer
	kBuf, vBuf     *buffer
	tablesBuf      *buffer
	rows, capacity int
}

// sequence has this many tokens, the last rows of which are in this step. A sequence of no tokens
// is an empty row: position -1.
type sequence struct{ tokens, rows int }

// build makes the inputs. The tokens of earlier steps are in the cache, and with cached those of
// this step too.
func (r *run) build(a *attention, cached bool) {
	a.blockSize, a.pad = 5, (a.dim+7)/8*8
	a.ld = (a.heads + 2*a.kvHeads) * a.dim
	total, longest := 0, 1
	for _, s := range a.seqs {
		n := (s.tokens + a.blockSize - 1) / a.blockSize
		total, longest = total+n, max(longest, n)
		a.capacity = max(a.capacity, s.tokens)
	}
	a.maxBlocks = longest + 1
	free := r.Perm(total + 2)
	size := (total + 2) * a.kvHeads * a.blockSize * a.pad
	a.k, a.v = untouched(size), untouched(size)
	for i, s := range a.seqs {
		table := slices.Repeat([]int{-1}, a.maxBlocks)
		n := (s.tokens + a.blockSize - 1) / a.blockSize
		copy(table, free[:n])
		free = free[n:]
		a.tables = append(a.tables, table)
		for t := s.tokens - s.rows; t < s.tokens; t++ {
			a.positions = append(a.positions, t)
			a.slots = append(a.slots, table[t/a.blockSize]*a.blockSize+t%a.blockSize)
			a.rowSeqs = append(a.rowSeqs, i)
		}
		if s.tokens == 0 {
			a.positions, a.slots, a.rowSeqs = append(a.positions, -1), append(a.slots, 0), append(a.rowSeqs, i)
		}
		known := s.tokens - s.rows
		if cached {
			known = s.tokens
		}
		for t := range known {
			for h := range a.kvHeads {
				at := a.at(i, t, h)
				copy(a.k[at:], append(random(r.Rand, a.kv, 1, a.dim, 1).v, make([]float64, a.pad-a.dim)...))
				copy(a.v[at:], append(random(r.Rand, a.kv, 1, a.dim, 1).v, make([]float64, a.pad-a.dim)...))
			}
		}
	}
	a.rows = len(a.positions)
	r.upload(a)
}

// at is where the cache has a token of a sequence.
func (a *attention) at(seq, token, kvHead int) int {
	return ((a.tables[seq][token/a.blockSize]*a.kvHeads+kvHead)*a.blockSize + token%a.blockSize) * a.pad
}

func (r *run) upload(a *attention) {
	size := 1.0
	if a.norms {
		size = 3e-3 // epsilon shows
	}
	stride := (a.rows + 1) * a.ld
	parts := max(a.parts, 1)
	a.qkv = random(r.Rand, f32, parts, stride, size)
	a.qkvBuf = r.in("qkv", floats(a.qkv.v))
	bias, b := r.vector("bias", a.bias, a.ld, 0, size)
	qNorm, q := r.vector("q_norm", a.norms, a.dim, 1, 0.3)
	kNorm, k := r.vector("k_norm", a.norms, a.dim, 1, 0.3)
	a.b, a.qNorm, a.kNorm = b, q, k
	angles := random(r.Rand, f32, a.capacity+1, a.dim/2, 2)
	for _, angle := range angles.v {
		a.cos, a.sin = append(a.cos, f32.round(math.Cos(angle))), append(a.sin, f32.round(math.Sin(angle)))
	}
	a.kBuf, a.vBuf = r.cache("k", a.kv, a.k), r.cache("v", a.kv, a.v)
	inverse := (uint64(1)<<40 + uint64(a.blockSize) - 1) / uint64(a.blockSize)
	a.args = []any{
		a.qkvBuf, parts, int64(stride), a.ld, optional(bias), optional(qNorm), optional(kNorm), float32(normEps), r.in("cos", floats(a.cos)), r.in("sin", floats(a.sin)),
		a.heads, a.kvHeads, a.dim, a.kBuf, a.vBuf, a.blockSize, a.pad, inverse, r.ints("positions",
			a.positions...), r.ints("slots", a.slots...),
	}
	a.tablesBuf = r.ints("tables", slices.Concat(a.tables...)...)
}

func (r *run) cache(name string, d dtype, v []float64) *buffer {
	data := poisoned(len(v) * d.size())
	for i, x := range v {
		if x == x {
			d.put(data[i*d.size():], x)
		}
	}
	return r.in(name, data)
}

// head returns a head of a row: parts and bias added up, normalized, turned to the row's position.
// The heads of keys come after those of queries, then those of values.
func (a *attention) head(row, head int) []float64 {
	x := make([]float64, a.dim)
	for j := range x {
		for p := range a.qkv.rows {
			x[j] += a.qkv.row(p)[row*a.ld+head*a.dim+j]
		}
		x[j] += a.b[head*a.dim+j]
	}
	norm := a.qNorm
	switch {
	case head >= a.heads+a.kvHeads:
		return x
	case head >= a.heads:
		norm = a.kNorm
	}
	if a.norms {
		scale := 1 / math.Sqrt(dot(x, x)/float64(a.dim)+float64(float32(normEps)))
		for j := range x {
			x[j] *= scale * norm[j]
		}
	}
	half := a.dim / 2
	for j := range half {
		c, s := a.cos[a.positions[row]*half+j], a.sin[a.positions[row]*half+j]
		x[j], x[half+j] = x[j]*c-x[half+j]*s, x[half+j]*c+x[j]*s
	}
	return x
}

// write puts the keys and values of every row of the step into the reference's cache, unrounded.
func (a *attention) write() {
	for row, position := range a.positions {
		if position < 0 {
			continue
		}
		for h := range a.kvHeads {
			at := a.at(a.rowSeqs[row], position, h)
			copy(a.k[at:], append(a.head(row, a.heads+h), make([]float64, a.pad-a.dim)...))
			copy(a.v[at:], append(a.head(row, a.heads+a.kvHeads+h), make([]float64, a.pad-a.dim)...))
		}
	}
}

// nearCache compares the cache: what no one has written is untouched.
func (r *run) nearCache(a *attention) {
	for _, c := range []struct {
		*buffer
		want []float64
	}{{a.kBuf, a.k}, {a.vBuf, a.v}} {
		r.compare(c.buffer, a.kv, c.want, a.pad, stored(a.kv, rounded, few), func(i int) int { return i * a.kv.size() })
	}
}

// result is what attention of all rows and heads gives; rows without a position stay as they are.
func (a *attention) result(query func(row, head int) []float64) matrix {
	m := newMatrix(a.rows, a.heads*a.dim)
	for row, position := range a.positions {
		if position < 0 {
			copy(m.row(row), untouched(m.cols))
			continue
		}
		for h := range a.heads {
			copy(m.row(row)[h*a.dim:], a.attend(row, h, query(row, h)))
		}
	}
	return m
}

// query is a head as rope left it.
func (a *attention) query(row, head int) []float64 { return a.qkv.v[row*a.ld+head*a.dim:][:a.dim] }

// queryAt is where column j of a head of queries for the prefill kernels lies: see query_at.
func queryAt(j int) int { return (j/16*4+j%8/2)*4 + j/8%2*2 + j%2 }

// queries are all queries as the prefill kernels want them.
func (a *attention) queries(by float64) []float64 {
	out := untouched(a.rows * a.heads * a.dim)
	for row, position := range a.positions {
		for h := range a.heads {
			if position < 0 {
				continue
			}
			for j, v := range a.head(row, h) {
				out[(row*a.heads+h)*a.dim+queryAt(j)] = v * by
			}
		}
	}
	return out
}

// nearQueries compares queries in float16.
func (r *run) nearQueries(b *buffer, want []float64, dim int) {
	r.compare(b, f16, want, dim, few+f16.unit(), func(i int) int { return 2 * i })
}

func testRope(k *kernel) {
	for _, a := range []attention{
		{heads: 6, kvHeads: 2, dim: 24, parts: 3, norms: true, bias: true, seqs: []sequence{{7, 7}, {0, 0}, {12, 3}}},
		{heads: 3, kvHeads: 3, dim: 2, parts: 1, seqs: []sequence{{4, 4}}},
		{heads: 7, kvHeads: 1, dim: 10, parts: 2, bias: true, seqs: []sequence{{1, 1}, {20, 20}}},
		{heads: 2, kvHeads: 1, dim: 80, parts: 1, norms: true, seqs: []sequence{{33, 2}, {0, 0}, {6, 6}}},
		{heads: 8, kvHeads: 8, dim: 128, parts: 4, seqs: []sequence{{9, 9}}},
		{heads: 2, kvHeads: 1, dim: 256, parts: 1, norms: true, bias: true, seqs: []sequence{{5, 5}}},
	} {
		for _, apart := range []bool{false, true} { // queries for the prefill kernels, in heads of blocks of 16
			if apart && a.dim%16 != 0 {
				continue
			}
			k.run(fmt.Sprintf("%s, queries apart %t", a.shape(), apart), func(r *run) {
				a := a
				a.kv = typeOf(k.name)
				r.build(&a, false)
				q, by := (*buffer)(nil), 0.3
				if apart {
					q = r.out("q", 2*a.rows*a.heads*a.dim)
				}
				r.launch(k.name, cuda.Dim{X: (a.rows + 3) / 4, Y: (a.heads + 2*a.kvHeads + 3) / 4}, 128, 0,
					append(slices.Clone(a.args), optional(q), float32(by), a.rows)...)
				a.tablesBuf.scratch()
				if apart {
					r.nearQueries(q, a.queries(float64(float32(by))), a.dim)
				} else {
					want := slices.Clone(a.qkv.v)
					for row, position := range a.positions {
						for h := range a.heads {
							if position >= 0 {
								copy(want[row*a.ld+h*a.dim:], a.head(row, h))
							}
						}
					}
					r.near(a.qkvBuf, want, a.dim, 2*few)
				}
				a.write()
				r.nearCache(&a)
			})
		}
	}
}

// testQKV: the product of queries, keys and values that puts them in their places. What it reads of
// the product's other kernels' arguments is the bias.
func testQKV(k *kernel) {
	var tile, dim int
	if _, err := fmt.Sscanf(k.name, "wgmma%d_qkv%d", &tile, &dim); err != nil {
		panic(err)
	}
	cluster := tile / 128
	for _, a := range []attention{
		{heads: 4, kvHeads: 2, norms: true, bias: true, seqs: []sequence{{7, 7}, {150, 130}}},
		{heads: 3, kvHeads: 1, bias: true, seqs: []sequence{{90, 66}}},
		{heads: 5, kvHeads: 5, seqs: []sequence{{1, 1}, {300, 300}}},
	} {
		a.dim, a.kv, a.parts = dim, f16, 1
		k.run(a.shape(), func(r *run) {
			r.build(&a, false)
			d, cols := typeOf(k.name), 192
			x := r.operand("x", d, rounded, a.rows, cols, 1)
			size := 1 / math.Sqrt(float64(cols))
			if a.norms {
				size *= 3e-3 // epsilon shows
			}
			w := r.operand("w", d, rounded, a.ld, cols, size)
			y := multiply(x.matrix, w.matrix, nil, 0, cols)
			a.qkv = matrix{1, len(y.v), y.v} // one part
			q, by := r.out("q", 2*a.rows*a.heads*a.dim), 0.3
			args := append([]any{x.buffer, w.buffer, a.rows, a.ld, w.blocks()}, a.args...)
			args[5] = any(nil) // the product goes nowhere else
			r.launchAs(k.name, cuda.Launch{
				Grid: cuda.Dim{X: 2 * cluster}, Block: cuda.Dim{X: 384}, Shared: 4*(16<<10+tile*128) + 8*tile*16 +
					64, Cluster: cuda.Dim{X: cluster},
			}, append(args, q, float32(by))...)
			a.tablesBuf.scratch()
			// Errors of the product, of rows of about its size.
			want := a.queries(float64(float32(by)))
			r.compare(q, f16, want, a.dim, 4*sum(cols)+f16.unit(), func(i int) int { return 2 * i })
			a.qkvBuf.scratch()
			a.write()
			r.nearCache(&a)
		})
	}
}

// shape is what tells cases apart.
func (a *attention) shape() string {
	return fmt.Sprintf("heads %d/%d of %d, %d parts, norms %t, window %d, sequences %v", a.heads, a.kvHeads, a.dim,
		a.parts, a.norms, a.window, a.seqs)
}
