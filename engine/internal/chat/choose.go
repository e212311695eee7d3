package chat

// mapFilter is map("filter", arguments…) or map(attribute="a.b", default=…).
func mapFilter(r *run, v any, a callArgs) any {
	if !truth(v) {
		return &lazy{}
	}
	items := r.items(v)
	out := make([]any, len(items))
	if len(a.plain) > 0 {
		name := wantText(r, a.plain[0], "map")
		f, ok := filters[name]
		if !ok {
			fail(Unsupported, r.line, "the filter %q", name)
		}
		a.plain = a.plain[1:]
		for i, x := range items {
			r.charge(1)
			out[i] = f.run(r, name, x, a)
		}
		return &lazy{items: out}
	}
	var path any
	var def any = absent{}
	for i, n := range a.names {
		switch n {
		case "attribute":
			path = a.named[i]
		case "default":
			def = a.named[i]
		default:
			fail(Runtime, r.line, "map takes no argument '%s'", n)
		}
	}
	if path == nil {
		fail(Runtime, r.line, "map wants the name of a filter, or attribute=")
	}
	key := attributeOf(r, path)
	for i, x := range items {
		out[i] = key(x)
		if _, no := out[i].(undefined); no {
			out[i] = given(def, out[i])
		}
	}
	return &lazy{items: out}
}

// chooser makes select, reject, selectattr and rejectattr.
func chooser(byAttribute, want bool) builtin {
	return builtin{raw: func(r *run, v any, a callArgs) any {
		key := func(v any) any { return v }
		if byAttribute {
			if len(a.plain) == 0 {
				fail(Runtime, r.line, "selectattr and rejectattr want the name of an attribute")
			}
			key = attributeOf(r, a.plain[0])
			a.plain = a.plain[1:]
		}
		accept := func(v any) bool { return truth(v) }
		if len(a.plain) > 0 {
			name := wantText(r, a.plain[0], "select")
			t, ok := tests[name]
			if !ok {
				fail(Unsupported, r.line, "the test %q", name)
			}
			if len(a.plain)-1 != t.args || len(a.names) > 0 {
				fail(Runtime, r.line, "the test %q wants %d arguments", name, t.args)
			}
			accept = func(v any) bool { return t.f(r, v, a.plain[1:]) }
		}
		var out []any
		if !truth(v) {
			return &lazy{}
		}
		for _, x := range r.items(v) {
			r.charge(1)
			if accept(key(x)) == want {
				out = append(out, x)
			}
		}
		return &lazy{items: out}
	}}
}
