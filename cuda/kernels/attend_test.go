package kernels_test

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/cuda"
)

// attend is the reference: the head's weighted mean of the values that the row may see.
func (a *attention) attend(row, head int, q []float64) []float64 {
	seq, position, kv := a.rowSeqs[row], a.positions[row], head/(a.heads/a.kvHeads)
	low := 0
	if a.window > 0 {
		low = max(0, position+1-a.window)
	}
	scores, top := make([]float64, position+1), math.Inf(-1)
	for t := low; t <= position; t++ {
		scores[t] = a.scale * dot(q, a.k[a.at(seq, t, kv):][:a.dim])
		top = max(top, scores[t])
	}
	out, total := make([]float64, a.dim), 0.0
	for t := low; t <= position; t++ {
		p := math.Exp(scores[t] - top)
		total += p
		for j, v := range a.v[a.at(seq, t, kv):][:a.dim] {
			out[j] += p * v
		}
	}
	for j := range out {
		out[j] /= total
	}
	return out
}

// attendTolerance: a score is a sum of dim products and goes through ex2, whose result has the
// score's absolute error as its relative one; scores are a few units here. Weights and values are
// added up in float32.
func attendTolerance(dim, context int) float64 { return 8*sum(dim) + sum(context) }

func testAttend(k *kernel) {
	var kv string
	var lanes, together int
	if _, err := fmt.Sscanf(strings.ReplaceAll(k.name, "_", " "), "attend %s %d %d", &kv, &lanes,
		&together); err != nil {
		panic(err)
	}
	dims := map[int][]int{
		2: {16, 2, 10}, 4: {24, 18, 32}, 8: {40, 64, 34}, 16: {80, 128, 96},
		32: {136, 256, 134},
	}[lanes]
	perKV := []int{1, 1, 1}
	if together == 4 {
		perKV = []int{4, 7, 3}
	}
	for i, c := range []struct {
		fused                        bool
		splits, mode, kvHeads, parts int
		out                          dtype
		seqs                         []sequence
		window                       int
		norms, bias                  bool
	}{
		{true, 3, split, 2, 3, bf16, []sequence{{60, 1}, {1, 1}, {0, 0}, {12, 1}, {13, 1}}, 11, true, true},
		{true, 1, plain, 1, 1, f32, []sequence{{1, 1}, {130, 1}, {2, 1}}, 0, false, true},
		{true, 4, rounded, 1, 2, f16, []sequence{{1, 1}, {90, 1}}, 0, true, false}, // more shares than tokens
		{false, 1, rounded, 2, 1, bf16, []sequence{{9, 9}, {70, 4}}, 6, false, false},
		{false, 2, split, 1, 1, f16, []sequence{{40, 2}, {3, 3}, {100, 1}}, 0, false, false},
	} {
		for j, dim := range dims {
			if i > 0 && j != i%3 { // every head size with the first case, one with each of the others
				continue
			}
			a := &attention{
				heads: c.kvHeads * perKV[j], kvHeads: c.kvHeads, dim: dim, parts: c.parts, norms: c.norms, bias: c.bias, window: c.window, seqs: c.seqs,
				scale: float64(float32(1 / math.Sqrt(float64(dim)))),
			}
			if kv == "f16" {
				a.kv = f16
			}
			k.run(fmt.Sprintf("fused %t, %d shares, %s", c.fused, c.splits, a.shape()), func(r *run) {
				r.attend(k.name, a, together, c.splits, c.fused, c.out, c.mode)
			})
		}
	}
}

func (r *run) attend(name string, a *attention, together, splits int, fused bool, d dtype, mode int) {
	r.build(a, !fused)
	groups := (a.heads/a.kvHeads + together - 1) / together
	units := a.rows * a.kvHeads * groups
	warps, seqs, flag := 8, any(nil), 1
	if !fused {
		warps, seqs, flag = 4, r.ints("seqs", a.rowSeqs...), 0
	}
	out := r.activation("out", d, mode, a.rows, a.heads*a.dim)
	partial, done := r.out("partial", 4*units*splits*together*(a.pad+2)), r.in("done", make([]byte, 4*units))
	shared := 4 * ((together+2+warps*together)*a.pad + warps*together*2)
	args := append(slices.Clone(a.args), seqs, a.tablesBuf, a.maxBlocks, a.window, float32(a.scale), flag, out.buffer,
		int64(out.plane), out.mode, int(d), out.kb, partial, done)
	r.launch(name, cuda.Dim{X: a.rows, Y: a.kvHeads * groups, Z: splits}, 32*warps, shared, args...)
	partial.scratch()
	query := a.query
	if fused {
		query = a.head
		a.write()
	}
	r.nearCache(a)
	tolerance := attendTolerance(a.dim, a.capacity)
	if fused && a.kv == f16 { // the new key and value are rounded to the cache's type
		tolerance += 2 * f16.unit()
	}
	r.nearActivation(out, a.result(query), a.dim, tolerance)
}

// prefillRows is how many rows of a sequence a block takes.
const prefillRows = 64

// testPrefill: queries and weights are rounded to float16 on their way to the tensor cores: a
// weight is off by that unit.
func testPrefill(k *kernel) {
	var dim, together int
	if n, _ := fmt.Sscanf(k.name, "prefill_%d_%d", &dim, &together); n < 2 {
		together = 1
	}
	for _, c := range []struct {
		heads, kvHeads, mode int
		out                  dtype
		seqs                 []sequence
		window               int
	}{
		{4, 2, rounded, bf16, []sequence{{130, 130}, {1, 1}}, 71},
		{3, 3, split, f16, []sequence{{64, 64}, {65, 1}, {200, 37}}, 0},
		{5, 1, rounded, f16, []sequence{{7, 7}, {190, 70}}, 3},
		{2, 1, split, bf16, []sequence{{100, 100}}, 0},
	} {
		a := &attention{
			heads: c.heads * together, kvHeads: c.kvHeads, dim: dim, kv: f16, window: c.window,
			seqs: c.seqs, scale: 1 / math.Sqrt(float64(dim)),
		}
		k.run(a.shape(), func(r *run) {
			r.build(a, true)
			var tiles []int
			row := 0
			for _, s := range a.seqs {
				for at := 0; at < s.rows; at += prefillRows {
					tiles = append(tiles, row+at, min(prefillRows, s.rows-at))
				}
				row += s.rows
			}
			queries := random(r.Rand, f16, a.rows*a.heads, dim, a.scale*math.Log2E)
			data := make([]byte, 2*len(queries.v))
			for i, v := range queries.v {
				f16.put(data[2*(i/dim*dim+queryAt(i%dim)):], v)
			}
			query := func(row, head int) []float64 {
				q := slices.Clone(queries.row(row*a.heads + head))
				for j := range q {
					q[j] /= a.scale * math.Log2E // the reference scales itself
				}
				return q
			}
			out := r.activation("out", c.out, c.mode, a.rows, a.heads*a.dim)
			r.launch(k.name, cuda.Dim{X: len(tiles) / 2, Y: a.heads / together}, 128, 4*prefillRows*(2*dim+16),
				r.in("q", data), a.heads, a.kvHeads, a.kBuf, a.vBuf, a.blockSize,
				a.args[17], a.args[18], r.ints("seqs", a.rowSeqs...), a.tablesBuf, a.maxBlocks, a.window, r.ints("tiles", tiles...), out.buffer, int64(out.plane), out.mode, int(c.out), out.kb)
			r.nearActivation(out, a.result(query), a.dim, 2*f16.unit())
		})
	}
}
