package chat

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A value is Python's, as one of: nil (None), bool, int64, float64, string, []any (a list), tuple,
// *Dict, and inside the interpreter undefined, *lazy, *namespace, *loop, method, function and
// *macro. Lists are never changed in place, so they may be shared.

type tuple []any

// undefined is a variable or an attribute that is not there: it prints as nothing, and anything
// else fails.
type undefined struct{ what string }

// namespace is the one object that a template may change.
type namespace struct{ vars map[string]any }

// lazy is what Python computes when it is asked: a generator of a filter, which gives its items
// once and is always true, or a view of a dict.
type lazy struct {
	items []any
	view  bool
	spent bool
}

// Dict is a mapping with text keys that keeps their order. The zero value is empty.
type Dict struct {
	keys   []string
	values map[string]any
}

// Set adds a key at the end, or changes the value of one that is there.
func (d *Dict) Set(key string, v any) {
	if d.values == nil {
		d.values = map[string]any{}
	}
	if _, ok := d.values[key]; !ok {
		d.keys = append(d.keys, key)
	}
	d.values[key] = v
}

// Get returns the value of a key.
func (d *Dict) Get(key string) (any, bool) {
	if d == nil {
		return nil, false
	}
	v, ok := d.values[key]
	return v, ok
}

// Keys returns the keys in order.
func (d *Dict) Keys() []string {
	if d == nil {
		return nil
	}
	return d.keys
}

func (d *Dict) pairs() []any {
	out := make([]any, len(d.keys))
	for i, k := range d.keys {
		out[i] = tuple{k, d.values[k]}
	}
	return out
}

func (d *Dict) keyList() []any {
	out := make([]any, len(d.keys))
	for i, k := range d.keys {
		out[i] = k
	}
	return out
}

// typeName is Python's.
func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case []any:
		return "list"
	case tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case undefined:
		return "Undefined"
	case *lazy:
		if v.view {
			return "dict view"
		}
		return "generator"
	case *namespace:
		return "Namespace"
	case *loop:
		return "LoopContext"
	}
	return "function"
}

func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case tuple:
		return len(v) > 0
	case *Dict:
		return len(v.keys) > 0
	case *lazy:
		return !v.view || len(v.items) > 0
	}
	return true
}

// defined refuses an undefined value where Jinja does.
func (r *run) defined(v any) any {
	if u, ok := v.(undefined); ok {
		fail(Runtime, r.line, "%s", u.what)
	}
	return v
}

// str is Python's str(v), as a template prints it.
func (r *run) str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case undefined:
		return ""
	}
	var b strings.Builder
	r.repr(&b, v, 0)
	return b.String()
}

// repr is Python's repr(v).
func (r *run) repr(b *strings.Builder, v any, depth int) {
	r.charge(1)
	if depth > maxNesting {
		fail(Bound, r.line, "a value nests deeper than %d", maxNesting)
	}
	list := func(open string, items []any, end string) {
		b.WriteString(open)
		for i, x := range items {
			if i > 0 {
				b.WriteString(", ")
			}
			r.repr(b, x, depth+1)
		}
		b.WriteString(end)
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case undefined:
		b.WriteString("Undefined")
	case bool:
		if v {
			b.WriteString("True")
		} else {
			b.WriteString("False")
		}
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		b.WriteString(floatRepr(v))
	case string:
		if r.charge(len(v) / 64); b.Len()+len(v) > maxBytes {
			fail(Bound, r.line, "a text has more than %d bytes", maxBytes)
		}
		quote(b, v)
	case []any:
		list("[", v, "]")
	case tuple:
		if len(v) == 1 {
			list("(", v, ",)")
		} else {
			list("(", v, ")")
		}
	case *Dict:
		b.WriteByte('{')
		for i, k := range v.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			quote(b, k)
			b.WriteString(": ")
			r.repr(b, v.values[k], depth+1)
		}
		b.WriteByte('}')
	default:
		fail(Unsupported, r.line, "printing a %s", typeName(v))
	}
}

// floatRepr is Python's: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
func floatRepr(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// quote writes a text as Python's repr does.
func quote(b *strings.Builder, s string) {
	q := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	b.WriteByte(q)
	for _, c := range s {
		switch {
		case c == rune(q) || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == ' ' || unicode.IsPrint(c):
			b.WriteRune(c)
		case c < 0x100:
			b.WriteString(`\x` + hex(c, 2))
		case c < 0x10000:
			b.WriteString(`\u` + hex(c, 4))
		default:
			b.WriteString(`\U` + hex(c, 8))
		}
	}
	b.WriteByte(q)
}

func hex(c rune, width int) string {
	s := strconv.FormatInt(int64(c), 16)
	return strings.Repeat("0", width-len(s)) + s
}

// items returns what Python iterates over: characters of a text, keys of a dict.
func (r *run) items(v any) []any {
	items, ok := r.tryItems(v)
	if !ok {
		fail(Runtime, r.line, "%s cannot be iterated over", typeName(v))
	}
	r.charge(len(items) / 8)
	return items
}

func (r *run) tryItems(v any) ([]any, bool) {
	switch v := v.(type) {
	case undefined:
		return nil, true
	case string:
		r.charge(len(v) / 8)
		out := make([]any, 0, min(len(v), maxItems))
		for _, c := range v {
			if len(out) == maxItems {
				fail(Bound, r.line, "a list has more than %d items", maxItems)
			}
			out = append(out, string(c))
		}
		return out, true
	case []any:
		return v, true
	case tuple:
		return v, true
	case *Dict:
		return v.keyList(), true
	case *lazy:
		if v.view {
			return v.items, true
		}
		if v.spent {
			return nil, true
		}
		v.spent = true
		return v.items, true
	}
	return nil, false
}

// length is Python's len.
func (r *run) length(v any) int {
	switch v := v.(type) {
	case undefined:
		return 0
	case string:
		r.charge(len(v) / 64)
		return utf8.RuneCountInString(v)
	case []any:
		return len(v)
	case tuple:
		return len(v)
	case *Dict:
		return len(v.keys)
	case *lazy:
		if v.view {
			return len(v.items)
		}
	}
	fail(Runtime, r.line, "object of type '%s' has no len()", typeName(v))
	return 0
}

// text checks the size of a text that an operation made.
func (r *run) text(s string) string {
	r.made += len(s)
	if r.charge(len(s) / 64); len(s) > maxBytes {
		fail(Bound, r.line, "a text has more than %d bytes", maxBytes)
	}
	return s
}

// bytesPerItem is what a list needs for an item.
const bytesPerItem = 16

// list checks the size of a list that an operation made.
func (r *run) list(v []any) []any {
	r.made += len(v) * bytesPerItem
	if r.charge(len(v) / 8); len(v) > maxItems {
		fail(Bound, r.line, "a list has more than %d items", maxItems)
	}
	return v
}

// integer returns a value that must be a whole number.
func (r *run) integer(v any, what string) int {
	i, _, isInt, ok := number(v)
	if !ok || !isInt {
		fail(Runtime, r.line, "%s must be an integer, not %s", what, typeName(r.defined(v)))
	}
	return int(i)
}

// big64 turns the result of integer arithmetic into a value.
func (r *run) big64(x *big.Int) any {
	if !x.IsInt64() {
		fail(Unsupported, r.line, "an integer beyond 64 bits")
	}
	return x.Int64()
}

// isSpace is Python's str.isspace for one character.
func isSpace(c rune) bool { return unicode.IsSpace(c) || c >= 0x1c && c <= 0x1f }
