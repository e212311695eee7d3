package chat

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind int

const (
	tokData tokenKind = iota // text between tags
	tokBlockBegin
	tokBlockEnd
	tokPrintBegin
	tokPrintEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
	tokEOF
)

type token struct {
	kind  tokenKind
	text  string // of a string: its value
	value any    // of a number
	line  int
}

func (t token) String() string {
	switch t.kind {
	case tokEOF:
		return "the end of the template"
	case tokData:
		return "text"
	case tokString:
		return fmt.Sprintf("%q", t.text)
	}
	return fmt.Sprintf("'%s'", t.text)
}

var (
	rawBegin = regexp.MustCompile(`^\{%([-+]?)\s*raw\s*(?:-%\}\s*|%\})`)
	rawEnd   = regexp.MustCompile(`\{%([-+]?)\s*endraw\s*(?:\+%\}|-%\}\s*|%\}\n?)`)
	floats   = regexp.MustCompile(`^(?:\d+_)*\d+(?:(?:\.(?:\d+_)*\d+)?[eE][+-]?(?:\d+_)*\d+|\.(?:\d+_)*\d+)`)
	ints     = regexp.MustCompile(`^(?:0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0[xX](?:_?[0-9a-fA-F])+|[1-9](?:_?\d)*|0(?:_?0)*)`)
	strs     = regexp.MustCompile(`^(?s:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")`)
	ops      = []string{
		"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
		">", "<", "=", ".", ":", "|", ",", ";",
	}
)

// lexer cuts a template into tokens, with Jinja's rules for white space under trim_blocks and
// lstrip_blocks.
type lexer struct {
	src       string
	pos       int
	line      int
	lineStart bool // what came before pos ended a line
	tokens    []token
}

func lex(source string) []token {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	l := &lexer{src: strings.TrimSuffix(source, "\n"), line: 1, lineStart: true}
	for l.pos < len(l.src) {
		l.next()
	}
	l.add(tokEOF, "")
	return l.tokens
}

func (l *lexer) add(kind tokenKind, text string) {
	l.tokens = append(l.tokens, token{kind: kind, text: text, line: l.line})
}

// skip goes over n bytes.
func (l *lexer) skip(n int) {
	s := l.src[l.pos : l.pos+n]
	l.line += strings.Count(s, "\n")
	l.pos += n
	if n > 0 {
		l.lineStart = s[n-1] == '\n'
	}
}

// next reads text up to a tag, and the tag.
func (l *lexer) next() {
	rest := l.src[l.pos:]
	i := 0
	for {
		j := strings.IndexByte(rest[i:], '{')
		if j < 0 {
			l.data(rest)
			l.skip(len(rest))
			return
		}
		if i += j; i+1 < len(rest) && strings.IndexByte("{%#", rest[i+1]) >= 0 {
			break
		}
		i++
	}
	tag, sign := rest[i+1], byte(0)
	if i+2 < len(rest) && (rest[i+2] == '-' || rest[i+2] == '+') {
		sign = rest[i+2]
	}
	l.data(l.before(rest[:i], sign, tag == '{'))
	l.skip(i)
	if tag == '%' {
		if m := rawBegin.FindString(rest[i:]); m != "" {
			l.raw(len(m))
			return
		}
	}
	l.skip(2)
	if sign != 0 {
		l.skip(1)
	}
	switch tag {
	case '#':
		l.comment()
	case '%':
		l.add(tokBlockBegin, "{%")
		l.inside(tokBlockEnd, "%}")
	default:
		l.add(tokPrintBegin, "{{")
		l.inside(tokPrintEnd, "}}")
	}
}

// before takes away the white space that a tag takes away from the text before it.
func (l *lexer) before(text string, sign byte, print bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, isSpace)
	case sign == '+' || print:
		return text
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if (line > 0 || l.lineStart) && strings.TrimFunc(text[line:], isSpace) == "" {
		return text[:line]
	}
	return text
}

func (l *lexer) data(text string) {
	if text != "" {
		l.add(tokData, text)
	}
}

func (l *lexer) raw(begin int) {
	line := l.line
	l.skip(begin)
	rest := l.src[l.pos:]
	m := rawEnd.FindStringSubmatchIndex(rest)
	if m == nil {
		fail(Syntax, line, "{%% raw %%} has no {%% endraw %%}")
	}
	sign := byte(0)
	if m[3] > m[2] {
		sign = rest[m[2]]
	}
	l.data(l.before(rest[:m[0]], sign, false))
	l.skip(m[1])
}

func (l *lexer) comment() {
	end := strings.Index(l.src[l.pos:], "#}")
	if end < 0 {
		fail(Syntax, l.line, "{# has no #}")
	}
	sign := byte(0)
	if end > 0 {
		sign = l.src[l.pos+end-1]
	}
	l.skip(end + 2)
	l.after(sign, true)
}

