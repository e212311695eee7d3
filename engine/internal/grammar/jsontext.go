package grammar

import "unicode/utf8"

// jsonParts are the rules that every JSON grammar shares. Each is made when it is first used.
type jsonParts struct {
	rules *rules
	made  map[string]ref
}

func (p *jsonParts) rule(name string, e func() expr) ref {
	r, ok := p.made[name]
	if !ok {
		r = p.rules.reserve()
		p.made[name] = r
		(*p.rules)[r] = e()
	}
	return r
}

// blank is what may stand between two parts: nothing, a space, or a line end and an indentation.
func (p *jsonParts) blank() expr {
	return p.rule("blank", func() expr {
		return alt{seq{}, single(' '), seq{single('\n'), rep{single(' '), 0, 20}}}
	})
}

var (
	digit = func() byteSet { var s byteSet; s.add('0', '9'); return s }()
	hex   = chars("0123456789abcdefABCDEF")
)

// escape is \uXXXX of a character that is no surrogate.
func escape() expr {
	notD := chars("0123456789abcefABCEF")
	low := chars("01234567")
	return seq{literal(`\u`), alt{seq{notD, hex, hex, hex}, seq{chars("dD"), low, hex, hex}}}
}

// char is one character of a text, in any of its spellings.
func (p *jsonParts) char() expr {
	return p.rule("char", func() expr {
		out := alt{seq{single('\\'), chars(`"\/bfnrt`)}, escape()}
		return append(out, runes(' ', '!'), runes('#', '['), runes(']', utf8.MaxRune))
	})
}

// jsonRunes is a character of a range in one spelling, between the quotes of a text.
func jsonRunes(lo, hi rune) expr {
	out := alt{}
	for _, part := range [][2]rune{{' ', '!'}, {'#', '['}, {']', utf8.MaxRune}} {
		if a, b := max(lo, part[0]), min(hi, part[1]); a <= b {
			out = append(out, runes(a, b))
		}
	}
	for c := max(lo, 0); c <= min(hi, '\\'); c++ {
		if c == '"' || c == '\\' || c < ' ' {
			out = append(out, literal(spell(c)))
		}
	}
	return join(out)
}

// spell writes a character that cannot stand for itself.
func spell(c rune) string {
	switch c {
	case '"', '\\':
		return `\` + string(c)
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	}
	const digits = "0123456789abcdef"
	return `\u00` + string(digits[c>>4]) + string(digits[c&15])
}

func quotedText(e expr) expr { return seq{single('"'), e, single('"')} }

// text is any text.
func (p *jsonParts) text() expr {
	return p.rule("text", func() expr { return quotedText(rep{p.char(), 0, -1}) })
}

// maxDigits bounds the digits before a point: such a number is exact in a double.
const maxDigits = 15

func (p *jsonParts) integer() expr {
	return p.rule("integer", func() expr {
		return seq{optional(single('-')), whole()}
	})
}

func whole() expr {
	var first byteSet
	first.add('1', '9')
	return alt{single('0'), seq{first, rep{digit, 0, maxDigits - 1}}}
}

func fraction() expr { return seq{single('.'), rep{digit, 1, 6}} }

func (p *jsonParts) number() expr {
	return p.rule("number", func() expr {
		exponent := seq{chars("eE"), optional(chars("+-")), rep{digit, 1, 2}}
		return seq{p.integer(), optional(fraction()), optional(exponent)}
	})
}

func (p *jsonParts) boolean() expr { return alt{literal("true"), literal("false")} }

// value is any JSON value.
func (p *jsonParts) value() expr {
	return p.rule("value", func() expr {
		return alt{p.object(p.any(), 0, -1), p.list(p.any(), 0, -1), p.text(), p.number(), p.boolean(), literal("null")}
	})
}

// any refers to value, also while it is made.
func (p *jsonParts) any() expr {
	if r, ok := p.made["value"]; ok {
		return r
	}
	return p.value()
}

// list is an array with this many items of one kind.
func (p *jsonParts) list(item expr, least, most int) expr {
	return p.enclosed('[', ']', item, least, most)
}

// object is an object whose values are of one kind, with any names.
func (p *jsonParts) object(value expr, least, most int) expr {
	return p.enclosed('{', '}', seq{p.text(), p.colon(), value}, least, most)
}

func (p *jsonParts) colon() expr { return seq{single(':'), optional(single(' '))} }

func (p *jsonParts) enclosed(begin, end byte, item expr, least, most int) expr {
	empty := seq{single(begin), p.blank(), single(end)}
	if most == 0 {
		return empty
	}
	more := rep{seq{single(','), p.blank(), item}, max(least-1, 0), most - 1}
	if most < 0 {
		more.max = -1
	}
	filled := seq{single(begin), p.blank(), item, more, p.blank(), single(end)}
	if least > 0 {
		return filled
	}
	return alt{empty, filled}
}
