package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// piece is a part of the text on its way to the model.
type piece struct {
	text  string
	first bool // it begins where the text begins
}

// splitter is a step of pre-tokenization: it appends the parts of in to out.
type splitter interface {
	split(out, in []piece) []piece
}

// behavior says what becomes of a separator.
type behavior int

const (
	removed behavior = iota
	isolated
	mergedWithPrevious
	mergedWithNext
	contiguous
)

var behaviors = map[string]behavior{
	"Removed": removed, "Isolated": isolated, "MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext": mergedWithNext, "Contiguous": contiguous,
}

// splitBy splits at the matches of a pattern (with invert, at what it does not match).
type splitBy struct {
	pattern  pattern
	behavior behavior
	invert   bool
}

func (b splitBy) split(out, in []piece) []piece {
	for _, p := range in {
		out = b.one(out, p)
	}
	return out
}

func (b splitBy) one(out []piece, p piece) []piece {
	first, separator := len(out), false // separator: the part before was one
	add := func(from, to int, match bool) {
		match = match != b.invert
		text := p.text[from:to]
		last := len(out) - 1
		join := last >= first
		switch b.behavior {
		case removed:
			if match {
				return
			}
			join = false
		case isolated:
			join = false
		case mergedWithPrevious:
			join = join && match && !separator
		case mergedWithNext:
			join = join && !match && separator
		case contiguous:
			join = join && match == separator
		}
		separator = match
		if join {
			out[last].text = p.text[from-len(out[last].text) : to]
		} else {
			out = append(out, piece{text, p.first && from == 0})
		}
	}
	gap := 0
	for i := 0; i < len(p.text); {
		end := b.pattern.next(p.text, i)
		if l, ok := b.pattern.(literal); ok && end == i {
			n := strings.Index(p.text[i:], string(l))
			if n < 0 {
				break
			}
			i += n
			continue
		}
		if end == i {
			_, n := utf8.DecodeRuneInString(p.text[i:])
			i += n
			continue
		}
		if gap < i {
			add(gap, i, false)
		}
		add(i, end, true)
		i, gap = end, end
	}
	if gap < len(p.text) {
		add(gap, len(p.text), false)
	}
	return out
}

// literal matches a string.
type literal string

func (l literal) next(s string, i int) int {
	if strings.HasPrefix(s[i:], string(l)) {
		return i + len(l)
	}
	return i
}

// prefixSpace is ByteLevel's add_prefix_space.
type prefixSpace struct{}

func (prefixSpace) split(out, in []piece) []piece {
	for _, p := range in {
		if !strings.HasPrefix(p.text, " ") {
			p.text = " " + p.text
		}
		out = append(out, p)
	}
	return out
}

// metaspace writes spaces as a visible character and may add one in front.
type metaspace struct {
	replacement string
	scheme      scheme
	cut         bool // split before every replacement
}

type scheme int

const (
	always scheme = iota
	firstOnly
	never
)

var schemes = map[string]scheme{"always": always, "first": firstOnly, "never": never}

func (m metaspace) split(out, in []piece) []piece {
	for _, p := range in {
		p.text = strings.ReplaceAll(p.text, " ", m.replacement)
		if (m.scheme == always || m.scheme == firstOnly && p.first) && !strings.HasPrefix(p.text, m.replacement) {
			p.text = m.replacement + p.text
		}
		if m.cut {
			out = splitBy{pattern: literal(m.replacement), behavior: mergedWithNext}.one(out, p)
		} else {
			out = append(out, p)
		}
	}
	return out
}

// numeric matches a character of category N, or a run of them.
type numeric struct{}

func (numeric) next(s string, i int) int {
	return run(s, i, number, 1)
}
