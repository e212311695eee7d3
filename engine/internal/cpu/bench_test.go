package cpu

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// The machines that this runs on are shared, so every benchmark of something that memory bounds
// measures the bound beside it, in turns, and reports medians: "share" is the part of the read
// bandwidth that was reached.

// stream reads memory with all threads, as fast as it comes: each thread reads four streams, as the
// kernels do.
func stream(p *Pool, x []uint64) {
	p.Run(p.Threads(), 1, func(lo, hi int) {
		part := x[lo*len(x)/p.Threads() : hi*len(x)/p.Threads()]
		q := len(part) / 4
		a, b, c, d := part[:q], part[q:2*q], part[2*q:3*q], part[3*q:4*q]
		var sum uint64
		for i := range a {
			sum ^= a[i] ^ b[i] ^ c[i] ^ d[i]
		}
		sink.Add(sum)
	})
}

var sink atomic.Uint64

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

func seconds(f func()) float64 {
	t := time.Now()
	f()
	return time.Since(t).Seconds()
}

// besideStream runs work, which reads this many bytes, in turns with a stream over 128 MB.
func besideStream(b *testing.B, p *Pool, bytes int64, work func()) {
	b.Helper()
	mem := mapped(b, 128<<20)
	x := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8)
	var floor, got []float64
	for b.Loop() {
		floor = append(floor, float64(len(mem))/seconds(func() { stream(p, x) }))
		got = append(got, float64(bytes)/seconds(work))
	}
	f, g := median(floor), median(got)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(f/1e9, "floor-GB/s")
	b.ReportMetric(g/1e9, "GB/s")
	b.ReportMetric(g/f, "share")
	b.ReportMetric(float64(bytes)/g*1e6, "µs")
}

func mapped(b *testing.B, n int) []byte {
	b.Helper()
	buf, err := NewAllocator(AllocatorConfig{}).Alloc("benchmark", int64(n))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = buf.Free() })
	buf.PreferHugePages()
	data := buf.Bytes()
	fill(data)
	return data
}

func fill(data []byte) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range data[:min(len(data), 64<<10)] {
		data[i] = byte(rng.Uint32()) & 0x3b // small positive numbers in every type
	}
	for i := 64 << 10; i < len(data); i *= 2 {
		copy(data[i:], data[:i])
	}
}

// eachPool runs a benchmark with one and two threads, in the tier of TierEnv.
func eachPool(b *testing.B, f func(b *testing.B, p *Pool)) {
	b.Helper()
	for _, n := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", n), func(b *testing.B) {
			t, err := Detect()
			if err != nil {
				b.Fatal(err)
			}
			f(b, pool(b, n, t))
		})
	}
}

func eachType(b *testing.B, f func(b *testing.B, t DType)) {
	b.Helper()
	for _, t := range []DType{F32, BF16, F16} {
		b.Run(t.String(), func(b *testing.B) { f(b, t) })
	}
}

func BenchmarkMatVec(b *testing.B) {
	for _, rows := range []int{32000, 2048} {
		b.Run(fmt.Sprintf("%dx768", rows), func(b *testing.B) {
			eachType(b, func(b *testing.B, t DType) {
				b.Helper()
				eachPool(b, func(b *testing.B, p *Pool) {
					b.Helper()
					w := Matrix{Type: t, Rows: rows, Cols: 768, Data: mapped(b, rows*768*t.Size())}
					x, y := random(rngOf(1), 768), make([]float32, rows)
					besideStream(b, p, w.Bytes(), func() { MatMul(p, y, x, 1, w, nil) })
				})
			})
		})
	}
}

// decoder is all the matrices of a Llama of 110M parameters: 768 wide, 2048 in the MLP, 12 layers,
// 32000 tokens.
type decoder struct {
	layers []layer
	head   Matrix
	bytes  int64
}

type layer struct{ q, k, v, o, gate, up, down Matrix }

