// Command gen writes the assembly kernels of package cpu, with avo. Run it by "go generate" in that
// package.
//
// Two rules hold for every function here: VZEROUPPER comes before RET (Go's own float code is
// legacy SSE), and in the AVX-512 functions no instruction is used that has only a VEX form, since
// avo may give it a register above 15.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// isa is what differs between the two tiers.
type isa struct {
	name  string
	lanes int // float32 in a vector
	rows  []int
}

var (
	avx2   = &isa{name: "AVX2", lanes: 8, rows: []int{1, 2, 3}}
	avx512 = &isa{name: "AVX512", lanes: 16, rows: []int{1, 2, 3, 4}}
)

func main() {
	ConstraintExpr("amd64")
	for _, s := range []*isa{avx2, avx512} {
		for _, t := range []string{"F32", "BF16", "F16"} {
			for _, m := range s.rows {
				tile(s, t, m, 4)
			}
			tile(s, t, 1, 1)
			if t != "F32" {
				convert(s, t)
			}
		}
		weighted(s, 1)
		weighted(s, 4)
		elementwise(s)
		reductions(s)
		exponentials(s)
	}
	pause()
	prefetch()
	Generate()
}

func pause() {
	TEXT("pause", NOSPLIT, "func()")
	Doc("pause is a short wait of a spinning thread.")
	for range 8 {
		PAUSE()
	}
	RET()
}

func prefetch() {
	TEXT("prefetch", NOSPLIT, "func(p *float32, n uintptr)")
	Pragma("noescape")
	Doc("prefetch asks for the cache lines of n > 0 numbers, and does not wait for them.")
	p, n := param("p"), param("n")
	Label("line")
	PREFETCHT0(Mem{Base: p})
	ADDQ(Imm(64), p)
	SUBQ(Imm(16), n)
	JHI(LabelRef("line"))
	RET()
}

func (s *isa) wide() bool { return s.lanes == 16 }

func (s *isa) vec() reg.VecVirtual {
	if s.wide() {
		return ZMM()
	}
	return YMM()
}

func (s *isa) zero() reg.VecVirtual {
	v := s.vec()
	s.clear(v)
	return v
}

func (s *isa) clear(v reg.VecVirtual) {
	if s.wide() {
		VPXORD(v, v, v)
	} else {
		VXORPS(v, v, v)
	}
}

func (s *isa) broadcast(m Op) reg.VecVirtual {
	v := s.vec()
	VBROADCASTSS(m, v)
	return v
}

// row is the address of row i ≤ 3 of a matrix; ld3 is three times ld.
func row(base, ld, ld3 reg.Register, i int) Mem {
	switch i {
	case 0:
		return Mem{Base: base}
	case 3:
		return Mem{Base: base, Index: ld3, Scale: 1}
	}
	return Mem{Base: base, Index: ld, Scale: uint8(i)}
}

// bytes is the memory that one vector of weights takes.
func (s *isa) bytes(t string) int {
	if t == "F32" {
		return 4 * s.lanes
	}
	return 2 * s.lanes
}

// load widens one vector of weights; with a mask (AVX-512) lanes outside it are zero and not read.
func (s *isa) load(t string, m Mem, mask reg.Register) reg.VecVirtual {
	v := s.vec()
	switch {
	case t == "F32" && mask != nil:
		VMOVUPS_Z(m, mask, v)
	case t == "F32":
		VMOVUPS(m, v)
	case t == "F16" && mask != nil:
		VCVTPH2PS_Z(m, mask, v)
	case t == "F16":
		VCVTPH2PS(m, v)
	default:
		if mask != nil {
			VPMOVZXWD_Z(m, mask, v)
		} else {
			VPMOVZXWD(m, v)
		}
		VPSLLD(Imm(16), v, v)
	}
	return v
}

// quarter adds the parts of a vector down to four lanes.
func (s *isa) quarter(v reg.VecVirtual) reg.VecVirtual {
	x := XMM()
	if !s.wide() {
		VEXTRACTF128(Imm(1), v, x)
		VADDPS(v.AsX(), x, x)
		return x
	}
	y := YMM()
	VEXTRACTF64X4(Imm(1), v, y)
	VADDPS(v.AsY(), y, y)
	VEXTRACTF32X4(Imm(1), y, x)
	VADDPS(y.AsX(), x, x)
	return x
}

// sum adds all lanes, in the order of sum4.
func (s *isa) sum(v reg.VecVirtual) reg.VecVirtual {
	x, y := s.quarter(v), XMM()
	VPERMILPS(Imm(0x4e), x, y)
	VADDPS(y, x, x)
	VPERMILPS(Imm(0xb1), x, y)
	VADDPS(y, x, x)
	return x
}

// sum4 adds the lanes of four vectors: lanes 0+2 and 1+3, then those.
func (s *isa) sum4(v []reg.VecVirtual) reg.VecVirtual {
	pair := func(a, b reg.VecVirtual) reg.VecVirtual {
		x, y := s.quarter(a), s.quarter(b)
		lo := XMM()
		VUNPCKLPS(y, x, lo) // a0 b0 a1 b1
		VUNPCKHPS(y, x, x)  // a2 b2 a3 b3
		VADDPS(x, lo, lo)
		return lo
	}
	u, w := pair(v[0], v[1]), pair(v[2], v[3])
	r := XMM()
	VSHUFPS(Imm(0x44), w, u, r)
	VSHUFPS(Imm(0xee), w, u, u)
	VADDPS(u, r, r)
	return r
}

// tailMask is the mask of the first n lanes.
func tailMask(n reg.GPVirtual) reg.Register {
	ones, k := GP32(), K()
	MOVL(U32(0xffffffff), ones)
	BZHIL(n.As32(), ones, ones)
	KMOVW(ones, k)
	return k
}

func param(name string) reg.GPVirtual { return Load(Param(name), GP64()).(reg.GPVirtual) }
