package chat

import (
	"cmp"
	"math"
	"strings"
)

// number returns a value as a number: a bool counts as 0 or 1, as in Python.
func number(v any) (i int64, f float64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int64:
		return v, float64(v), true, true
	case float64:
		return 0, v, false, true
	}
	return 0, 0, false, false
}

// equal is Python's ==.
func (r *run) equal(a, b any) bool {
	r.charge(1)
	if r.nested++; r.nested > 10*maxNesting {
		fail(Bound, r.line, "values that are compared nest deeper than %d", 10*maxNesting)
	}
	same := r.same(a, b)
	r.nested--
	return same
}

func (r *run) same(a, b any) bool {
	if ai, af, aInt, ok := number(a); ok {
		bi, bf, bInt, ok := number(b)
		if aInt && bInt {
			return ok && ai == bi
		}
		return ok && af == bf
	}
	same := func(x, y []any) bool {
		if len(x) != len(y) {
			return false
		}
		for i := range x {
			if !r.equal(x[i], y[i]) {
				return false
			}
		}
		return true
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case undefined:
		_, ok := b.(undefined)
		return ok
	case string:
		b, ok := b.(string)
		r.charge(len(a) / 64)
		return ok && a == b
	case []any:
		b, ok := b.([]any)
		return ok && same(a, b)
	case tuple:
		b, ok := b.(tuple)
		return ok && same(a, b)
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for k, v := range a.values {
			if w, ok := b.values[k]; !ok || !r.equal(v, w) {
				return false
			}
		}
		return true
	case *namespace:
		return b == any(a)
	case *lazy:
		return b == any(a)
	case *macro:
		return b == any(a)
	}
	return false
}

// compare is -1, 0 or 1 for Python's ordering, over numbers and over texts; 2 when one is not a
// number (NaN).
func (r *run) compare(op string, a, b any) int {
	r.defined(a)
	r.defined(b)
	if ai, af, aInt, ok := number(a); ok {
		if bi, bf, bInt, ok := number(b); ok {
			if aInt && bInt {
				return cmp.Compare(ai, bi)
			}
			switch {
			case af < bf:
				return -1
			case af > bf:
				return 1
			case math.IsNaN(af) || math.IsNaN(bf):
				return 2
			}
			return 0
		}
	}
	if a, ok := a.(string); ok {
		if b, ok := b.(string); ok {
			r.charge(len(a) / 64)
			return strings.Compare(a, b)
		}
	}
	switch a.(type) {
	case []any, tuple:
		fail(Unsupported, r.line, "ordering lists")
	}
	fail(Runtime, r.line, "'%s' does not go with %s and %s", op, typeName(a), typeName(b))
	return 0
}
