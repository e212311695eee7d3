package chat

import (
	"slices"
	"strings"
)

// parser reads statements; expr.go reads expressions. The grammar and its precedences are those of
// Jinja's own parser.
type parser struct {
	tokens []token
	pos    int
	depth  int
	loops  int // for statements around, for break and continue
	macros int // macros around
}

func (p *parser) peek() token { return p.tokens[p.pos] }

func (p *parser) take() token {
	t := p.tokens[p.pos]
	if p.pos+1 < len(p.tokens) {
		p.pos++
	}
	return t
}

func (p *parser) isOp(op string) bool    { t := p.peek(); return t.kind == tokOp && t.text == op }
func (p *parser) isName(s string) bool   { t := p.peek(); return t.kind == tokName && t.text == s }
func (p *parser) skipName(s string) bool { return p.skipIf(p.isName(s)) }
func (p *parser) skipOp(s string) bool   { return p.skipIf(p.isOp(s)) }

func (p *parser) skipIf(is bool) bool {
	if is {
		p.take()
	}
	return is
}

func (p *parser) expectOp(op string) {
	if !p.skipOp(op) {
		p.unexpected("'" + op + "'")
	}
}

func (p *parser) expectName() string {
	if p.peek().kind != tokName {
		p.unexpected("a name")
	}
	return p.take().text
}

func (p *parser) unexpected(want string) {
	t := p.peek()
	fail(Syntax, t.line, "unexpected %s, want %s", t, want)
}

// deeper bounds the nesting; the result ends it.
func (p *parser) deeper() func() {
	if p.depth++; p.depth > maxNesting {
		fail(Bound, p.peek().line, "it nests deeper than %d", maxNesting)
	}
	return func() { p.depth-- }
}

// chain bounds the number of operators behind each other: the interpreter goes as deep for them as
// for brackets.
type chain int

func (n *chain) longer(p *parser) {
	if *n++; *n > maxChain {
		fail(Bound, p.peek().line, "an expression chains more than %d operators", maxChain)
	}
}

func (p *parser) template() []stmt {
	body, _ := p.statements()
	if t := p.peek(); t.kind != tokEOF {
		fail(Syntax, t.line, "unexpected %s", t)
	}
	return body
}

// statements reads up to one of the tags in ends, whose name it gives with the parser behind it;
// without ends, up to the end of the template.
func (p *parser) statements(ends ...string) (body []stmt, end string) {
	defer p.deeper()()
	begin := p.peek().line
	for {
		switch t := p.take(); t.kind {
		case tokEOF:
			if len(ends) > 0 {
				fail(Syntax, begin, "the template ends without {%% %s %%}", strings.Join(ends, " %} or {% "))
			}
			return body, ""
		case tokData:
			body = append(body, &printText{t.text})
		case tokPrintBegin:
			body = append(body, &printExpr{t.line, p.tuple(tupleOptions{cond: true})})
			p.end(tokPrintEnd)
		case tokBlockBegin:
			name := p.peek()
			if name.kind == tokName && slices.Contains(ends, name.text) {
				p.take()
				return body, name.text
			}
			if s := p.statement(); s != nil {
				body = append(body, s)
			}
		default:
			fail(Syntax, t.line, "unexpected %s", t)
		}
	}
}

func (p *parser) end(kind tokenKind) {
	if p.peek().kind != kind {
		p.unexpected("the end of the tag")
	}
	p.take()
}

// block reads the rest of a tag, and the statements up to one of ends, with the parser behind its
// name.
func (p *parser) block(ends ...string) ([]stmt, string) {
	p.end(tokBlockEnd)
	return p.statements(ends...)
}

// whole is block where the tag that ends it has nothing but its name.
func (p *parser) whole(end string) []stmt {
	body, _ := p.block(end)
	p.end(tokBlockEnd)
	return body
}

// statement reads one, behind {%.
func (p *parser) statement() stmt {
	t := p.peek()
	name := p.expectName()
	switch name {
	case "if":
		return p.ifStmt()
	case "for":
		return p.forStmt()
	case "set":
		return p.setStmt(t.line)
	case "macro":
		return p.macroStmt(t.line)
	case "call":
		return p.callStmt(t.line)
	case "filter":
		f := p.filter(nil, true)
		return &filterBlock{t.line, f, p.whole("endfilter")}
	case "with":
		return p.withStmt()
	case "generation": // it marks what an assistant wrote, for training; it changes no text
		return &withBlock{body: p.outsideLoops(func() []stmt { return p.whole("endgeneration") })}
	case "break", "continue":
		if p.loops == 0 {
			fail(Syntax, t.line, "{%% %s %%} outside of a loop", name)
		}
		p.end(tokBlockEnd)
		return jump(name)
	case "block", "extends", "include", "import", "from", "autoescape", "do", "trans", "debug", "print":
		fail(Unsupported, t.line, "the statement {%% %s %%}", name)
	}
	fail(Syntax, t.line, "unknown statement {%% %s %%}", name)
	return nil
}

