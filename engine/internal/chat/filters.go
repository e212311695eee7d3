package chat

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// filters are what stands behind a bar. It is filled by init: filters that name others refer to it.
var filters map[string]builtin

// textFilter makes a filter of a function on what the value prints as.
func textFilter(params string, f func(r *run, s string, a []any) any) builtin {
	return builtin{params: params, f: func(r *run, v any, a []any) any { return f(r, r.text(r.str(v)), a) }}
}

func simpleText(f func(string) string) builtin {
	return textFilter("", func(r *run, s string, _ []any) any {
		r.charge(len(s) / 8)
		return r.text(f(s))
	})
}

func init() {
	def := builtin{params: "default_value? boolean?", f: func(_ *run, v any, a []any) any {
		if _, no := v.(undefined); no || truth(given(a[1], false)) && !truth(v) {
			return given(a[0], "")
		}
		return v
	}}
	length := builtin{params: "", f: func(r *run, v any, _ []any) any { return int64(r.length(v)) }}
	escape := builtin{params: "", f: func(r *run, v any, _ []any) any {
		return r.text(strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;").Replace(r.text(r.str(v))))
	}}
	filters = map[string]builtin{
		"default": def, "d": def, "length": length, "count": length, "escape": escape, "e": escape,
		"safe":        {params: "", f: func(r *run, v any, _ []any) any { return r.str(v) }}, // nothing is escaped here anyway
		"forceescape": escape,
		"string":      {params: "", f: func(r *run, v any, _ []any) any { return r.str(v) }},
		"upper":       simpleText(upper),
		"lower":       simpleText(lower),
		"capitalize":  simpleText(capitalize),
		"title":       simpleText(titleFilter),
		"trim":        textFilter("chars?", func(r *run, s string, a []any) any { return strip(r, s, a[0], true, true) }),
		"replace": textFilter("old new count?", func(r *run, s string, a []any) any {
			count := given(a[2], nil)
			if count == nil {
				count = int64(-1)
			}
			return replace(r, s, r.str(a[0]), r.str(a[1]), r.integer(count, "replace's count"))
		}),
		"indent": {params: "width? first? blank?", f: func(r *run, v any, a []any) any {
			return indent(r, wantText(r, v, "indent"), given(a[0], int64(4)), truth(given(a[1], false)), truth(given(a[2], false)))
		}},
		"wordcount": textFilter("", func(_ *run, s string, _ []any) any {
			return int64(len(strings.FieldsFunc(s, func(c rune) bool { return c != '_' && !unicode.IsLetter(c) && !unicode.IsNumber(c) })))
		}),
		"tojson":  {params: "ensure_ascii? indent? separators? sort_keys?", f: toJSON},
		"int":     {params: "default? base?", f: toInt},
		"float":   {params: "default?", f: toFloat},
		"abs":     {params: "", f: abs},
		"round":   {params: "precision? method?", f: round},
		"list":    {params: "", f: func(r *run, v any, _ []any) any { return append([]any{}, r.items(v)...) }},
		"first":   {params: "", f: first},
		"last":    {params: "", f: last},
		"reverse": {params: "", f: reverse},
		"join":    {params: "d? attribute?", f: join},
		"items": {params: "", f: func(r *run, v any, _ []any) any {
			if d, ok := v.(*Dict); ok {
				return &lazy{items: d.pairs()}
			}
			if _, ok := v.(undefined); !ok {
				fail(Runtime, r.line, "the filter items wants a mapping, not %s", typeName(v))
			}
			return &lazy{}
		}},
		"dictsort":   {params: "case_sensitive? by? reverse?", f: dictSort},
		"sort":       {params: "reverse? case_sensitive? attribute?", f: sortFilter},
		"unique":     {params: "case_sensitive? attribute?", f: unique},
		"min":        {params: "case_sensitive? attribute?", f: func(r *run, v any, a []any) any { return extreme(r, v, a, -1) }},
		"max":        {params: "case_sensitive? attribute?", f: func(r *run, v any, a []any) any { return extreme(r, v, a, 1) }},
		"sum":        {params: "attribute? start?", f: sum},
		"batch":      {params: "linecount fill_with?", f: batch},
		"map":        {raw: mapFilter},
		"select":     chooser(false, true),
		"reject":     chooser(false, false),
		"selectattr": chooser(true, true),
		"rejectattr": chooser(true, false),
	}
}

func toInt(r *run, v any, a []any) any {
	def := given(a[0], int64(0))
	base := r.integer(given(a[1], int64(10)), "int's base")
	if s, ok := v.(string); ok {
		s = strings.TrimFunc(s, isSpace)
		digits := s
		if base == 10 && !strings.HasPrefix(s, "_") && !strings.HasSuffix(s, "_") && !strings.Contains(s, "__") {
			digits = strings.ReplaceAll(s, "_", "")
		}
		for p, b := range map[string]int{"0x": 16, "0o": 8, "0b": 2} {
			if base == b {
				digits = strings.TrimPrefix(strings.ToLower(digits), p)
			}
		}
		if base < 2 || base > 36 {
			fail(Unsupported, r.line, "int with base %d", base)
		}
		if i, err := strconv.ParseInt(digits, base, 64); err == nil {
			return i
		}
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || math.Abs(f) >= 1<<63 || math.IsNaN(f) {
			return def
		}
		return int64(f)
	}
	i, f, isInt, ok := number(r.defined(v))
	switch {
	case ok && isInt:
		return i
	case ok && math.Abs(f) < 1<<63:
		return int64(f)
	}
	return def
}

func toFloat(r *run, v any, a []any) any {
	if s, ok := v.(string); ok {
		if f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64); err == nil && !strings.ContainsAny(s, "xX") {
			return f
		}
	}
	if _, f, _, ok := number(r.defined(v)); ok {
		return f
	}
	return given(a[0], 0.0)
}

