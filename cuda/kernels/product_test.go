package kernels_test

import (
	"fmt"
	"math"
	"strings"

	"github.com/enginetest/enginetest/cuda"
)

var productTests = []kernelTest{
	{
		[]string{"gemv_f32", "gemv_bf16", "gemv_f16", "gemv16_bf16", "gemv16_f16"},
		testGemv,
		[]wrong{
			set("epsilon twice as large", 4, float32(2*normEps)), set("no bias", 5, nil),
			set("a row fewer", 8, 36),
		},
	},
	{skinnies(), testSkinny, []wrong{set("no bias", 10, nil), set("a column block fewer", 14, 2)}},
	{
		[]string{"gemm_f32", "gemm_bf16", "gemm_f16"},
		testGemm,
		[]wrong{set("no bias", 11, nil), set("a row more", 12, 131), set("a column block fewer", 15, 3)},
	},
	{
		[]string{"wgmma128_bf16", "wgmma128_f16", "wgmma256_bf16", "wgmma256_f16"},
		testWgmma,
		[]wrong{set("no bias", 7, nil), set("a row more", 8, 131), set("two column blocks fewer", 11, 2)},
	},
}

func skinnies() (names []string) {
	for _, d := range []dtype{bf16, f16} {
		for _, planes := range []string{"", "_split"} {
			for _, n := range []int{8, 16, 32, 64} {
				names = append(names, fmt.Sprintf("skinny%d%s_%s", n, planes, d))
			}
		}
	}
	return names
}

// gated is what SILU makes of a product: rows of the gate and of the up projection interleave by 8.
func gated(y matrix) matrix {
	out := newMatrix(y.rows, y.cols/2)
	for i := range y.rows {
		for j := range out.cols {
			at := j/8*16 + j%8
			out.row(i)[j] = silu(y.row(i)[at]) * y.row(i)[at+8]
		}
	}
	return out
}

// multiply is x wᵀ + bias over the columns [from, to).
func multiply(x, w matrix, bias []float64, from, to int) matrix {
	y := newMatrix(x.rows, w.rows)
	for i := range x.rows {
		for j := range w.rows {
			y.row(i)[j] = dot(x.row(i)[from:to], w.row(j)[from:to])
			if bias != nil {
				y.row(i)[j] += bias[j]
			}
		}
	}
	return y
}

// share is the columns that part p of n takes: whole blocks of 32.
func share(p, n, cols int) (from, to int) {
	kb := (cols + 31) / 32
	return min(kb*p/n*32, cols), min(kb*(p+1)/n*32, cols)
}

func testGemv(k *kernel) {
	d := typeOf(k.name)
	threads := 256
	if d == f32 || strings.HasPrefix(k.name, "gemv16") {
		threads = 512
	}
	for _, c := range []struct {
		rows, cols, mode, blocks int
		norm, bias               bool
	}{
		{rows: 37, cols: 100, mode: store, blocks: 3, norm: true, bias: true},
		// more column blocks than are under way, more groups than blocks
		{rows: 301, cols: 2085, mode: store, blocks: 7, norm: true},
		{rows: 64, cols: 37, mode: siluMode, blocks: 4, norm: true, bias: true},
		{rows: 176, cols: 300, mode: siluMode, blocks: 2},
		{rows: 100, cols: 1, mode: add, blocks: 7, bias: true},
		{rows: 1, cols: 700, mode: add, blocks: 1},
		{rows: 130, cols: 4100, mode: store, blocks: 9, bias: true},
	} {
		k.run(fmt.Sprintf("%+v", c), func(r *run) {
			w := r.operand("w", d, rounded, c.rows, c.cols, 1/math.Sqrt(float64(c.cols)))
			kb := w.blocks()
			size := 1.0
			if c.norm {
				size = 3e-3 // epsilon shows
			}
			x0 := padded(r, 1, c.cols, size)
			weight, nw := r.vector("weight", c.norm, c.cols, 1, 0.3)
			bias, b := r.vector("bias", c.bias, c.rows, 0, 1)
			x := newMatrix(1, c.cols)
			scale := 1.0
			if c.norm {
				scale = 1 / math.Sqrt(dot(x0.v, x0.v)/float64(c.cols)+float64(float32(normEps)))
			}
			for j := range x.v {
				x.v[j] = x0.v[j]
				if c.norm {
					x.v[j] *= scale * nw[j]
				}
			}
			y := multiply(x, w.matrix, b, 0, c.cols)
			var out *buffer
			want := y.v
			switch c.mode {
			case add:
				old := random(r.Rand, f32, 1, c.rows, 1)
				out = r.in("out", floats(old.v))
				for i := range want {
					want[i] += old.v[i]
				}
			case siluMode:
				want = gated(y).v
				out = r.out("out", 4*len(want))
			default:
				out = r.out("out", 4*c.rows)
			}
			r.launch(k.name, cuda.Dim{X: c.blocks}, threads, 2*kb*128, w.buffer, r.in("x", floats(x0.v)),
				optional(weight), c.cols, float32(normEps), optional(bias), out, c.mode, c.rows, kb)
			r.near(out, want, len(want), sum(c.cols))
		})
	}
}

