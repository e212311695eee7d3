package chat

import (
	"slices"
	"strings"
	"unicode"
)

// method is one that was taken from its object.
type method struct {
	on   any
	name string
	b    builtin
}

func (m method) call(r *run, a callArgs) any {
	return m.b.run(r, typeName(m.on)+"."+m.name, m.on, a)
}

// methodsOf returns the methods of a value's type.
func methodsOf(v any) map[string]builtin {
	switch v.(type) {
	case string:
		return textMethods
	case *Dict:
		return dictMethods
	case []any:
		return listMethods
	case tuple:
		return tupleMethods
	}
	return nil
}

// knownMethod reports whether anything has a method of this name, so that a template that calls
// another can be refused when it is read.
func knownMethod(name string) bool {
	for _, m := range []map[string]builtin{textMethods, dictMethods, listMethods} {
		if _, ok := m[name]; ok {
			return true
		}
	}
	_, ok := (&loop{items: []any{nil}}).attribute(name)
	return ok
}

// onText makes a method of a function on a text.
func onText(params string, f func(r *run, s string, a []any) any) builtin {
	return builtin{params: params, f: func(r *run, v any, a []any) any { return f(r, v.(string), a) }}
}

func plainText(f func(string) string) builtin {
	return onText("", func(r *run, s string, _ []any) any {
		r.charge(len(s) / 8)
		return r.text(f(s))
	})
}

func ofKind(kind func(rune) bool) builtin {
	return onText("", func(_ *run, s string, _ []any) any { return every(s, kind) })
}

func stripper(left, right bool) builtin {
	return onText("chars?", func(r *run, s string, a []any) any { return strip(r, s, a[0], left, right) })
}

var textMethods = map[string]builtin{
	"strip": stripper(true, true), "lstrip": stripper(true, false), "rstrip": stripper(false, true),
	"lower": plainText(lower), "upper": plainText(upper), "title": plainText(title),
	"capitalize": plainText(capitalize),
	"isalpha":    ofKind(unicode.IsLetter), "isdigit": ofKind(unicode.IsDigit), "isspace": ofKind(isSpace),
	"isnumeric": ofKind(unicode.IsNumber),
	"isalnum":   ofKind(func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) }),
	"islower":   onText("", func(_ *run, s string, _ []any) any { return isCased(s, lower) }),
	"isupper":   onText("", func(_ *run, s string, _ []any) any { return isCased(s, upper) }),
	"split": onText("sep? maxsplit?", func(r *run, s string, a []any) any {
		return split(r, s, a[0], a[1], false)
	}),
	"rsplit": onText("sep? maxsplit?", func(r *run, s string, a []any) any { return split(r, s, a[0], a[1], true) }),
	"splitlines": onText("keepends?", func(r *run, s string, a []any) any {
		return textList(r, splitLines(s, truth(given(a[0], false))))
	}),
	"startswith": onText("prefix", func(r *run, s string, a []any) any { return affix(r, s, a[0], strings.HasPrefix) }),
	"endswith":   onText("suffix", func(r *run, s string, a []any) any { return affix(r, s, a[0], strings.HasSuffix) }),
	"replace": onText("old new count?", func(r *run, s string, a []any) any {
		return replace(r, s, wantText(r, a[0], "replace"), wantText(r, a[1], "replace"),
			r.integer(given(a[2], int64(-1)), "replace's count"))
	}),
	"removeprefix": onText("prefix", func(r *run, s string, a []any) any {
		return strings.TrimPrefix(s, wantText(r, a[0], "removeprefix"))
	}),
	"removesuffix": onText("suffix", func(r *run, s string, a []any) any {
		return strings.TrimSuffix(s, wantText(r, a[0], "removesuffix"))
	}),
	"find": onText("sub", func(r *run, s string, a []any) any {
		return find(r, s, wantText(r, a[0], "find"), false)
	}),
	"rfind": onText("sub", func(r *run, s string, a []any) any {
		return find(r, s, wantText(r, a[0], "rfind"), true)
	}),
	"index": onText("sub", func(r *run, s string, a []any) any {
		i := find(r, s, wantText(r, a[0], "index"), false)
		if i < 0 {
			fail(Runtime, r.line, "substring not found")
		}
		return i
	}),
	"count": onText("sub", func(r *run, s string, a []any) any {
		r.charge(len(s) / 64)
		return int64(strings.Count(s, wantText(r, a[0], "count")))
	}),
	"join": onText("iterable", func(r *run, s string, a []any) any {
		items := r.items(a[0])
		parts := make([]string, len(items))
		for i, v := range items {
			parts[i] = wantText(r, v, "join")
		}
		return joinTexts(r, parts, s)
	}),
	"partition": onText("sep", func(r *run, s string, a []any) any {
		before, after, found := strings.Cut(r.text(s), separator(r, a[0]))
		if !found {
			return tuple{s, "", ""}
		}
		return tuple{before, a[0], after}
	}),
	"rpartition": onText("sep", func(r *run, s string, a []any) any {
		sep := separator(r, a[0])
		i := strings.LastIndex(r.text(s), sep)
		if i < 0 {
			return tuple{"", "", s}
		}
		return tuple{s[:i], sep, s[i+len(sep):]}
	}),
}