func abs(r *run, v any, _ []any) any {
	i, f, isInt, ok := number(r.defined(v))
	switch {
	case !ok:
		fail(Runtime, r.line, "abs wants a number, not %s", typeName(v))
	case isInt && i < 0:
		return r.arithmetic("*", i, int64(-1))
	case isInt:
		return i
	}
	return math.Abs(f)
}

func round(r *run, v any, a []any) any {
	i, f, isInt, ok := number(r.defined(v))
	if !ok {
		fail(Runtime, r.line, "round wants a number, not %s", typeName(v))
	}
	precision := r.integer(given(a[0], int64(0)), "round's precision")
	method := wantText(r, given(a[1], "common"), "round's method")
	if precision < 0 || precision > 300 {
		fail(Unsupported, r.line, "round with precision %d", precision)
	}
	p := math.Pow(10, float64(precision))
	switch method {
	case "ceil":
		return math.Ceil(f*p) / p
	case "floor":
		return math.Floor(f*p) / p
	case "common":
		if isInt {
			return i
		}
		f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', precision, 64), 64) // exact decimals, half to even: Python's round
		return f
	}
	fail(Runtime, r.line, "round's method is common, ceil or floor, not %s", method)
	return nil
}

func first(r *run, v any, _ []any) any {
	if items := r.items(v); len(items) > 0 {
		return items[0]
	}
	return undefined{"No first item, sequence was empty."}
}

func last(r *run, v any, _ []any) any {
	if l, ok := v.(*lazy); ok && !l.view {
		fail(Runtime, r.line, "a generator has no last item; put |list before |last")
	}
	if items := r.items(v); len(items) > 0 {
		return items[len(items)-1]
	}
	return undefined{"No last item, sequence was empty."}
}

func reverse(r *run, v any, _ []any) any {
	if s, ok := v.(string); ok {
		c := runes(r, s)
		slices.Reverse(c)
		return string(c)
	}
	items := slices.Clone(r.items(v))
	slices.Reverse(items)
	return &lazy{items: items}
}

func join(r *run, v any, a []any) any {
	items := r.items(v)
	key := attributeOf(r, given(a[1], nil))
	parts := make([]string, len(items))
	for i, x := range items {
		parts[i] = r.str(key(x))
	}
	return joinTexts(r, parts, r.str(given(a[0], "")))
}

