package grammar

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

const ebnfKind = "EBNF"

// EBNF matches an output with the rule root of a grammar, in the notation that llama.cpp (GBNF) and
// XGrammar share:
//
//	root ::= "yes" | "no" item*
//	item ::= " " [a-z]{1,3} # a comment
func EBNF(text string, v *Vocabulary, limit int64) (*Grammar, error) {
	p := &ebnfParser{text: text, names: map[string]ref{}, line: 1}
	root := p.rule("root")
	if err := p.parse(); err != nil {
		return nil, err
	}
	if root != 0 {
		panic("grammar: root is not the first rule")
	}
	return newGrammar(ebnfKind, p.rules, v, limit)
}

type ebnfParser struct {
	text  string
	at    int
	line  int
	depth int
	rules rules
	names map[string]ref
	order []string
	used  []int // the line in which a name came first
}

// rule returns a name's rule, which may be set later.
func (p *ebnfParser) rule(name string) ref {
	r, ok := p.names[name]
	if !ok {
		r = p.rules.reserve()
		p.names[name] = r
		p.order, p.used = append(p.order, name), append(p.used, p.line)
	}
	return r
}

func (p *ebnfParser) fail(format string, args ...any) error {
	return &Error{Kind: ebnfKind, Where: fmt.Sprintf("line %d", p.line), What: fmt.Sprintf(format, args...)}
}

func (p *ebnfParser) parse() error {
	for p.space(true); p.at < len(p.text); p.space(true) {
		name := p.name()
		if name == "" {
			return p.fail("want a rule, got %s", p.ahead())
		}
		p.space(true)
		if !strings.HasPrefix(p.text[p.at:], "::=") {
			return p.fail("rule %q: want ::=, got %s", name, p.ahead())
		}
		p.at += 3
		r := p.rule(name)
		if p.rules[r] != nil {
			return p.fail("rule %q is defined twice", name)
		}
		e, err := p.alternatives()
		if err != nil {
			return err
		}
		p.rules[r] = e
	}
	for i, name := range p.order {
		if p.rules[p.names[name]] == nil {
			p.line = p.used[i]
			return p.fail("rule %q is not defined", name)
		}
	}
	return nil
}

// space skips blanks and comments, and line ends when they mean nothing. A line end means nothing
// unless a rule follows.
func (p *ebnfParser) space(lines bool) {
	for p.at < len(p.text) {
		switch c := p.text[p.at]; {
		case c == '#':
			for p.at < len(p.text) && p.text[p.at] != '\n' {
				p.at++
			}
		case c == ' ' || c == '\t' || c == '\r':
			p.at++
		case c == '\n' && lines:
			p.at++
			p.line++
		default:
			return
		}
	}
}

