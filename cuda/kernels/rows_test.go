package kernels_test

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/cuda"
)

var rowTests = []kernelTest{
	{[]string{"pack16"}, testPack16, []wrong{set("another base", 7, 8)}},
	{[]string{"pack32"}, testPack32, []wrong{set("another type", 8, int(f16))}},
	{[]string{"embed_f32", "embed_bf16", "embed_f16"}, testEmbed, []wrong{set("rows of another width", 3, 1)}},
	{[]string{"norm_f32", "norm_bf16", "norm_f16", "norms_f32", "norms_bf16", "norms_f16"}, testNorm, []wrong{
		set("epsilon twice as large", 12, float32(2*normEps)), set("one part fewer", 3, 2), set("no bias", 5,
			nil), set("another width", 10, 36),
	}},
}

// testPack16: raw rows to panels, bit for bit; in runs of 8 rows step apart.
func testPack16(k *kernel) {
	for _, c := range []struct{ first, n, cols, step, base int }{
		{8, 19, 37, 16, 0}, {0, 19, 37, 16, 8}, {3, 130, 64, 8, 5}, {0, 1, 1, 8, 0}, {125, 9, 100, 8, 0},
	} {
		k.run(fmt.Sprintf("%+v", c), func(r *run) {
			kb := (c.cols + 31) / 32
			raw := make([]byte, 2*c.n*c.cols)
			for i := range raw {
				raw[i] = byte(r.Uint32())
			}
			last := (c.first+c.n-1)/8*c.step + c.base + 7
			want := poisoned((last + 128) / 128 * kb * 8192)
			for i := range c.n {
				row := (c.first+i)/8*c.step + c.base + (c.first+i)%8
				for j := range kb * 32 {
					v := []byte{0, 0}
					if j < c.cols {
						v = raw[2*(i*c.cols+j):][:2]
					}
					copy(want[at(row, j, kb):], v)
				}
			}
			src, dst := r.in("src", raw), r.out("dst", len(want))
			r.launch("pack16", cuda.Dim{X: (c.n*kb*4 + 255) / 256}, 256, 0, src, dst, c.first, c.n, c.cols, kb, c.step,
				c.base)
			r.same(dst, want)
		})
	}
}

// testPack32: raw rows of any type to float32 rows; the padding is left alone.
func testPack32(k *kernel) {
	for _, d := range []dtype{bf16, f16, f32} {
		for _, c := range []struct{ first, n, cols, step, base int }{{5, 19, 37, 16, 8}, {0, 3, 64, 8, 2}} {
			k.run(fmt.Sprintf("%s %+v", d, c), func(r *run) {
				kb := (c.cols + 31) / 32
				m := random(r.Rand, d, c.n, c.cols, 1)
				raw := make([]byte, len(m.v)*d.size())
				for i, v := range m.v {
					d.put(raw[i*d.size():], v)
				}
				want := untouched(((c.first+c.n-1)/8*c.step + c.base + 8) * kb * 32)
				for i := range c.n {
					copy(want[((c.first+i)/8*c.step+c.base+(c.first+i)%8)*kb*32:], m.row(i))
				}
				src, dst := r.in("src", raw), r.out("dst", 4*len(want))
				r.launch("pack32", cuda.Dim{X: (c.n*c.cols + 255) / 256}, 256, 0, src, dst, c.first, c.n, c.cols, kb,
					c.step, c.base, int(d))
				r.near(dst, want, kb*32, 0)
			})
		}
	}
}

// testEmbed: rows of the table as float32, exactly.
func testEmbed(k *kernel) {
	d := typeOf(k.name)
	for _, c := range []struct{ vocab, width, n, threads int }{{301, 37, 5, 256}, {130, 200, 3, 32}, {2, 1, 1, 256}} {
		k.run(fmt.Sprintf("%+v", c), func(r *run) {
			table := r.operand("table", d, rounded, c.vocab, c.width, 1)
			tokens := make([]int, c.n)
			for i := range tokens {
				tokens[i] = r.IntN(c.vocab)
			}
			tokens[0] = c.vocab - 1
			kb := table.blocks()
			x := r.out("x", 4*c.n*kb*32)
			r.launch(k.name, cuda.Dim{X: c.n}, c.threads, 0, table.buffer, r.ints("tokens", tokens...), x, kb)
			want := make([]float64, c.n*kb*32)
			for i, token := range tokens {
				copy(want[i*kb*32:], table.row(token))
			}
			r.near(x, want, kb*32, 0)
		})
	}
}

const normEps = 1e-5

// testNorm: rows whose size is about that of epsilon, so that epsilon shows.
func testNorm(k *kernel) {
	d := typeOf(k.name)
	for _, c := range []struct {
		rows, width, parts, mode int
		pick                     []int // rows that are read; nil: all
		bias                     bool
	}{
		{rows: 5, width: 37, parts: 3, mode: plain, bias: true},
		{rows: 130, width: 64, mode: split},
		{rows: 3, width: 2051, parts: 2, mode: rounded, bias: true}, // longer than what the threads keep in registers
		{rows: 2, width: 4200, mode: split},
		{rows: 9, width: 100, mode: rounded, pick: []int{8, 0, 3, 3}},
		{rows: 1, width: 2, parts: 1, mode: split},
		{rows: 4, width: 257, parts: 16, mode: plain},
	} {
		k.run(fmt.Sprintf("%+v", c), func(r *run) {
			const size = 3e-3
			kb := (c.width + 31) / 32
			ld, stride := kb*32, (c.rows+2)*kb*32
			x0, parts := padded(r, c.rows, c.width, size), newMatrix(max(c.parts, 1), stride)
			for p := range c.parts {
				copy(parts.row(p), padded(r, c.rows, c.width, size).v)
			}
			x, y := r.in("x", floats(x0.v)), r.in("parts", floats(parts.v))
			bias, b := r.vector("bias", c.bias, c.width, 0, size)
			weight, w := r.vector("weight", true, c.width, 1, 0.3)
			n, pick := c.rows, any(nil)
			if c.pick != nil {
				n, pick = len(c.pick), r.ints("rows", c.pick...)
			}
			out := r.activation("out", d, c.mode, n, c.width)
			blocks := n
			if strings.HasPrefix(k.name, "norms") {
				blocks = (n + 7) / 8
			}
			r.launch(k.name, cuda.Dim{X: blocks}, 256, 0, x, pick, y, c.parts, int64(stride), optional(bias), weight,
				out.buffer, int64(out.plane), out.mode, c.width, kb, float32(normEps), n)

			residual, want := slices.Clone(x0.v), newMatrix(n, kb*32)
			for i := range c.rows {
				row := residual[i*ld:][:c.width]
				for j := range row {
					for p := range c.parts {
						row[j] += parts.row(p)[i*ld+j]
					}
					if c.parts > 0 {
						row[j] += b[j]
					}
				}
			}
			for i := range n {
				from := i
				if c.pick != nil {
					from = c.pick[i]
				}
				row := residual[from*ld:][:c.width]
				scale := 1 / math.Sqrt(dot(row, row)/float64(c.width)+float64(float32(normEps)))
				for j, v := range row {
					want.row(i)[j] = v * scale * w[j]
				}
			}
			r.near(x, residual, ld, few)
			r.nearActivation(out, want, want.cols, few)
		})
	}
}

// padded is random rows with zeros up to a multiple of 32 columns.
func padded(r *run, rows, cols int, scale float64) matrix {
	m := newMatrix(rows, (cols+31)/32*32)
	for i := range rows {
		copy(m.row(i), random(r.Rand, f32, 1, cols, scale).v)
	}
	return m
}
