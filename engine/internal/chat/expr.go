package chat

import "slices"

// expression reads a whole one.
func (p *parser) expression() expr {
	defer p.deeper()()
	e := p.or()
	var n chain
	for p.skipName("if") {
		n.longer(p)
		c := &condExpr{cond: p.or(), yes: e}
		if p.skipName("else") {
			c.no = p.expression()
		}
		e = c
	}
	return e
}

func (p *parser) or() expr {
	e := p.and()
	var n chain
	for p.skipName("or") {
		n.longer(p)
		e = &logic{or: true, a: e, b: p.and()}
	}
	return e
}

func (p *parser) and() expr {
	e := p.not()
	var n chain
	for p.skipName("and") {
		n.longer(p)
		e = &logic{a: e, b: p.not()}
	}
	return e
}

func (p *parser) not() expr {
	defer p.deeper()()
	if p.skipName("not") {
		return &not{p.not()}
	}
	return p.comparison()
}

func (p *parser) comparison() expr {
	c := &comparison{line: p.peek().line, first: p.sum()}
	for {
		t := p.peek()
		switch {
		case t.kind == tokOp && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
			p.take()
			c.rest = append(c.rest, operand{t.text, p.sum()})
		case p.skipName("in"):
			c.rest = append(c.rest, operand{"in", p.sum()})
		case p.isName("not") && p.tokens[p.pos+1].kind == tokName && p.tokens[p.pos+1].text == "in":
			p.pos += 2
			c.rest = append(c.rest, operand{"not in", p.sum()})
		case len(c.rest) == 0:
			return c.first
		default:
			return c
		}
	}
}

// left reads operators of one precedence.
func (p *parser) left(next func() expr, ops ...string) expr {
	e := next()
	var n chain
	for {
		t := p.peek()
		if t.kind != tokOp || !slices.Contains(ops, t.text) {
			return e
		}
		n.longer(p)
		p.take()
		e = &binary{line: t.line, op: t.text, a: e, b: next()}
	}
}

func (p *parser) sum() expr     { return p.left(p.concat, "+", "-") }
func (p *parser) concat() expr  { return p.left(p.product, "~") }
func (p *parser) product() expr { return p.left(p.power, "*", "/", "//", "%") }
func (p *parser) power() expr   { return p.left(p.withFilters, "**") }

func (p *parser) withFilters() expr {
	e := p.unary()
	var n chain
	for {
		n.longer(p)
		switch {
		case p.isOp("|"):
			e = p.filter(e, false)
		case p.isName("is"):
			e = p.test(e)
		case p.isOp("("):
			e = p.call(e)
		default:
			return e
		}
	}
}

func (p *parser) unary() expr {
	defer p.deeper()()
	var e expr
	switch t := p.peek(); {
	case p.skipOp("-"):
		e = &sign{t.line, true, p.unary()}
	case p.skipOp("+"):
		e = &sign{t.line, false, p.unary()}
	default:
		e = p.primary()
	}
	var n chain
	for {
		n.longer(p)
		switch {
		case p.isOp("."), p.isOp("["):
			e = p.subscript(e)
		case p.isOp("("):
			e = p.call(e)
		default:
			return e
		}
	}
}

func (p *parser) primary() expr {
	t := p.peek()
	switch {
	case t.kind == tokName:
		p.take()
		return p.name(t)
	case t.kind == tokString:
		s := ""
		for p.peek().kind == tokString {
			s += p.take().text
		}
		return &constant{s}
	case t.kind == tokInt, t.kind == tokFloat:
		return &constant{p.take().value}
	case p.skipOp("("):
		e := p.tuple(tupleOptions{cond: true, parentheses: true})
		p.expectOp(")")
		return e
	case p.skipOp("["):
		return &listExpr{items: p.list("]", p.expression)}
	case p.skipOp("{"):
		d := &dictExpr{line: t.line}
		p.list("}", func() expr {
			d.keys = append(d.keys, p.expression())
			p.expectOp(":")
			d.values = append(d.values, p.expression())
			return nil
		})
		return d
	}
	fail(Syntax, t.line, "unexpected %s", t)
	return nil
}

func (p *parser) name(t token) expr {
	switch t.text {
	case "true", "True":
		return &constant{true}
	case "false", "False":
		return &constant{false}
	case "none", "None":
		return &constant{nil}
	case "varargs", "kwargs":
		if p.macros > 0 {
			fail(Unsupported, t.line, "'%s' in a macro", t.text)
		}
	case "lipsum", "cycler", "joiner":
		if p.isOp("(") {
			fail(Unsupported, t.line, "the function %s", t.text)
		}
	}
	return &name{t.line, t.text}
}

// list reads items with commas between them, and perhaps one behind, up to a bracket.
func (p *parser) list(end string, item func() expr) (items []expr) {
	for n := 0; !p.isOp(end); n++ {
		if n > 0 {
			if p.expectOp(","); p.isOp(end) {
				break
			}
		}
		items = append(items, item())
	}
	p.take()
	return items
}

type tupleOptions struct {
	simple      bool   // names and constants only: a target
	cond        bool   // a condition (x if y) may stand outside of brackets
	parentheses bool   // () is a tuple
	end         string // a name that ends it
}

