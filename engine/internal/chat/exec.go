package chat

import "slices"

// stmt is a statement. What exec gives is how it ended: "" or a jump out of a loop's body.
type stmt interface {
	exec(r *run, s *scope) jump
}

// jump is "break" or "continue"; as a statement, it does it.
type jump string

type (
	printText struct{ text string }
	printExpr struct {
		line int
		e    expr
	}
	arm struct {
		line int
		cond expr
		body []stmt
	}
	ifBlock struct {
		arms  []arm
		other []stmt
	}
	forBlock struct {
		line        int
		target      target
		over, cond  expr
		body, other []stmt
	}
	setStmt struct {
		line   int
		target target
		value  expr
	}
	setBlock struct {
		line   int
		target target
		filter expr // of what the body prints; nil: none
		body   []stmt
	}
	filterBlock struct {
		line   int
		filter expr
		body   []stmt
	}
	withBlock struct {
		targets []target
		values  []expr
		body    []stmt
	}
	macroStmt struct {
		line   int
		name   string
		params []param
		body   []stmt
	}
	callBlock struct {
		line   int
		caller *macroStmt
		call   *call
	}
)

type param struct {
	name string
	def  expr // nil: none
}

// target is what a value is assigned to.
type target struct {
	name, attr string
	parts      []target
}

func (r *run) execAll(body []stmt, s *scope) jump {
	for _, x := range body {
		r.charge(1)
		if j := x.exec(r, s); j != "" {
			return j
		}
	}
	return ""
}

func (j jump) exec(*run, *scope) jump { return j }

func (x *printText) exec(r *run, _ *scope) jump {
	r.write(x.text)
	return ""
}

func (x *printExpr) exec(r *run, s *scope) jump {
	r.line = x.line
	r.write(r.str(x.e.eval(r, s)))
	return ""
}

func (x *ifBlock) exec(r *run, s *scope) jump {
	for _, a := range x.arms {
		r.line = a.line
		if truth(a.cond.eval(r, s)) {
			return r.execAll(a.body, s)
		}
	}
	return r.execAll(x.other, s)
}

func (x *setStmt) exec(r *run, s *scope) jump {
	r.line = x.line
	v := x.value.eval(r, s)
	r.assign(s, x.target, v)
	return ""
}

func (x *setBlock) exec(r *run, s *scope) jump {
	var j jump
	var v any = r.capture(func() { j = r.execAll(x.body, newScope(s)) })
	r.line = x.line
	r.assign(s, x.target, applyFilters(r, s, x.filter, v))
	return j
}

func (x *filterBlock) exec(r *run, s *scope) jump {
	var j jump
	text := r.capture(func() { j = r.execAll(x.body, newScope(s)) })
	r.line = x.line
	r.write(r.str(applyFilters(r, s, x.filter, text)))
	return j
}

// applyFilters runs a chain of filters whose innermost value is v.
func applyFilters(r *run, s *scope, f expr, v any) any {
	x, ok := f.(*filterExpr)
	if !ok {
		return v
	}
	return x.apply(r, s, applyFilters(r, s, x.value, v))
}

func (x *withBlock) exec(r *run, s *scope) jump {
	inner := newScope(s)
	for i, t := range x.targets {
		r.assign(inner, t, x.values[i].eval(r, s))
	}
	return r.execAll(x.body, inner)
}

// assign sets a variable of the innermost scope, or an attribute of a namespace.
func (r *run) assign(s *scope, t target, v any) {
	switch {
	case t.parts != nil:
		items := r.items(r.defined(v))
		if len(items) != len(t.parts) {
			fail(Runtime, r.line, "%d values cannot be assigned to %d names", len(items), len(t.parts))
		}
		for i, part := range t.parts {
			r.assign(s, part, items[i])
		}
	case t.attr != "":
		v0, _ := s.get(t.name)
		ns, ok := v0.(*namespace)
		if !ok {
			fail(Runtime, r.line, "cannot assign an attribute of '%s': it is not a namespace", t.name)
		}
		ns.vars[t.attr] = v
	default:
		s.vars[t.name] = v
	}
}

// loop is the variable of that name.
type loop struct {
	items  []any
	i      int
	before []any // of changed()
}