func separator(r *run, v any) string {
	s := wantText(r, v, "partition")
	if s == "" {
		fail(Runtime, r.line, "an empty separator")
	}
	return s
}

// joinTexts checks the size before it joins.
func joinTexts(r *run, parts []string, sep string) string {
	n := len(sep) * max(len(parts)-1, 0)
	for _, p := range parts {
		n += len(p)
	}
	if n > maxBytes {
		fail(Bound, r.line, "a text has more than %d bytes", maxBytes)
	}
	return r.text(strings.Join(parts, sep))
}

// frozen is a method that changes its object, which Jinja's sandbox forbids.
func frozen(name string) builtin {
	return builtin{params: "*", f: func(r *run, v any, _ []any) any {
		fail(Runtime, r.line, "'.%s()' changes a %s: a chat template may not", name, typeName(v))
		return nil
	}}
}

var dictMethods = map[string]builtin{
	"get": {params: "key default?", f: func(_ *run, v any, a []any) any {
		if key, ok := a[0].(string); ok {
			if x, ok := v.(*Dict).Get(key); ok {
				return x
			}
		}
		return given(a[1], nil)
	}},
	"items": {params: "", f: func(_ *run, v any, _ []any) any { return &lazy{items: v.(*Dict).pairs(), view: true} }},
	"keys": {params: "", f: func(_ *run, v any, _ []any) any {
		return &lazy{items: v.(*Dict).keyList(), view: true}
	}},
	"values": {params: "", f: func(_ *run, v any, _ []any) any {
		return &lazy{items: v.(*Dict).valueList(), view: true}
	}},
	"copy":   {params: "", f: func(_ *run, v any, _ []any) any { return v }},
	"update": frozen("update"), "pop": frozen("pop"), "popitem": frozen("popitem"), "setdefault": frozen("setdefault"),
	"clear": frozen("clear"),
}

func (d *Dict) valueList() []any {
	out := make([]any, len(d.keys))
	for i, k := range d.keys {
		out[i] = d.values[k]
	}
	return out
}

var tupleMethods = map[string]builtin{
	"index": {params: "value", f: func(r *run, v any, a []any) any {
		i := slices.IndexFunc(r.items(v), func(x any) bool { return r.equal(x, a[0]) })
		if i < 0 {
			fail(Runtime, r.line, "the value is not in the list")
		}
		return int64(i)
	}},
	"count": {params: "value", f: func(r *run, v any, a []any) any {
		n := int64(0)
		for _, x := range r.items(v) {
			if r.equal(x, a[0]) {
				n++
			}
		}
		return n
	}},
}

var listMethods = map[string]builtin{
	"index": tupleMethods["index"], "count": tupleMethods["count"],
	"copy":   {params: "", f: func(_ *run, v any, _ []any) any { return v }},
	"append": frozen("append"), "extend": frozen("extend"), "insert": frozen("insert"), "pop": frozen("pop"),
	"remove": frozen("remove"),
	"sort":   frozen("sort"), "reverse": frozen("reverse"), "clear": frozen("clear"),
}
