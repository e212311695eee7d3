package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// tile writes c[i][j] = Σ a[i][t]·w[j][t] for m rows of a and n·groups rows of w. One accumulator
// an output, t in steps of a vector: the order is the same in every tile.
//
// Group g of w is the rows g, g+groups, g+2·groups, …: reading them takes n long streams through
// memory, which the processor prefetches; neighbouring rows would be short ones that end in each
// other.
//
// The end of a row is masked in AVX-512. In AVX2 it is read again as the last full vector, with
// what has been added already set to zero, so k is at least 8 there.
func tile(s *isa, t string, m, n int) {
	name := fmt.Sprintf("tile%dx%d%s%s", m, n, t, s.name)
	TEXT(name, NOSPLIT, "func(c *float32, ldc uintptr, a *float32, lda uintptr, w *byte, ldw uintptr, k, groups uintptr)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s multiplies %d rows of a by %d·groups rows of w. Strides are in bytes.", name, m, n))
	c, w := param("c"), param("w")
	lda, ldw := param("lda"), param("ldw")
	groups := param("groups")
	var lda3, ldw3 reg.Register
	next := ldw // from one group to the next
	if n > 1 {
		next = GP64()
		MOVQ(ldw, next)
		IMULQ(groups, ldw)
	}
	if m > 2 {
		r := GP64()
		LEAQ(Mem{Base: lda, Index: lda, Scale: 2}, r)
		lda3 = r
	}
	if n > 2 {
		r := GP64()
		LEAQ(Mem{Base: ldw, Index: ldw, Scale: 2}, r)
		ldw3 = r
	}
	Label("group")
	a, k := param("a"), param("k")
	wp := GP64()
	MOVQ(w, wp)
	acc := make([][]reg.VecVirtual, m)
	for i := range acc {
		for range n {
			acc[i] = append(acc[i], s.zero())
		}
	}
	step := func(load func(t string, m Mem) reg.VecVirtual, disp int) {
		x := make([]reg.VecVirtual, m) // few registers are left beside the accumulators: one for w
		for i := range x {
			x[i] = load("F32", row(a, lda, lda3, i).Offset(disp*s.bytes("F32")))
		}
		for j := range n {
			y := load(t, row(wp, ldw, ldw3, j).Offset(disp*s.bytes(t)))
			for i := range m {
				VFMADD231PS(y, x[i], acc[i][j])
			}
		}
	}
	plain := func(t string, m Mem) reg.VecVirtual { return s.load(t, m, nil) }
	advance := func(vectors int) {
		ADDQ(U32(vectors*s.bytes("F32")), a)
		ADDQ(U32(vectors*s.bytes(t)), wp)
	}
	SUBQ(U32(2*s.lanes), k)
	JB(LabelRef("one"))
	Label("loop")
	step(plain, 0)
	step(plain, 1)
	advance(2)
	SUBQ(U32(2*s.lanes), k)
	JAE(LabelRef("loop"))
	Label("one")
	ADDQ(U32(s.lanes), k)
	JLT(LabelRef("end"))
	step(plain, 0)
	advance(1)
	SUBQ(U32(s.lanes), k)
	Label("end")
	ADDQ(U32(s.lanes), k)
	JEQ(LabelRef("store"))
	if s.wide() {
		mask := tailMask(k)
		step(func(t string, m Mem) reg.VecVirtual { return s.load(t, m, mask) }, 0)
	} else {
		lastMask(s, t, a, wp, k, func(mask Mem) {
			step(func(t string, m Mem) reg.VecVirtual {
				v := s.load(t, m, nil)
				VANDPS(mask, v, v)
				return v
			}, 0)
		})
	}
	Label("store")
	ldc, cp := param("ldc"), GP64()
	MOVQ(c, cp)
	var step1, step3 reg.GPVirtual // bytes of groups elements, and three times that
	if n == 4 {
		step1, step3 = param("groups"), GP64()
		SHLQ(Imm(2), step1)
		LEAQ(Mem{Base: step1, Index: step1, Scale: 2}, step3)
	}
	for i := range m {
		if n == 4 {
			r := s.sum4(acc[i])
			VMOVSS(r, Mem{Base: cp})
			for j := 1; j < 4; j++ {
				VEXTRACTPS(Imm(uint64(j)), r, row(cp, step1, step3, j))
			}
		} else {
			VMOVSS(s.sum(acc[i][0]), Mem{Base: cp})
		}
		if i < m-1 {
			ADDQ(ldc, cp)
		}
	}
	ADDQ(Imm(4), c)
	ADDQ(next, w)
	DECQ(groups)
	JNE(LabelRef("group"))
	VZEROUPPER()
	RET()
}