func (x *forBlock) exec(r *run, s *scope) jump {
	r.line = x.line
	items := r.items(x.over.eval(r, s))
	if x.cond != nil {
		var keep []any
		for _, v := range items {
			r.charge(4)
			inner := newScope(s)
			r.assign(inner, x.target, v)
			if truth(x.cond.eval(r, inner)) {
				keep = append(keep, v)
			}
		}
		items = keep
	}
	l := &loop{items: items}
	for i, v := range items {
		l.i = i
		r.charge(4) // a scope
		inner := newScope(s)
		r.line = x.line
		r.assign(inner, x.target, v)
		inner.vars["loop"] = l
		if r.execAll(x.body, inner) == "break" {
			break
		}
	}
	if len(items) == 0 {
		return r.execAll(x.other, newScope(s))
	}
	return ""
}

func (l *loop) attribute(name string) (any, bool) {
	n := len(l.items)
	at := func(i int, what string) any {
		if i < 0 || i >= n {
			return undefined{"there is no " + what + " item"}
		}
		return l.items[i]
	}
	switch name {
	case "index":
		return int64(l.i + 1), true
	case "index0":
		return int64(l.i), true
	case "revindex":
		return int64(n - l.i), true
	case "revindex0":
		return int64(n - l.i - 1), true
	case "first":
		return l.i == 0, true
	case "last":
		return l.i == n-1, true
	case "length":
		return int64(n), true
	case "depth":
		return int64(1), true
	case "depth0":
		return int64(0), true
	case "previtem":
		return at(l.i-1, "previous"), true
	case "nextitem":
		return at(l.i+1, "next"), true
	case "cycle":
		return function(func(r *run, a callArgs) any {
			if len(a.plain) == 0 {
				fail(Runtime, r.line, "loop.cycle has no items")
			}
			return a.plain[l.i%len(a.plain)]
		}), true
	case "changed":
		return function(func(r *run, a callArgs) any {
			same := l.before != nil && r.equal(l.before, a.plain)
			l.before = append([]any{}, a.plain...)
			return !same
		}), true
	}
	return nil, false
}

// macro is one with the scope that it was defined in.
type macro struct {
	def *macroStmt
	s   *scope
}

func (x *macroStmt) exec(_ *run, s *scope) jump {
	s.vars[x.name] = &macro{x, s}
	return ""
}

func (x *callBlock) exec(r *run, s *scope) jump {
	r.line = x.line
	r.write(r.str(x.call.with(r, s, &macro{x.caller, s})))
	return ""
}

// call runs a macro; what it prints is its result.
func (m *macro) call(r *run, a callArgs) any {
	if r.depth++; r.depth > maxNesting {
		fail(Bound, r.line, "calls of macros nest deeper than %d", maxNesting)
	}
	defer func() { r.depth-- }()
	if len(a.plain) > len(m.def.params) {
		fail(Runtime, r.line, "macro '%s' takes not more than %d arguments", m.def.name, len(m.def.params))
	}
	s := newScope(m.s)
	for i, p := range m.def.params {
		k := slices.Index(a.names, p.name)
		switch {
		case i < len(a.plain) && k >= 0:
			fail(Runtime, r.line, "macro '%s' got two values for '%s'", m.def.name, p.name)
		case i < len(a.plain):
			s.vars[p.name] = a.plain[i]
		case k >= 0:
			s.vars[p.name] = a.named[k]
		case p.def != nil:
			s.vars[p.name] = p.def.eval(r, s)
		default:
			s.vars[p.name] = undefined{"parameter '" + p.name + "' was not provided"}
		}
	}
	for _, name := range a.names {
		if !slices.ContainsFunc(m.def.params, func(p param) bool {
			return p.name == name
		}) && (name != "caller" || a.caller == nil) {
			fail(Runtime, r.line, "macro '%s' takes no argument '%s'", m.def.name, name)
		}
	}
	if m.def.name != "caller" {
		if a.caller != nil {
			s.vars["caller"] = a.caller
		} else {
			s.vars["caller"] = undefined{"no caller defined"}
		}
	}
	return r.capture(func() { r.execAll(m.def.body, s) })
}
