package chat

import (
	"slices"
	"strings"
	"time"
)

// builtin is a filter or a method: what it is used on, and its arguments in the order of its
// parameters.
type builtin struct {
	params string // "width first? blank?": a question mark is optional, "*" is any number more
	f      func(r *run, v any, a []any) any
	raw    func(r *run, v any, a callArgs) any // instead of f: binds its arguments itself
}

// absent is an argument that was not given.
type absent struct{}

func (b builtin) list() []string { return strings.Fields(b.params) }

// check refuses what a call can be seen to get wrong.
func (e *filterExpr) check(line int, a arguments) {
	if e.f.raw != nil {
		return
	}
	params := e.f.list()
	for _, n := range a.names {
		if !slices.Contains(params, n) && !slices.Contains(params, n+"?") {
			fail(Unsupported, line, "the argument %q of the filter %q", n, e.name)
		}
	}
}

// run binds the arguments to the parameters and calls.
func (b builtin) run(r *run, name string, v any, a callArgs) any {
	if b.raw != nil {
		return b.raw(r, v, a)
	}
	params := b.list()
	var rest []any
	if n := len(params); n > 0 && params[n-1] == "*" {
		params = params[:n-1]
		if len(a.plain) > 0 && len(params) < len(a.plain) {
			rest, a.plain = a.plain[len(params):], a.plain[:len(params)]
		}
	}
	if len(a.plain) > len(params) {
		fail(Runtime, r.line, "%s takes not more than %d arguments", name, len(params))
	}
	out := make([]any, len(params), len(params)+len(rest))
	for i, p := range params {
		p, optional := strings.CutSuffix(p, "?")
		k := slices.Index(a.names, p)
		switch {
		case i < len(a.plain):
			out[i] = a.plain[i]
		case k >= 0:
			out[i] = a.named[k]
		case optional:
			out[i] = absent{}
		default:
			fail(Runtime, r.line, "%s wants the argument '%s'", name, p)
		}
	}
	for _, n := range a.names {
		if !slices.Contains(params, n) && !slices.Contains(params, n+"?") {
			fail(Runtime, r.line, "%s takes no argument '%s'", name, n)
		}
	}
	return b.f(r, v, append(out, rest...))
}

// given replaces an argument that was not given by its default.
func given(v, def any) any {
	if _, ok := v.(absent); ok {
		return def
	}
	return v
}

// wantText returns an argument that must be a text.
func wantText(r *run, v any, what string) string {
	s, ok := v.(string)
	if !ok {
		fail(Runtime, r.line, "%s wants a text, not %s", what, typeName(r.defined(v)))
	}
	return s
}

// globals are the functions that every template has.
var globals = map[string]function{
	"range": func(r *run, a callArgs) any {
		n := []int{}
		for _, v := range a.plain {
			n = append(n, r.integer(v, "range"))
		}
		start, stop, step := 0, 0, 1
		switch len(n) {
		case 1:
			stop = n[0]
		case 2:
			start, stop = n[0], n[1]
		case 3:
			start, stop, step = n[0], n[1], n[2]
		default:
			fail(Runtime, r.line, "range wants 1 to 3 arguments, not %d", len(n))
		}
		if step == 0 {
			fail(Runtime, r.line, "range's step is 0")
		}
		const most = 100_000 // as in Jinja's sandbox
		var out []any
		for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
			if len(out) == most {
				fail(Bound, r.line, "a range has more than %d items", most)
			}
			out = append(out, int64(i))
		}
		return r.list(out)
	},
	"dict": func(r *run, a callArgs) any { return dictOf(r, a, "dict") },
	"namespace": func(r *run, a callArgs) any {
		d := dictOf(r, a, "namespace")
		ns := &namespace{vars: map[string]any{}}
		for _, k := range d.keys {
			ns.vars[k] = d.values[k]
		}
		return ns
	},
	"raise_exception": func(r *run, a callArgs) any {
		message := "no reason given"
		if v := append(a.plain, a.named...); len(v) > 0 {
			message = r.str(v[0])
		}
		fail(Raised, r.line, "%s", message)
		return nil
	},
	"strftime_now": func(r *run, a callArgs) any {
		if len(a.plain) != 1 {
			fail(Runtime, r.line, "strftime_now wants one argument")
		}
		return strftime(r, r.now(), wantText(r, a.plain[0], "strftime_now"))
	},
}

func dictOf(r *run, a callArgs, name string) *Dict {
	d := &Dict{}
	for _, v := range a.plain {
		if from, ok := v.(*Dict); ok {
			for _, k := range from.keys {
				d.Set(k, from.values[k])
			}
			continue
		}
		for _, pair := range r.items(v) {
			kv, ok := r.tryItems(pair)
			if !ok || len(kv) != 2 {
				fail(Runtime, r.line, "%s wants pairs", name)
			}
			d.Set(wantText(r, kv[0], name), kv[1])
		}
	}
	for i, k := range a.names {
		d.Set(k, a.named[i])
	}
	return d
}

