package grammar

import (
	"regexp/syntax"
	"unicode"
	"unicode/utf8"
)

const regexKind = "regular expression"

// Regex matches a whole output with a regular expression in Go's syntax, which is Perl's without
// what needs backtracking.
func Regex(pattern string, v *Vocabulary, limit int64) (*Grammar, error) {
	re, err := parseRegex(regexKind, "", pattern)
	if err != nil {
		return nil, err
	}
	w := regexWriter{kind: regexKind, char: runes}
	e, err := w.whole(re)
	if err != nil {
		return nil, err
	}
	return newGrammar(regexKind, rules{e}, v, limit)
}

func parseRegex(kind, where, pattern string) (*syntax.Regexp, error) {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, &Error{Kind: kind, Where: where, What: err.Error(), Unsupported: true}
	}
	return re, nil
}

// regexWriter turns a regular expression into a rule.
type regexWriter struct {
	kind, where string
	char        func(lo, hi rune) expr // how a character of a range is written
}

func (w *regexWriter) refuse(what string) error {
	return &Error{Kind: w.kind, Where: w.where, What: what + ": unsupported", Unsupported: true}
}

// whole is an expression that matches the whole text; ^ and $ may stand at its ends.
func (w *regexWriter) whole(re *syntax.Regexp) (expr, error) {
	re, _ = trim(re, syntax.OpBeginText, 0)
	re, _ = trim(re, syntax.OpEndText, -1)
	return w.write(re)
}

// search is an expression that matches a part of the text, unless ^ or $ say more.
func (w *regexWriter) search(re *syntax.Regexp) (expr, error) {
	for re.Op == syntax.OpCapture {
		re = re.Sub[0]
	}
	if re.Op == syntax.OpAlternate {
		var all alt
		for _, sub := range re.Sub {
			e, err := w.search(sub)
			if err != nil {
				return nil, err
			}
			all = append(all, e)
		}
		return all, nil
	}
	re, begins := trim(re, syntax.OpBeginText, 0)
	re, ends := trim(re, syntax.OpEndText, -1)
	e, err := w.write(re)
	if err != nil {
		return nil, err
	}
	anything := rep{w.char(0, utf8.MaxRune), 0, -1}
	out := seq{e}
	if !begins {
		out = append(seq{anything}, out...)
	}
	if !ends {
		out = append(out, anything)
	}
	return out, nil
}

// trim removes an anchor from an end of an expression. Parsing joins concatenations, so it is there
// at the top, or in a group.
func trim(re *syntax.Regexp, anchor syntax.Op, end int) (_ *syntax.Regexp, found bool) {
	switch {
	case re.Op == anchor:
		return &syntax.Regexp{Op: syntax.OpEmptyMatch}, true
	case re.Op == syntax.OpCapture:
		return trim(re.Sub[0], anchor, end)
	case re.Op == syntax.OpConcat && len(re.Sub) > 0:
		i := end
		if i < 0 {
			i = len(re.Sub) - 1
		}
		sub, found := trim(re.Sub[i], anchor, end)
		if !found {
			return re, false
		}
		c := *re
		c.Sub = append([]*syntax.Regexp(nil), re.Sub...)
		c.Sub[i] = sub
		return &c, true
	}
	return re, false
}

func (w *regexWriter) write(re *syntax.Regexp) (expr, error) {
	switch re.Op {
	case syntax.OpNoMatch:
		return alt{}, nil
	case syntax.OpEmptyMatch:
		return seq{}, nil
	case syntax.OpLiteral:
		return w.literal(re), nil
	case syntax.OpCharClass:
		return w.class(re.Rune), nil
	case syntax.OpAnyCharNotNL:
		// The line ends of all dialects are left out: JSON schemas have those of JavaScript.
		return w.class([]rune{0, '\t', '\v', '\f', '\r' + 1, '\u2027', '\u202a', utf8.MaxRune}), nil
	case syntax.OpAnyChar:
		return w.char(0, utf8.MaxRune), nil
	case syntax.OpCapture:
		return w.write(re.Sub[0])
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		return w.repeat(re)
	case syntax.OpConcat:
		parts, err := w.all(re.Sub)
		return seq(parts), err
	case syntax.OpAlternate:
		choices, err := w.all(re.Sub)
		return alt(choices), err
	}
	return nil, w.refuse(re.String() + " in this place")
}

func (w *regexWriter) all(subs []*syntax.Regexp) ([]expr, error) {
	out := make([]expr, len(subs))
	for i, sub := range subs {
		e, err := w.write(sub)
		if err != nil {
			return nil, err
		}
		out[i] = e
	}
	return out, nil
}

func (w *regexWriter) repeat(re *syntax.Regexp) (expr, error) {
	e, err := w.write(re.Sub[0])
	if err != nil {
		return nil, err
	}
	switch re.Op {
	case syntax.OpStar:
		return rep{e, 0, -1}, nil
	case syntax.OpPlus:
		return rep{e, 1, -1}, nil
	case syntax.OpQuest:
		return optional(e), nil
	}
	return rep{e, re.Min, re.Max}, nil
}

func (w *regexWriter) literal(re *syntax.Regexp) expr {
	out := seq{}
	for _, r := range re.Rune {
		if re.Flags&syntax.FoldCase == 0 {
			out = append(out, w.char(r, r))
			continue
		}
		same := alt{w.char(r, r)}
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			same = append(same, w.char(f, f))
		}
		out = append(out, join(same))
	}
	return out
}

// class is one of the characters of pairs of bounds.
func (w *regexWriter) class(pairs []rune) expr {
	out := alt{}
	for i := 0; i+1 < len(pairs); i += 2 {
		e := w.char(pairs[i], pairs[i+1])
		if list, ok := e.(alt); ok {
			out = append(out, list...)
		} else {
			out = append(out, e)
		}
	}
	return join(out)
}