func newDecoder(b *testing.B, t DType) *decoder {
	b.Helper()
	d := &decoder{}
	mem := mapped(b, (12*(4*768*768+3*768*2048)+32000*768)*t.Size())
	take := func(rows, cols int) Matrix {
		w := Matrix{Type: t, Rows: rows, Cols: cols, Data: mem[:rows*cols*t.Size()]}
		mem = mem[len(w.Data):]
		d.bytes += w.Bytes()
		return w
	}
	for range 12 {
		d.layers = append(d.layers, layer{
			take(768, 768), take(768, 768), take(768, 768), take(768, 768),
			take(2048, 768), take(2048, 768), take(768, 2048),
		})
	}
	d.head = take(32000, 768)
	return d
}

// pass is the matrix work of m tokens, and of the logits of the last.
func (d *decoder) pass(p *Pool, m int) func() {
	rng := rngOf(1)
	x, q, h, u, y := random(rng, m*768), make([]float32, m*768*3), make([]float32, m*2048), make([]float32,
		m*2048), make([]float32, 32000)
	norm := random(rng, 768)
	return func() {
		for i := range d.layers {
			l := &d.layers[i]
			MatMuls(p, x, m, Linear{Dst: q, W: l.q}, Linear{Dst: q[m*768:], W: l.k}, Linear{Dst: q[m*1536:], W: l.v})
			MatMul(p, q, q[m*768:], m, l.o, nil)
			RMSNorm(p, q, q, norm, m, 768, 1e-5)
			MatMuls(p, q, m, Linear{Dst: h, W: l.gate}, Linear{Dst: u, W: l.up})
			SiLUMul(p, h, h, u)
			MatMul(p, x, h, m, l.down, nil)
			RMSNorm(p, x, x, norm, m, 768, 1e-5)
		}
		MatMul(p, y, x[(m-1)*768:], 1, d.head, nil)
	}
}

func BenchmarkDecode110M(b *testing.B) {
	eachType(b, func(b *testing.B, t DType) {
		b.Helper()
		eachPool(b, func(b *testing.B, p *Pool) {
			b.Helper()
			d := newDecoder(b, t)
			besideStream(b, p, d.bytes, d.pass(p, 1))
		})
	})
}

func BenchmarkPrefill110M(b *testing.B) {
	eachType(b, func(b *testing.B, t DType) {
		b.Helper()
		eachPool(b, func(b *testing.B, p *Pool) {
			b.Helper()
			d := newDecoder(b, t)
			pass := d.pass(p, 128)
			var s []float64
			for b.Loop() {
				s = append(s, seconds(pass))
			}
			b.ReportMetric(128/median(s), "tokens/s")
			b.ReportMetric(0, "ns/op")
		})
	})
}

func BenchmarkGEMM(b *testing.B) {
	ms := []int{128, 8}
	if v, err := strconv.Atoi(os.Getenv("M")); err == nil {
		ms = []int{v}
	}
	for _, m := range ms {
		for _, k := range []int{768, 2048} {
			b.Run(fmt.Sprintf("%dx2048x%d", m, k), func(b *testing.B) {
				eachType(b, func(b *testing.B, t DType) {
					b.Helper()
					eachPool(b, func(b *testing.B, p *Pool) {
						b.Helper()
						w := Matrix{Type: t, Rows: 2048, Cols: k, Data: mapped(b, 2048*k*t.Size())}
						x, y := random(rngOf(1), m*k), make([]float32, m*2048)
						var s []float64
						for b.Loop() {
							s = append(s, seconds(func() { MatMul(p, y, x, m, w, nil) }))
						}
						work := 2 * float64(m) * 2048 * float64(k) / 1e9
						b.ReportMetric(work/median(s), "GFLOP/s")
						b.ReportMetric(work/slices.Min(s), "best-GFLOP/s")
						b.ReportMetric(0, "ns/op")
					})
				})
			})
		}
	}
}
