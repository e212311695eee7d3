package chat

import "fmt"

// Jinja looks at a.b as an attribute first and as an item then; at a["b"] the other way round. Of
// the values here, only methods, a loop's and a namespace's names are attributes.

func (e *attribute) eval(r *run, s *scope) any {
	v := e.e.eval(r, s)
	r.line = e.line
	r.charge(1)
	return r.attribute(v, e.name)
}

func (r *run) attribute(v any, name string) any {
	if a, ok := ownAttribute(r.defined(v), name); ok {
		return a
	}
	if d, ok := v.(*Dict); ok {
		if x, ok := d.Get(name); ok {
			return x
		}
	}
	return missing(v, name)
}

func missing(v any, key any) any {
	if v == nil {
		return undefined{fmt.Sprintf("'None' has no attribute '%v'", key)}
	}
	return undefined{fmt.Sprintf("'%s object' has no attribute '%v'", typeName(v), key)}
}

func ownAttribute(v any, name string) (any, bool) {
	switch x := v.(type) {
	case *loop:
		return x.attribute(name)
	case *namespace:
		a, ok := x.vars[name]
		return a, ok
	}
	if m, ok := methodsOf(v)[name]; ok {
		return method{v, name, m}, true
	}
	return nil, false
}

func (e *item) eval(r *run, s *scope) any {
	v := e.e.eval(r, s)
	if sl, ok := e.index.(*sliceExpr); ok {
		bounds := sl.bounds(r, s)
		r.line = e.line
		return r.slice(r.defined(v), bounds)
	}
	index := e.index.eval(r, s)
	r.line = e.line
	r.charge(1)
	return r.item(v, index)
}

func (r *run) item(v, index any) any {
	r.defined(v)
	switch i := index.(type) {
	case string:
		if d, ok := v.(*Dict); ok {
			if x, ok := d.Get(i); ok {
				return x
			}
		}
		if a, ok := ownAttribute(v, i); ok {
			return a
		}
		return missing(v, i)
	case int64, bool:
		n, _, _, _ := number(i)
		switch x := v.(type) {
		case string:
			if c, ok := at(runes(r, x), n); ok {
				return string(c)
			}
		case []any:
			if y, ok := at(x, n); ok {
				return y
			}
		case tuple:
			if y, ok := at(x, n); ok {
				return y
			}
		}
	}
	return missing(v, r.str(index))
}

func at[T any](list []T, i int64) (v T, ok bool) {
	if i < 0 {
		i += int64(len(list))
	}
	if i < 0 || i >= int64(len(list)) {
		return v, false
	}
	return list[i], true
}

func runes(r *run, s string) []rune {
	r.charge(len(s) / 64)
	return []rune(s)
}

// eval of a slice outside of a subscript's own place, as in a[1:2, 3].
func (e *sliceExpr) eval(r *run, _ *scope) any {
	fail(Unsupported, r.line, "a slice in a tuple")
	return nil
}

func (e *sliceExpr) bounds(r *run, s *scope) (out [3]*int64) {
	for i, p := range e.parts {
		if p == nil {
			continue
		}
		v := p.eval(r, s)
		if v == nil {
			continue
		}
		n, _, isInt, _ := number(r.defined(v))
		if !isInt {
			fail(Runtime, r.line, "a slice's bounds must be integers, not %s", typeName(v))
		}
		out[i] = &n
	}
	return out
}

func (r *run) slice(v any, b [3]*int64) any {
	switch x := v.(type) {
	case string:
		return string(cut(r, runes(r, x), b))
	case []any:
		return cut(r, x, b)
	case tuple:
		return tuple(cut(r, x, b))
	}
	fail(Runtime, r.line, "a %s has no slices", typeName(v))
	return nil
}

// cut is Python's list[start:stop:step].
func cut[T any](r *run, list []T, b [3]*int64) []T {
	n, step := int64(len(list)), int64(1)
	if b[2] != nil {
		step = min(max(*b[2], -n-1), n+1) // a longer step goes no further
		if *b[2] == 0 {
			fail(Runtime, r.line, "a slice's step is 0")
		}
	}
	start, stop, low, high := int64(0), n, int64(0), n
	if step < 0 {
		start, stop, low, high = n-1, -1, -1, n-1
	}
	clamp := func(p *int64, def int64) int64 {
		if p == nil {
			return def
		}
		i := *p
		if i < 0 {
			i += n
		}
		return min(max(i, low), high)
	}
	start, stop = clamp(b[0], start), clamp(b[1], stop)
	out := []T{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		out = append(out, list[i])
	}
	r.charge(len(out)/8 + 1)
	return out
}
