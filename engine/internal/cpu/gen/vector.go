package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// weighted writes acc[r][d] += Σ p[r][t]·v[t][d] for some rows, t in order. What does not fill a
// vector is left out in AVX2.
func weighted(s *isa, rows int) {
	name := fmt.Sprintf("weighted%d%s", rows, s.name)
	TEXT(name, NOSPLIT, "func(acc *float32, d uintptr, p *float32, ldp, n uintptr, v *float32)")
	Pragma("noescape")
	Doc(name + " adds n rows of v, each of d elements, with weights p. n is at least 1, ldp is in bytes.")
	acc, v := param("acc"), param("v")
	left, stride := param("d"), GP64()
	MOVQ(left, stride)
	SHLQ(Imm(2), stride)
	var ldp, ldp3, stride3 reg.GPVirtual
	if rows > 1 {
		ldp, ldp3, stride3 = param("ldp"), GP64(), GP64()
		LEAQ(Mem{Base: ldp, Index: ldp, Scale: 2}, ldp3)
		LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, stride3)
	}
	block := func(name string, vectors int, mask reg.Register) {
		p, n := param("p"), param("n")
		vp := GP64()
		MOVQ(v, vp)
		sum := make([][]reg.VecVirtual, rows)
		out := func(r, i int) Mem { return row(acc, stride, stride3, r).Offset(4 * i * s.lanes) }
		for r := range sum {
			for i := range vectors {
				sum[r] = append(sum[r], s.load("F32", out(r, i), mask))
			}
		}
		Label(name)
		var y []reg.VecVirtual
		for i := range vectors {
			y = append(y, s.load("F32", Mem{Base: vp, Disp: 4 * i * s.lanes}, mask))
		}
		for r := range sum {
			x := s.broadcast(row(p, ldp, ldp3, r))
			for i := range y {
				VFMADD231PS(y[i], x, sum[r][i])
			}
		}
		ADDQ(stride, vp)
		ADDQ(Imm(4), p)
		DECQ(n)
		JNE(LabelRef(name))
		for r := range sum {
			for i := range vectors {
				store(sum[r][i], out(r, i), mask)
			}
		}
		ADDQ(U32(4*vectors*s.lanes), acc)
		ADDQ(U32(4*vectors*s.lanes), v)
		SUBQ(U32(vectors*s.lanes), left)
	}
	vectors := 4
	if !s.wide() && rows > 1 {
		vectors = 2 // sixteen registers
	}
	Label("wide")
	CMPQ(left, U32(vectors*s.lanes))
	JB(LabelRef("narrow"))
	block("wideloop", vectors, nil)
	JMP(LabelRef("wide"))
	Label("narrow")
	CMPQ(left, U32(s.lanes))
	JB(LabelRef("rest"))
	block("narrowloop", 1, nil)
	JMP(LabelRef("narrow"))
	Label("rest")
	if s.wide() {
		TESTQ(left, left)
		JEQ(LabelRef("done"))
		block("restloop", 1, tailMask(left))
	}
	Label("done")
	VZEROUPPER()
	RET()
}

func elementwise(s *isa) {
	TEXT("add"+s.name, NOSPLIT, "func(dst, x *float32, n uintptr)")
	Pragma("noescape")
	Doc("add" + s.name + " adds x to dst.")
	dst, x, n := param("dst"), param("x"), param("n")
	s.loop(n, 4, func(i int, mask reg.Register) {
		m := Mem{Base: dst, Disp: 4 * i * s.lanes}
		v := s.load("F32", m, mask)
		VADDPS(s.load("F32", Mem{Base: x, Disp: 4 * i * s.lanes}, mask), v, v)
		store(v, m, mask)
	}, s.step(dst, x))
	VZEROUPPER()
	RET()

	TEXT("axpy"+s.name, NOSPLIT, "func(dst, x *float32, n uintptr, s float32)")
	Pragma("noescape")
	Doc("axpy" + s.name + " adds s·x to dst.")
	dst, x, n = param("dst"), param("x"), param("n")
	f := s.vec()
	VBROADCASTSS(NewParamAddr("s", 24), f)
	s.loop(n, 4, func(i int, mask reg.Register) {
		m := Mem{Base: dst, Disp: 4 * i * s.lanes}
		v := s.load("F32", m, mask)
		VFMADD231PS(s.load("F32", Mem{Base: x, Disp: 4 * i * s.lanes}, mask), f, v)
		store(v, m, mask)
	}, s.step(dst, x))
	VZEROUPPER()
	RET()

	TEXT("scaleMul"+s.name, NOSPLIT, "func(dst, x, w *float32, n uintptr, s float32)")
	Pragma("noescape")
	Doc("scaleMul" + s.name + " computes dst = (x·s)·w; without w (nil), x·s.")
	dst, x, w := param("dst"), param("x"), param("w")
	n = param("n")
	f = s.vec()
	VBROADCASTSS(NewParamAddr("s", 32), f)
	scaled := func(i int, mask reg.Register) reg.VecVirtual {
		v := s.load("F32", Mem{Base: x, Disp: 4 * i * s.lanes}, mask)
		VMULPS(f, v, v)
		return v
	}
	TESTQ(w, w)
	JEQ(LabelRef("nil"))
	s.loop(n, 4, func(i int, mask reg.Register) {
		v := scaled(i, mask)
		VMULPS(s.load("F32", Mem{Base: w, Disp: 4 * i * s.lanes}, mask), v, v)
		store(v, Mem{Base: dst, Disp: 4 * i * s.lanes}, mask)
	}, s.step(dst, x, w))
	VZEROUPPER()
	RET()
	Label("nil")
	s.loop(n, 4, func(i int, mask reg.Register) {
		store(scaled(i, mask), Mem{Base: dst, Disp: 4 * i * s.lanes}, mask)
	}, s.step(dst, x))
	VZEROUPPER()
	RET()
}