// tuple reads one expression, or a tuple when there are commas.
func (p *parser) tuple(o tupleOptions) expr {
	one := p.or
	switch {
	case o.simple:
		one = p.simple
	case o.cond:
		one = p.expression
	}
	atEnd := func() bool {
		t := p.peek()
		return t.kind == tokPrintEnd || t.kind == tokBlockEnd || p.isOp(")") || o.end != "" && p.isName(o.end)
	}
	e := &listExpr{tuple: true}
	comma := false
	for !atEnd() {
		e.items = append(e.items, one())
		if !p.skipOp(",") {
			break
		}
		comma = true
	}
	switch {
	case comma, len(e.items) == 0 && o.parentheses:
		return e
	case len(e.items) == 0:
		p.unexpected("an expression")
	}
	return e.items[0]
}

// simple reads an expression that can be a target.
func (p *parser) simple() expr {
	defer p.deeper()()
	if p.skipOp("(") {
		e := p.tuple(tupleOptions{simple: true, parentheses: true})
		p.expectOp(")")
		return e
	}
	t := p.peek()
	switch e := p.primary().(type) {
	case *name:
		return e
	default:
		fail(Syntax, t.line, "%s cannot be assigned to", t)
	}
	return nil
}

func (p *parser) subscript(e expr) expr {
	t := p.take()
	if t.text == "." {
		switch a := p.take(); a.kind {
		case tokName:
			return &attribute{t.line, e, a.text}
		case tokInt:
			return &item{t.line, e, &constant{a.value}}
		default:
			fail(Syntax, a.line, "unexpected %s, want a name or a number", a)
		}
	}
	args := p.list("]", p.subscribed)
	switch len(args) {
	case 0:
		fail(Syntax, t.line, "an empty subscript")
	case 1:
		return &item{t.line, e, args[0]}
	}
	return &item{t.line, e, &listExpr{items: args, tuple: true}}
}

// subscribed reads an index or a slice.
func (p *parser) subscribed() expr {
	var parts [3]expr
	slice := false
	for i := range parts {
		if !p.isOp(":") && !p.isOp("]") && !p.isOp(",") {
			parts[i] = p.expression()
		}
		if i == 2 || !p.skipOp(":") {
			break
		}
		slice = true
	}
	if !slice && parts[0] == nil {
		p.unexpected("an index")
	}
	if !slice {
		return parts[0]
	}
	return &sliceExpr{parts}
}

// args reads the arguments of a call, behind its bracket.
func (p *parser) args() (a arguments) {
	p.list(")", func() expr {
		switch t := p.peek(); {
		case p.isOp("*"), p.isOp("**"):
			fail(Unsupported, t.line, "'%s' before an argument", t.text)
		case t.kind == tokName && p.tokens[p.pos+1].kind == tokOp && p.tokens[p.pos+1].text == "=":
			p.pos += 2
			a.names = append(a.names, t.text)
			a.named = append(a.named, p.expression())
		case len(a.named) > 0:
			fail(Syntax, t.line, "an argument without a name behind one with a name")
		default:
			a.plain = append(a.plain, p.expression())
		}
		return nil
	})
	return a
}

func (p *parser) call(e expr) expr {
	t := p.take()
	if a, ok := e.(*attribute); ok && !knownMethod(a.name) {
		fail(Unsupported, t.line, "the method .%s()", a.name)
	}
	return &call{line: t.line, f: e, args: p.args()}
}

// filter reads filters behind e. Without bars: one filter whose name comes first, and more behind
// bars.
func (p *parser) filter(e expr, named bool) expr {
	var n chain
	for named || p.isOp("|") {
		n.longer(p)
		if !named {
			p.take()
		}
		named = false
		f := &filterExpr{line: p.peek().line, value: e, name: p.expectName()}
		if p.skipOp("(") {
			f.args = p.args()
		}
		var ok bool
		if f.f, ok = filters[f.name]; !ok {
			fail(Unsupported, f.line, "the filter %q", f.name)
		}
		f.check(f.line, f.args)
		e = f
	}
	return e
}

func (p *parser) test(e expr) expr {
	p.take()
	negated := p.skipName("not")
	t := &testExpr{line: p.peek().line, value: e, name: p.expectName()}
	next := p.peek()
	switch {
	case p.skipOp("("):
		t.args = p.args()
	case p.isName("else"), p.isName("or"), p.isName("and"):
	case p.isName("is"):
		fail(Syntax, next.line, "tests with 'is' cannot be chained")
	case next.kind == tokName, next.kind == tokString, next.kind == tokInt, next.kind == tokFloat, p.isOp("["),
		p.isOp("{"):
		t.args.plain = []expr{p.testArgument()}
	}
	var ok bool
	if t.f, ok = tests[t.name]; !ok {
		fail(Unsupported, t.line, "the test %q", t.name)
	}
	if len(t.args.named) > 0 || len(t.args.plain) != t.f.args {
		fail(Syntax, t.line, "the test %q wants %d arguments", t.name, t.f.args)
	}
	if negated {
		return &not{t}
	}
	return t
}

// testArgument reads the argument of a test without brackets: it has no operators and no filters.
func (p *parser) testArgument() expr {
	e := p.primary()
	var n chain
	for {
		n.longer(p)
		switch {
		case p.isOp("."), p.isOp("["):
			e = p.subscript(e)
		case p.isOp("("):
			e = p.call(e)
		default:
			return e
		}
	}
}