func (p *ebnfParser) name() string {
	from := p.at
	for p.at < len(p.text) && (isWord(p.text[p.at]) || p.at > from && (p.text[p.at] == '-' || p.text[p.at] == '.')) {
		p.at++
	}
	return p.text[from:p.at]
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// ahead is what comes next, for an error.
func (p *ebnfParser) ahead() string {
	if p.at >= len(p.text) {
		return "the end"
	}
	rest := p.text[p.at:]
	return strconv.Quote(rest[:min(len(rest), 12)])
}

func (p *ebnfParser) next(c byte) bool {
	if p.at < len(p.text) && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

const maxNesting = 100

func (p *ebnfParser) alternatives() (expr, error) {
	if p.depth++; p.depth > maxNesting {
		return nil, p.fail("more than %d groups in each other", maxNesting)
	}
	defer func() { p.depth-- }()
	var all alt
	for {
		e, err := p.sequence()
		if err != nil {
			return nil, err
		}
		all = append(all, e)
		p.space(true)
		if !p.next('|') {
			break
		}
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return all, nil
}

func (p *ebnfParser) sequence() (expr, error) {
	out := seq{}
	for {
		p.space(true)
		if p.at >= len(p.text) || strings.IndexByte("|)", p.text[p.at]) >= 0 || p.ruleFollows() {
			return out, nil
		}
		e, err := p.item()
		if err != nil {
			return nil, err
		}
		if e, err = p.quantified(e); err != nil {
			return nil, err
		}
		out = append(out, e)
	}
}

// ruleFollows reports whether the next rule begins here.
func (p *ebnfParser) ruleFollows() bool {
	at, line := p.at, p.line
	defer func() { p.at, p.line = at, line }()
	if p.name() == "" {
		return false
	}
	p.space(true)
	return strings.HasPrefix(p.text[p.at:], "::=")
}

func (p *ebnfParser) item() (expr, error) {
	switch {
	case p.next('"'):
		return p.quoted()
	case p.next('['):
		return p.class()
	case p.next('.'):
		return runes(0, utf8.MaxRune), nil
	case p.next('('):
		e, err := p.alternatives()
		if err == nil && !p.next(')') {
			err = p.fail("want ), got %s", p.ahead())
		}
		return e, err
	}
	name := p.name()
	if name == "" {
		return nil, p.fail("unexpected %s", p.ahead())
	}
	return p.rule(name), nil
}

// quantified reads *, +, ?, {n}, {n,} and {n,m}.
func (p *ebnfParser) quantified(e expr) (expr, error) {
	for {
		switch {
		case p.next('*'):
			e = rep{e, 0, -1}
		case p.next('+'):
			e = rep{e, 1, -1}
		case p.next('?'):
			e = optional(e)
		case p.next('{'):
			inner, _, ok := strings.Cut(p.text[p.at:], "}")
			lo, hi, comma := strings.Cut(inner, ",")
			least, err := strconv.Atoi(strings.TrimSpace(lo))
			most := least
			if comma && strings.TrimSpace(hi) == "" {
				most = -1
			} else if comma && err == nil {
				most, err = strconv.Atoi(strings.TrimSpace(hi))
			}
			if !ok || err != nil || least < 0 || most >= 0 && most < least || max(least, most) > maxCopies {
				return nil, p.fail("want {n}, {n,} or {n,m} with numbers of at most %d, got %s", maxCopies, p.ahead())
			}
			p.at += len(inner) + 1
			e = rep{e, least, most}
		default:
			return e, nil
		}
	}
}

// maxCopies bounds a repetition.
const maxCopies = 10000

func (p *ebnfParser) quoted() (expr, error) {
	var out seq
	for {
		if p.next('"') {
			return out, nil
		}
		r, err := p.character()
		if err != nil {
			return nil, err
		}
		out = append(out, literal(string(r)))
	}
}

// character reads a character or an escape, in a text or a class.
func (p *ebnfParser) character() (rune, error) {
	if p.at >= len(p.text) || p.text[p.at] == '\n' {
		return 0, p.fail("a text or a class has no end")
	}
	r, n := utf8.DecodeRuneInString(p.text[p.at:])
	if r == utf8.RuneError && n == 1 {
		return 0, p.fail("not UTF-8: %s", p.ahead())
	}
	p.at += n
	if r != '\\' {
		return r, nil
	}
	if p.at >= len(p.text) {
		return 0, p.fail("an escape has no end")
	}
	c := p.text[p.at]
	p.at++
	if i := strings.IndexByte("nrt0", c); i >= 0 {
		return rune("\n\r\t\x00"[i]), nil
	}
	if digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]; digits > 0 {
		if p.at+digits > len(p.text) {
			return 0, p.fail("an escape has no end")
		}
		v, err := strconv.ParseUint(p.text[p.at:p.at+digits], 16, 32)
		if err != nil || !utf8.ValidRune(rune(v)) {
			return 0, p.fail("\\%c wants %d hexadecimal digits of a character", c, digits)
		}
		p.at += digits
		return rune(v), nil
	}
	if isWord(c) || c >= 0x80 {
		return 0, p.fail("unknown escape \\%c", c)
	}
	return rune(c), nil
}

// class reads [a-z] and [^a-z].
func (p *ebnfParser) class() (expr, error) {
	not := p.next('^')
	var pairs []rune
	for !p.next(']') {
		lo, err := p.character()
		if err != nil {
			return nil, err
		}
		hi := lo
		if p.at+1 < len(p.text) && p.text[p.at] == '-' && p.text[p.at+1] != ']' {
			p.at++
			if hi, err = p.character(); err != nil {
				return nil, err
			}
			if hi < lo {
				return nil, p.fail("a range of a class ends before it begins: %q-%q", lo, hi)
			}
		}
		pairs = append(pairs, lo, hi)
	}
	if not {
		pairs = invert(pairs)
	}
	w := regexWriter{char: runes}
	return w.class(pairs), nil
}

// invert returns the characters that no pair of bounds has.
func invert(pairs []rune) (out []rune) {
	next := rune(0)
	for {
		// the pair that begins first of those that end at or behind next
		best := -1
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i+1] >= next && (best < 0 || pairs[i] < pairs[best]) {
				best = i
			}
		}
		if best < 0 {
			return append(out, next, utf8.MaxRune)
		}
		if pairs[best] > next {
			out = append(out, next, pairs[best]-1)
		}
		if pairs[best+1] >= utf8.MaxRune {
			return out
		}
		next = pairs[best+1] + 1
	}
}