// after goes over the white space that the end of a tag takes away.
func (l *lexer) after(sign byte, trim bool) {
	rest := l.src[l.pos:]
	switch {
	case sign == '-':
		l.skip(len(rest) - len(strings.TrimLeftFunc(rest, isSpace)))
	case trim && sign != '+' && strings.HasPrefix(rest, "\n"):
		l.skip(1)
	}
}

// inside reads the tokens of a tag up to its end.
func (l *lexer) inside(endKind tokenKind, end string) {
	begin := l.line
	var open []byte
	for {
		l.skip(len(l.src[l.pos:]) - len(strings.TrimLeftFunc(l.src[l.pos:], isSpace)))
		rest := l.src[l.pos:]
		if rest == "" {
			fail(Syntax, begin, "a tag does not end: no '%s'", end)
		}
		if len(open) == 0 {
			sign := byte(0)
			if rest[0] == '-' || rest[0] == '+' && end == "%}" {
				sign = rest[0]
			}
			if s := rest[min(1, int(sign)):]; strings.HasPrefix(s, end) {
				l.add(endKind, end)
				l.skip(len(rest) - len(s) + len(end))
				l.after(sign, end == "%}")
				return
			}
		}
		open = l.token(rest, open)
	}
}

// token reads one token of a tag; open are the brackets that are open.
func (l *lexer) token(rest string, open []byte) []byte {
	first, _ := utf8.DecodeRuneInString(rest)
	if m := floats.FindString(rest); m != "" {
		f, err := strconv.ParseFloat(strings.ReplaceAll(m, "_", ""), 64)
		if err != nil {
			fail(Syntax, l.line, "%q is not a number", m)
		}
		l.tokens = append(l.tokens, token{tokFloat, m, f, l.line})
		l.skip(len(m))
		return open
	}
	if m := ints.FindString(rest); m != "" {
		i, err := strconv.ParseInt(strings.ReplaceAll(m, "_", ""), 0, 64)
		if err != nil {
			fail(Unsupported, l.line, "an integer beyond 64 bits")
		}
		l.tokens = append(l.tokens, token{tokInt, m, i, l.line})
		l.skip(len(m))
		return open
	}
	if first == '_' || unicode.IsLetter(first) || unicode.IsDigit(first) {
		n := strings.IndexFunc(rest, func(c rune) bool {
			return c != '_' && !unicode.IsLetter(c) && !unicode.IsDigit(c) && !unicode.IsMark(c)
		})
		if n < 0 {
			n = len(rest)
		}
		l.add(tokName, rest[:n])
		l.skip(n)
		return open
	}
	if m := strs.FindString(rest); m != "" {
		l.add(tokString, unescape(m[1:len(m)-1], l.line))
		l.skip(len(m))
		return open
	}
	for _, op := range ops {
		if !strings.HasPrefix(rest, op) {
			continue
		}
		switch c := op[0]; c {
		case '(', '[', '{':
			open = append(open, c)
		case ')', ']', '}':
			pair := map[byte]byte{')': '(', ']': '[', '}': '{'}[c]
			if len(open) == 0 || open[len(open)-1] != pair {
				fail(Syntax, l.line, "'%c' without '%c'", c, pair)
			}
			open = open[:len(open)-1]
		}
		l.add(tokOp, op)
		l.skip(len(op))
		return open
	}
	fail(Syntax, l.line, "unexpected character %q", first)
	return nil
}

// unescape reads the escapes of a Python string literal; unknown ones stay as they are.
func unescape(s string, line int) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		if k := strings.IndexByte("\n\\'\"abfnrtv", s[i]); k >= 0 {
			b.WriteString([]string{"", "\\", "'", "\"", "\a", "\b", "\f", "\n", "\r", "\t", "\v"}[k])
			continue
		}
		digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[i]]
		switch {
		case s[i] == 'N':
			fail(Unsupported, line, `the escape \N`)
		case digits > 0:
			if i+digits >= len(s) {
				fail(Syntax, line, `a cut-off \%c escape`, s[i])
			}
			c, err := strconv.ParseUint(s[i+1:i+1+digits], 16, 32)
			if err != nil || c > unicode.MaxRune || c >= 0xd800 && c < 0xe000 {
				fail(Syntax, line, `\%c%s is not a character`, s[i], s[i+1:i+1+digits])
			}
			b.WriteRune(rune(c))
			i += digits
		case s[i] >= '0' && s[i] <= '7':
			n := 1
			for n < 3 && i+n < len(s) && s[i+n] >= '0' && s[i+n] <= '7' {
				n++
			}
			c, _ := strconv.ParseUint(s[i:i+n], 8, 32)
			b.WriteRune(rune(c))
			i += n - 1
		default:
			b.WriteByte('\\')
			b.WriteByte(s[i])
		}
	}
	return b.String()
}