func (s *isa) step(ps ...reg.Register) func(int) {
	return func(vectors int) {
		for _, p := range ps {
			ADDQ(U32(4*vectors*s.lanes), p)
		}
	}
}

func reductions(s *isa) {
	TEXT("sumsq"+s.name, NOSPLIT, "func(x *float32, n uintptr) float32")
	Pragma("noescape")
	Doc("sumsq" + s.name + " is Σ x².")
	x, n := param("x"), param("n")
	sum := []reg.VecVirtual{s.zero(), s.zero(), s.zero(), s.zero()}
	s.loop(n, 4, func(i int, mask reg.Register) {
		v := s.load("F32", Mem{Base: x, Disp: 4 * i * s.lanes}, mask)
		VFMADD231PS(v, v, sum[i])
	}, s.step(x))
	VADDPS(sum[1], sum[0], sum[0])
	VADDPS(sum[3], sum[2], sum[2])
	VADDPS(sum[2], sum[0], sum[0])
	Store(s.sum(sum[0]), ReturnIndex(0))
	VZEROUPPER()
	RET()

	TEXT("max"+s.name, NOSPLIT, "func(x *float32, n uintptr) float32")
	Pragma("noescape")
	Doc("max" + s.name + " is the largest x; n is at least the lanes of a vector.")
	x, n = param("x"), param("n")
	top := s.vec()
	VMOVUPS(Mem{Base: x}, top)
	s.loop(n, 4, func(i int, mask reg.Register) {
		m := Mem{Base: x, Disp: 4 * i * s.lanes}
		if mask != nil {
			VMAXPS(s.load("F32", m, mask), top, mask, top)
		} else {
			VMAXPS(m, top, top)
		}
	}, s.step(x))
	half, other := XMM(), XMM()
	if s.wide() {
		y := YMM()
		VEXTRACTF64X4(Imm(1), top, y)
		VMAXPS(top.AsY(), y, y)
		VEXTRACTF32X4(Imm(1), y, half)
		VMAXPS(y.AsX(), half, half)
	} else {
		VEXTRACTF128(Imm(1), top, half)
		VMAXPS(top.AsX(), half, half)
	}
	VPERMILPS(Imm(0x4e), half, other)
	VMAXPS(other, half, half)
	VPERMILPS(Imm(0xb1), half, other)
	VMAXPS(other, half, half)
	Store(half, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// constants of exp and of the activations, one float32 each.
var (
	constants = map[string]float32{
		"lo": -87.33654, "hi": 88.37626, "log2e": 1.44269504, "ln2hi": 0.693359375, "ln2lo": -2.12194440e-4,
		// Cephes, expf.c: a polynomial for exp(r) - 1 - r over r², |r| ≤ ln 2 / 2.
		"p0": 1.9875691500e-4, "p1": 1.3981999507e-3, "p2": 8.3334519073e-3, "p3": 4.1665795894e-2, "p4": 1.6666665459e-1, "p5": 5.0000001201e-1,
		"one": 1, "minus": -1,
	}
	symbols = map[string]Mem{}
)

func constant(name string) Mem {
	m, ok := symbols[name]
	if !ok {
		m = GLOBL("const_"+name, RODATA|NOPTR)
		DATA(0, U32(math.Float32bits(constants[name])))
		symbols[name] = m
	}
	return m
}

// exp holds the constants of the exponential in registers.
type exp struct {
	s *isa
	c map[string]reg.VecVirtual
}

func newExp(s *isa) *exp {
	e := &exp{s, map[string]reg.VecVirtual{}}
	names := []string{"lo", "hi", "log2e", "ln2hi", "ln2lo", "p0", "p1", "p2", "p3", "p4", "p5", "one"}
	if s.wide() { // sixteen registers are not enough for all of them
		for _, n := range names {
			e.c[n] = s.broadcast(constant(n))
		}
	}
	return e
}

func (e *exp) get(name string) reg.VecVirtual {
	if v, ok := e.c[name]; ok {
		return v
	}
	return e.s.broadcast(constant(name))
}

// of replaces x by exp(x), x clamped to [lo, hi]: exp(x) = 2^n · exp(r), n = round(x / ln 2), r = x
// - n·ln 2 with ln 2 in two parts.
func (e *exp) of(x reg.VecVirtual) reg.VecVirtual {
	s := e.s
	VMAXPS(x, e.get("lo"), x) // a NaN comes out of these when it is the first operand
	VMINPS(x, e.get("hi"), x)
	n, f, r := s.vec(), s.vec(), s.vec()
	VMULPS(e.get("log2e"), x, f)
	VCVTPS2DQ(f, n) // rounds to nearest
	VCVTDQ2PS(n, f)
	VFNMADD231PS(e.get("ln2hi"), f, x)
	VFNMADD231PS(e.get("ln2lo"), f, x)
	VMOVAPS(x, r)
	p := s.vec()
	VMOVAPS(e.get("p0"), p)
	for _, c := range []string{"p1", "p2", "p3", "p4", "p5"} {
		VFMADD213PS(e.get(c), r, p)
	}
	VMULPS(r, p, p)
	VFMADD213PS(r, r, p)
	VADDPS(e.get("one"), p, p)
	VPSLLD(Imm(23), n, n)
	VPADDD(n, p, p)
	return p
}

func exponentials(s *isa) {
	TEXT("expSum"+s.name, NOSPLIT, "func(x *float32, n uintptr, shift float32) float32")
	Pragma("noescape")
	Doc("expSum" + s.name + " replaces x by exp(x - shift) and gives the sum. Where x - shift is below -87.3 it is 0.")
	x, n := param("x"), param("n")
	shift := s.vec()
	VBROADCASTSS(NewParamAddr("shift", 16), shift)
	e := newExp(s)
	sum := s.zero()
	s.loop(n, 2, func(i int, mask reg.Register) {
		m := Mem{Base: x, Disp: 4 * i * s.lanes}
		v := s.load("F32", m, mask)
		VSUBPS(shift, v, v)
		// Lanes below lo, to be set to zero.
		if s.wide() {
			keep := K()
			VCMPPS(Imm(0x15), e.get("lo"), v, keep) // not less: a NaN is kept
			if mask != nil {
				KANDW(mask, keep, keep)
			}
			y, z := e.of(v), s.vec()
			VMOVAPS_Z(y, keep, z)
			VADDPS(z, sum, sum)
			store(z, m, mask)
		} else {
			keep := s.vec()
			VCMPPS(Imm(0x15), e.get("lo"), v, keep)
			y := e.of(v)
			VANDPS(keep, y, y)
			VADDPS(y, sum, sum)
			store(y, m, nil)
		}
	}, s.step(x))
	Store(s.sum(sum), ReturnIndex(0))
	VZEROUPPER()
	RET()

	TEXT("siluMul"+s.name, NOSPLIT, "func(dst, gate, up *float32, n uintptr)")
	Pragma("noescape")
	Doc("siluMul" + s.name + " computes dst = silu(gate)·up = gate / (1 + exp(-gate)) · up.")
	dst, gate, up := param("dst"), param("gate"), param("up")
	n = param("n")
	e = newExp(s)
	s.loop(n, 1, func(_ int, mask reg.Register) {
		g, z := s.load("F32", Mem{Base: gate}, mask), s.vec()
		VMULPS(s.broadcast(constant("minus")), g, z)
		y := e.of(z)
		VADDPS(e.get("one"), y, y)
		VDIVPS(y, g, g)
		VMULPS(s.load("F32", Mem{Base: up}, mask), g, g)
		store(g, Mem{Base: dst}, mask)
	}, s.step(dst, gate, up))
	VZEROUPPER()
	RET()
}