// strftime knows the directives of the C standard that need no locale but English.
func strftime(r *run, t time.Time, format string) string {
	layouts := map[byte]string{
		'a': "Mon", 'A': "Monday", 'b': "Jan", 'h': "Jan", 'B': "January", 'd': "02", 'm': "01", 'y': "06", 'Y': "2006",
		'H': "15", 'I': "03", 'M': "04",
		'S': "05", 'p': "PM", 'z': "-0700", 'Z': "MST", 'j': "002", 'e': "_2", 'F': "2006-01-02", 'T': "15:04:05",
		'D': "01/02/06", 'R': "15:04",
		'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05", 'f': ".000000",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		layout, ok := layouts[format[i]]
		switch plain := i+1 < len(format) && format[i] == '-'; {
		case format[i] == '%':
			b.WriteByte('%')
		case format[i] == 'n':
			b.WriteByte('\n')
		case format[i] == 't':
			b.WriteByte('\t')
		case ok:
			b.WriteString(strings.TrimPrefix(t.Format(layout), "."))
		case plain && strings.IndexByte("dmHIMSjy", format[i+1]) >= 0: // glibc: no zeros in front
			i++
			s := strings.TrimLeft(t.Format(layouts[format[i]]), "0")
			if s == "" {
				s = "0"
			}
			b.WriteString(s)
		default:
			fail(Unsupported, r.line, "strftime's %%%c", format[i])
		}
	}
	return b.String()
}

type test struct {
	args int
	f    func(r *run, v any, a []any) bool
}

func is[T any](_ *run, v any, _ []any) bool {
	_, ok := v.(T)
	return ok
}

func holds(op string) test {
	return test{1, func(r *run, v any, a []any) bool { return r.holds(v, op, a[0]) }}
}

// tests are what stands behind "is".
var tests = map[string]test{
	"defined":   {0, func(_ *run, v any, _ []any) bool { _, no := v.(undefined); return !no }},
	"undefined": {0, is[undefined]},
	"none":      {0, func(_ *run, v any, _ []any) bool { return v == nil }},
	"boolean":   {0, is[bool]},
	"true":      {0, func(_ *run, v any, _ []any) bool { b, ok := v.(bool); return ok && b }},
	"false":     {0, func(_ *run, v any, _ []any) bool { b, ok := v.(bool); return ok && !b }},
	"string":    {0, is[string]},
	"integer":   {0, is[int64]},
	"float":     {0, is[float64]},
	"number":    {0, func(_ *run, v any, _ []any) bool { _, _, _, ok := number(v); return ok }},
	"mapping":   {0, is[*Dict]},
	"iterable": {0, func(_ *run, v any, _ []any) bool {
		switch v.(type) {
		case undefined, string, []any, tuple, *Dict, *lazy:
			return true
		}
		return false
	}},
	"sequence": {0, func(_ *run, v any, _ []any) bool {
		switch v.(type) {
		case undefined, string, []any, tuple, *Dict:
			return true
		}
		return false
	}},
	"callable": {0, func(_ *run, v any, _ []any) bool {
		switch v.(type) {
		case *macro, function, method, undefined:
			return true
		}
		return false
	}},
	"odd": {0, func(r *run, v any, _ []any) bool {
		return r.equal(r.arithmetic("%", r.defined(v), int64(2)), int64(1))
	}},
	"even": {0, func(r *run, v any, _ []any) bool {
		return r.equal(r.arithmetic("%", r.defined(v), int64(2)), int64(0))
	}},
	"divisibleby": {1, func(r *run, v any, a []any) bool { return r.equal(r.arithmetic("%", v, a[0]), int64(0)) }},
	"lower":       {0, func(r *run, v any, _ []any) bool { return isCased(r.str(v), lower) }},
	"upper":       {0, func(r *run, v any, _ []any) bool { return isCased(r.str(v), upper) }},
	"in":          holds("in"),
	"eq":          holds("=="), "==": holds("=="), "equalto": holds("=="),
	"ne": holds("!="), "lt": holds("<"), "lessthan": holds("<"), "le": holds("<="), "gt": holds(">"),
	"greaterthan": holds(">"), "ge": holds(">="),
	"sameas": {1, func(r *run, v any, a []any) bool {
		switch v.(type) {
		case nil, bool:
			return v == a[0]
		}
		fail(Unsupported, r.line, "'is sameas' of a %s", typeName(v))
		return false
	}},
}