var masks Mem

// lastMask moves the pointers back to the last eight elements, and gives the mask of the last k
// lanes of them.
func lastMask(s *isa, t string, a, w, k reg.Register, f func(mask Mem)) {
	if masks.Symbol.Name == "" {
		masks = GLOBL("lastLanes", RODATA|NOPTR)
		for i := range 16 { // eight times 0, then eight times all ones
			v := U32(0)
			if i >= 8 {
				v = 0xffffffff
			}
			DATA(4*i, v)
		}
	}
	back, base := GP64(), GP64()
	MOVQ(k, back)
	SUBQ(Imm(8), back) // k - 8, negative
	LEAQ(Mem{Base: a, Index: back, Scale: 4}, a)
	if t == "F32" {
		LEAQ(Mem{Base: w, Index: back, Scale: 4}, w)
	} else {
		LEAQ(Mem{Base: w, Index: back, Scale: 2}, w)
	}
	LEAQ(masks, base)
	f(Mem{Base: base, Index: k, Scale: 4})
}

// convert writes dst[i] = the float32 of src[i], n a multiple of the lanes; AVX-512 masks the rest.
func convert(s *isa, t string) {
	name := fmt.Sprintf("convert%s%s", t, s.name)
	TEXT(name, NOSPLIT, "func(dst *float32, src *byte, n uintptr)")
	Pragma("noescape")
	Doc(name + " widens n weights.")
	dst, src, n := param("dst"), param("src"), param("n")
	s.loop(n, 2, func(i int, mask reg.Register) {
		store(s.load(t, Mem{Base: src, Disp: i * s.bytes(t)}, mask), Mem{Base: dst, Disp: 4 * i * s.lanes}, mask)
	}, func(v int) {
		ADDQ(U32(v*4*s.lanes), dst)
		ADDQ(U32(v*s.bytes(t)), src)
	})
	VZEROUPPER()
	RET()
}

func store(v reg.VecVirtual, m Mem, mask reg.Register) {
	if mask != nil {
		VMOVUPS(v, mask, m)
	} else {
		VMOVUPS(v, m)
	}
}

var loops int

// loop runs body over n elements, unroll vectors at a time, then one at a time, then (AVX-512) the
// masked rest. In AVX2 what does not fill a vector is left out: the caller sees to it.
func (s *isa) loop(n reg.GPVirtual, unroll int, body func(i int, mask reg.Register), advance func(vectors int)) {
	loops++
	label := func(l string) string { return fmt.Sprintf("%s%d", l, loops) }
	many, one, rest, done := label("many"), label("one"), label("rest"), label("done")
	Label(many)
	CMPQ(n, U32(unroll*s.lanes))
	JB(LabelRef(one))
	for i := range unroll {
		body(i, nil)
	}
	advance(unroll)
	SUBQ(U32(unroll*s.lanes), n)
	JMP(LabelRef(many))
	Label(one)
	CMPQ(n, U32(s.lanes))
	JB(LabelRef(rest))
	body(0, nil)
	advance(1)
	SUBQ(U32(s.lanes), n)
	JMP(LabelRef(one))
	Label(rest)
	if s.wide() {
		TESTQ(n, n)
		JEQ(LabelRef(done))
		body(0, tailMask(n))
	}
	Label(done)
}