// attributeOf reads "a.b.0" of a value; None is the value itself.
func attributeOf(r *run, path any) func(any) any {
	if path == nil {
		return func(v any) any { return v }
	}
	var keys []any
	switch p := path.(type) {
	case int64:
		keys = []any{p}
	case string:
		for k := range strings.SplitSeq(p, ".") {
			if i, err := strconv.ParseInt(k, 10, 64); err == nil && every(k, unicode.IsDigit) {
				keys = append(keys, i)
			} else {
				keys = append(keys, k)
			}
		}
	default:
		fail(Runtime, r.line, "an attribute must be a text or a number, not %s", typeName(path))
	}
	return func(v any) any {
		for _, k := range keys {
			v = r.item(v, k)
		}
		return v
	}
}

// sortKey folds case, unless it is to be kept.
func sortKey(r *run, sensitive, path any) func(any) any {
	get := attributeOf(r, given(path, nil))
	keep := truth(given(sensitive, false))
	return func(v any) any {
		v = get(v)
		if s, ok := v.(string); ok && !keep {
			return lower(s)
		}
		return v
	}
}

func sorted(r *run, items []any, key func(any) any, reversed bool) []any {
	type keyed struct{ key, v any }
	list := make([]keyed, len(items))
	for i, v := range items {
		list[i] = keyed{key(v), v}
	}
	slices.SortStableFunc(list, func(a, b keyed) int {
		r.charge(1)
		c := r.compare("<", a.key, b.key)
		if c == 2 {
			return 0
		}
		if reversed {
			return -c
		}
		return c
	})
	out := make([]any, len(list))
	for i, k := range list {
		out[i] = k.v
	}
	return out
}

func sortFilter(r *run, v any, a []any) any {
	if path, ok := a[2].(string); ok && strings.Contains(path, ",") {
		fail(Unsupported, r.line, "sorting by several attributes")
	}
	return sorted(r, r.items(v), sortKey(r, a[1], a[2]), truth(given(a[0], false)))
}

func dictSort(r *run, v any, a []any) any {
	d, ok := r.defined(v).(*Dict)
	if !ok {
		fail(Runtime, r.line, "dictsort wants a mapping, not %s", typeName(v))
	}
	by, ok := map[string]int64{"key": 0, "value": 1}[r.str(given(a[1], "key"))]
	if !ok {
		fail(Runtime, r.line, `dictsort sorts by "key" or "value"`)
	}
	return sorted(r, d.pairs(), sortKey(r, a[0], by), truth(given(a[2], false)))
}

func unique(r *run, v any, a []any) any {
	key := sortKey(r, a[0], a[1])
	var out, seen []any
	for _, x := range r.items(v) {
		k := key(x)
		if !slices.ContainsFunc(seen, func(y any) bool { return r.equal(k, y) }) {
			out, seen = append(out, x), append(seen, k)
		}
	}
	return &lazy{items: out}
}

func extreme(r *run, v any, a []any, want int) any {
	items := r.items(v)
	if len(items) == 0 {
		return undefined{"No aggregated item, sequence was empty."}
	}
	key := sortKey(r, a[0], a[1])
	best := items[0]
	for _, x := range items[1:] {
		if r.compare("<", key(x), key(best)) == want {
			best = x
		}
	}
	return best
}

func sum(r *run, v any, a []any) any {
	total := given(a[1], int64(0))
	key := attributeOf(r, given(a[0], nil))
	for _, x := range r.items(v) {
		total = r.arithmetic("+", total, r.defined(key(x)))
	}
	return total
}

func batch(r *run, v any, a []any) any {
	n := r.integer(a[0], "batch's size")
	if n < 1 {
		fail(Runtime, r.line, "batch's size is %d", n)
	}
	var out []any
	fill := given(a[1], nil)
	for b := range slices.Chunk(r.items(v), n) {
		b = slices.Clone(b)
		for fill != nil && len(b) < n {
			r.charge(1)
			b = append(b, fill)
		}
		out = append(out, b)
	}
	return &lazy{items: out}
}