func testSkinny(k *kernel) {
	var most int
	planes := rounded
	if _, err := fmt.Sscanf(k.name, "skinny%d", &most); err != nil {
		panic(err)
	}
	if len(k.name) > len("skinny64_bf16") {
		planes = split
	}
	d := typeOf(k.name)
	for _, c := range []struct {
		tokens, rows, cols, parts, side, mode, act int
		bias                                       bool
	}{
		{tokens: most - 1, rows: 96, cols: 100, parts: 1, side: 1, mode: siluMode, act: split, bias: true},
		{tokens: most, rows: 160, cols: 613, parts: 1, side: 4, mode: siluMode, act: rounded},
		{tokens: most, rows: 301, cols: 700, parts: 3, side: 4, mode: store},
		{tokens: 1, rows: 37, cols: 37, parts: 1, side: 1, mode: store},
		{tokens: most/2 + 1, rows: 129, cols: 1100, parts: 2, side: 1, mode: store},
		{tokens: 3, rows: 64, cols: 1, parts: 1, side: 4, mode: siluMode, act: rounded, bias: true},
		{tokens: most - 3, rows: 250, cols: 320, parts: 1, side: 2, mode: store},
	} {
		k.run(fmt.Sprintf("%+v", c), func(r *run) {
			w := r.operand("w", d, rounded, c.rows, c.cols, 1/math.Sqrt(float64(c.cols)))
			x := r.operand("x", d, planes, c.tokens, c.cols, 1)
			p := r.product(d, x.matrix, w.matrix, c.parts, c.mode, c.act, c.bias)
			grid := cuda.Dim{X: (c.rows + 16*c.side - 1) / (16 * c.side), Y: c.parts}
			r.launch(k.name, grid, 256, 0, w.buffer, x.buffer, int64(x.plane), optional(p.out), p.stride, c.mode,
				optional(p.act.buffer), int64(p.act.plane), p.act.mode, p.act.kb,
				optional(p.bias), c.tokens, c.rows, p.ld, w.blocks(), c.side)
			p.judge(r)
		})
	}
}

func testGemm(k *kernel) {
	d := typeOf(k.name)
	tile, threads, shared := 128, 128, 3*32<<10
	if d == f32 {
		tile, threads, shared = 64, 256, 2*16*65*4
	}
	for _, c := range []struct {
		tokens, rows, cols, parts, planes, mode, act int
		bias                                         bool
	}{
		{tokens: 130, rows: 144, cols: 100, parts: 1, planes: split, mode: add, bias: true},
		{tokens: 129, rows: 272, cols: 37, parts: 1, planes: rounded, mode: siluMode, act: split, bias: true},
		{tokens: 70, rows: 64, cols: 300, parts: 1, planes: split, mode: siluMode, act: rounded},
		{tokens: 65, rows: 131, cols: 330, parts: 3, planes: split, mode: store},
		// more tiles of tokens than go together
		{tokens: 1200, rows: 37, cols: 33, parts: 1, planes: rounded, mode: store},
		{tokens: 2, rows: 129, cols: 1, parts: 1, planes: rounded, mode: add},
		{tokens: 128, rows: 128, cols: 512, parts: 2, planes: rounded, mode: store},
	} {
		k.run(fmt.Sprintf("%+v", c), func(r *run) {
			w := r.operand("w", d, rounded, c.rows, c.cols, 1/math.Sqrt(float64(c.cols)))
			x := r.operand("x", d, c.planes, c.tokens, c.cols, 1)
			p := r.product(d, x.matrix, w.matrix, c.parts, c.mode, c.act, c.bias)
			planes := 1
			if c.planes == split {
				planes = 2
			}
			grid := cuda.Dim{X: (c.tokens + tile - 1) / tile * ((c.rows + tile - 1) / tile), Y: c.parts}
			r.launch(k.name, grid, threads, shared, x.buffer, w.buffer, int64(x.plane), planes, optional(p.out),
				p.stride, c.mode, optional(p.act.buffer), int64(p.act.plane), p.act.mode,
				p.act.kb, optional(p.bias), c.tokens, c.rows, p.ld, w.blocks())
			p.judge(r)
		})
	}
}