// outsideLoops reads a body from which a break cannot leave a loop outside.
func (p *parser) outsideLoops(read func() []stmt) []stmt {
	loops := p.loops
	p.loops = 0
	body := read()
	p.loops = loops
	return body
}

func (p *parser) ifStmt() stmt {
	s := &ifBlock{}
	for {
		line := p.peek().line
		cond := p.tuple(tupleOptions{})
		body, end := p.block("elif", "else", "endif")
		s.arms = append(s.arms, arm{line, cond, body})
		switch end {
		case "elif":
			continue
		case "else":
			s.other = p.whole("endif")
		default:
			p.end(tokBlockEnd)
		}
		return s
	}
}

func (p *parser) forStmt() stmt {
	s := &forBlock{line: p.peek().line}
	s.target = p.target(false, "in")
	if !p.skipName("in") {
		p.unexpected("'in'")
	}
	s.over = p.tuple(tupleOptions{end: "recursive"})
	if p.skipName("if") {
		s.cond = p.expression()
	}
	if p.isName("recursive") {
		fail(Unsupported, p.peek().line, "a recursive loop")
	}
	p.loops++
	var end string
	s.body, end = p.block("endfor", "else")
	p.loops--
	if end == "else" {
		s.other = p.whole("endfor")
	} else {
		p.end(tokBlockEnd)
	}
	return s
}

func (p *parser) setStmt(line int) stmt {
	target := p.target(true, "")
	if p.skipOp("=") {
		s := &setStmt{line, target, p.tuple(tupleOptions{cond: true})}
		p.end(tokBlockEnd)
		return s
	}
	var f expr
	if p.isOp("|") {
		f = p.filter(nil, false)
	}
	return &setBlock{line, target, f, p.whole("endset")}
}

// target reads what a value is assigned to: a name, several names, or an attribute of a namespace.
func (p *parser) target(attributes bool, end string) target {
	e := p.tuple(tupleOptions{simple: true, end: end})
	var check func(e expr) target
	check = func(e expr) target {
		switch e := e.(type) {
		case *name:
			if attributes && p.isOp(".") {
				p.take()
				return target{name: e.name, attr: p.expectName()}
			}
			return target{name: e.name}
		case *listExpr:
			if e.tuple {
				t := target{}
				for _, x := range e.items {
					t.parts = append(t.parts, check(x))
				}
				return t
			}
		}
		fail(Syntax, p.peek().line, "it cannot be assigned to")
		return target{}
	}
	return check(e)
}

func (p *parser) macroStmt(line int) stmt {
	m := &macroStmt{line: line, name: p.expectName()}
	m.params = p.signature()
	p.macros++
	m.body = p.outsideLoops(func() []stmt { return p.whole("endmacro") })
	p.macros--
	return m
}

func (p *parser) signature() (params []param) {
	p.expectOp("(")
	for !p.isOp(")") {
		if len(params) > 0 {
			p.expectOp(",")
		}
		x := param{name: p.expectName()}
		if p.skipOp("=") {
			x.def = p.expression()
		} else if len(params) > 0 && params[len(params)-1].def != nil {
			fail(Syntax, p.peek().line, "the parameter %s has no default, the one before it has", x.name)
		}
		params = append(params, x)
	}
	p.take()
	return params
}

func (p *parser) callStmt(line int) stmt {
	m := &macroStmt{line: line, name: "caller"}
	if p.isOp("(") {
		m.params = p.signature()
	}
	c, ok := p.expression().(*call)
	if !ok {
		fail(Syntax, line, "{%% call %%} wants a call")
	}
	m.body = p.outsideLoops(func() []stmt { return p.whole("endcall") })
	return &callBlock{line, m, c}
}

func (p *parser) withStmt() stmt {
	s := &withBlock{}
	for p.peek().kind != tokBlockEnd {
		if len(s.targets) > 0 {
			p.expectOp(",")
		}
		s.targets = append(s.targets, p.target(false, ""))
		p.expectOp("=")
		s.values = append(s.values, p.expression())
	}
	s.body = p.whole("endwith")
	return s
}
