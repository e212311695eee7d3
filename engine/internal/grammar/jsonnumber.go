package grammar

import (
	"encoding/json"
	"math/big"
	"strings"
)

// interval is the bounds of a number; nil is none.
type interval struct{ lo, hi *big.Int }

// span writes the whole numbers of an interval, without a sign, that lie between two bounds of at
// least 0; hi may be nil.
func span(lo, hi *big.Int) expr {
	last := new(big.Int).Exp(big.NewInt(10), big.NewInt(maxDigits), nil)
	last.Sub(last, big.NewInt(1))
	if hi == nil || hi.Cmp(last) > 0 {
		hi = last
	}
	out := alt{}
	for a := new(big.Int).Set(lo); a.Cmp(hi) <= 0; {
		n := len(a.String())
		b := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil)
		b.Sub(b, big.NewInt(1)) // the largest of n digits
		if b.Cmp(hi) > 0 {
			b = hi
		}
		out = append(out, digits(a.String(), b.String()))
		a = new(big.Int).Add(b, big.NewInt(1))
	}
	return out
}

// digits writes the numbers between two of the same length.
func digits(lo, hi string) expr {
	switch {
	case lo == hi:
		return literal(lo)
	case lo[0] == hi[0]:
		return seq{single(lo[0]), digits(lo[1:], hi[1:])}
	case len(lo) == 1:
		var s byteSet
		s.add(lo[0], hi[0])
		return s
	}
	rest := len(lo) - 1
	if strings.Trim(lo[1:], "0") == "" && strings.Trim(hi[1:], "9") == "" {
		var s byteSet
		s.add(lo[0], hi[0])
		return seq{s, rep{digit, rest, rest}}
	}
	out := alt{
		seq{single(lo[0]), digits(lo[1:], strings.Repeat("9", rest))},
		seq{single(hi[0]), digits(strings.Repeat("0", rest), hi[1:])},
	}
	if lo[0]+1 < hi[0] {
		var s byteSet
		s.add(lo[0]+1, hi[0]-1)
		out = append(out, seq{s, rep{digit, rest, rest}})
	}
	return out
}

// wholes writes the whole numbers of an interval.
func (v interval) wholes() expr {
	zero, one := new(big.Int), big.NewInt(1)
	out := alt{}
	if v.hi == nil || v.hi.Sign() >= 0 {
		lo := zero
		if v.lo != nil && v.lo.Sign() > 0 {
			lo = v.lo
		}
		out = append(out, span(lo, v.hi))
	}
	if v.lo == nil || v.lo.Sign() < 0 {
		least := one
		if v.hi != nil && v.hi.Sign() < 0 {
			least = new(big.Int).Neg(v.hi)
		}
		var most *big.Int
		if v.lo != nil {
			most = new(big.Int).Neg(v.lo)
		}
		out = append(out, seq{single('-'), span(least, most)})
	}
	return out
}

// numbers writes the whole numbers of an interval, and fractions between two of them.
func (v interval) numbers() expr {
	one := big.NewInt(1)
	out := alt{v.wholes()}
	up := interval{v.lo, nil}
	if up.lo == nil || up.lo.Sign() < 0 {
		up.lo = new(big.Int)
	}
	if v.hi != nil {
		up.hi = new(big.Int).Sub(v.hi, one)
	}
	if up.hi == nil || up.hi.Cmp(up.lo) >= 0 {
		out = append(out, seq{span(up.lo, up.hi), fraction()})
	}
	down := interval{new(big.Int), nil}
	if v.hi != nil && v.hi.Sign() < 0 {
		down.lo = new(big.Int).Neg(v.hi)
	}
	if v.lo != nil {
		down.hi = new(big.Int).Sub(new(big.Int).Neg(v.lo), one)
	}
	if down.hi == nil || down.hi.Cmp(down.lo) >= 0 {
		out = append(out, seq{single('-'), span(down.lo, down.hi), fraction()})
	}
	return out
}

// rational reads a number of moderate size.
func rational(n json.Number) (*big.Rat, bool) {
	s := n.String()
	if len(s) > 40 {
		return nil, false
	}
	if i := strings.IndexAny(s, "eE"); i >= 0 && len(s)-i > 4 {
		return nil, false
	}
	return new(big.Rat).SetString(s)
}

// atLeast is the smallest whole number at or above r, or above it.
func atLeast(r *big.Rat, exclusive bool) *big.Int {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	if m.Sign() != 0 || exclusive {
		q.Add(q, big.NewInt(1))
	}
	return q
}

// atMost is the largest whole number at or below r, or below it.
func atMost(r *big.Rat, exclusive bool) *big.Int {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	if m.Sign() == 0 && exclusive {
		q.Sub(q, big.NewInt(1))
	}
	return q
}