// testWgmma: every case has blocks that take several tiles, so that stages, results and their
// barriers come around again.
func testWgmma(k *kernel) {
	d := typeOf(k.name)
	tile, cluster := 128, 1
	if strings.HasPrefix(k.name, "wgmma256") {
		tile, cluster = 256, 2
	}
	for _, c := range []struct {
		tokens, rows, cols, parts, mode, clusters int
		bias                                      bool
	}{
		{tokens: 130, rows: 144, cols: 128, parts: 1, mode: add, clusters: 1, bias: true},
		// an odd number of tiles of tokens
		{tokens: 300, rows: 528, cols: 64, parts: 1, mode: siluMode, clusters: 2, bias: true},
		{tokens: 65, rows: 96, cols: 448, parts: 1, mode: siluMode, clusters: 1},
		{tokens: 70, rows: 132, cols: 1088, parts: 3, mode: store, clusters: 2},
		{tokens: 2200, rows: 36, cols: 64, parts: 1, mode: store, clusters: 3}, // more tiles of tokens than go together
		{tokens: 2, rows: 260, cols: 64, parts: 1, mode: add, clusters: 1},
		{tokens: 256, rows: 256, cols: 512, parts: 2, mode: store, clusters: 2},
	} {
		k.run(fmt.Sprintf("%+v", c), func(r *run) {
			w := r.operand("w", d, rounded, c.rows, c.cols, 1/math.Sqrt(float64(c.cols)))
			x := r.operand("x", d, rounded, c.tokens, c.cols, 1)
			p := r.productTo(d, x.matrix, w.matrix, c.parts, c.mode, rounded, c.bias, c.rows+4,
				func(part int) (from, to int) {
					return c.cols / 64 * part / c.parts * 64, c.cols / 64 * (part + 1) / c.parts * 64
				})
			p.act.whole = true
			r.launchAs(k.name, cuda.Launch{
				Grid: cuda.Dim{X: c.clusters * cluster}, Block: cuda.Dim{X: 384}, Shared: 4*(16<<10+tile*128) +
					8*tile*16 + 64, Cluster: cuda.Dim{X: cluster},
			}, x.buffer, w.buffer, optional(p.out), p.stride, c.mode, optional(p.act.buffer), p.act.kb, optional(p.bias), c.tokens, c.rows, p.ld, w.blocks(), c.parts)
			p.judge(r)
		})
	}
}

// product is where a product of several rows goes, and what has to be there.
type product struct {
	out    *buffer // parts of [tokens][ld], or the residual stream
	ld     int
	stride int64 // elements from one part to the next
	bias   *buffer
	act    *activation // of SILU

	cols  int
	exact [][]float64 // of each part
	gated matrix
}

// product makes room for x wᵀ in every mode, with rows a little longer and parts a little further
// apart than they need be.
func (r *run) product(d dtype, x, w matrix, parts, mode, act int, bias bool) *product {
	return r.productTo(d, x, w, parts, mode, act, bias, w.rows+3, func(part int) (from, to int) {
		return share(part, parts, x.cols)
	})
}

// productTo is product with rows of ld elements, and shares of the columns as the kernel divides
// them.
func (r *run) productTo(d dtype, x, w matrix, parts, mode, act int, bias bool, ld int,
	share func(part int) (from, to int),
) *product {
	p := &product{ld: ld, act: &activation{}, cols: x.cols}
	var b []float64
	if p.bias, b = r.vector("bias", bias, w.rows, 0, 1); mode == store {
		b = nil // whoever adds the parts up adds it
	}
	if mode == siluMode {
		p.gated = gated(multiply(x, w, b, 0, x.cols))
		p.act = r.activation("act", d, act, x.rows, p.gated.cols)
		return p
	}
	p.stride = int64((x.rows + 1) * p.ld)
	all := untouched(parts * int(p.stride))
	old := random(r.Rand, f32, parts, int(p.stride), 1)
	for s := range parts {
		from, to := share(s)
		y := multiply(x, w, b, from, to)
		for i := range x.rows {
			row := all[s*int(p.stride)+i*p.ld:][:w.rows]
			copy(row, y.row(i))
			for j := range row {
				if mode == add {
					row[j] += old.row(s)[i*p.ld+j]
				}
			}
		}
		p.exact = append(p.exact, all[s*int(p.stride):][:p.stride])
	}
	if mode == store {
		p.out = r.out("out", 4*len(all))
		return p
	}
	data := poisoned(4 * len(all))
	for i, v := range all {
		if v == v {
			f32.put(data[4*i:], old.v[i])
		}
	}
	p.out = r.in("out", data)
	return p
}

func (p *product) judge(r *run) {
	if p.out == nil {
		// both factors have errors, and the larger ones meet
		r.nearActivation(p.act, p.gated, p.gated.cols, 4*sum(p.cols))
		return
	}
	var all []float64
	for _, part := range p.exact {
		all = append(all, part...)
	}
	r.near(p.out, all, p.ld, sum(p.cols))
}
