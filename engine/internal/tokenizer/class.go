package tokenizer

import "unicode"

// class is a set of the properties that the split patterns ask for.
type class uint16

const (
	letter  class = 1 << iota // \p{L}
	number                    // \p{N}
	space                     // \s: White_Space
	mark                      // \p{M}
	upper                     // \p{Lu}, \p{Lt}
	lower                     // \p{Ll}
	newline                   // [\r\n]
	punct                     // \p{P}
	symbol                    // \p{S}
)

var asciiClass [128]class

func init() {
	for r := range asciiClass {
		asciiClass[r] = lookup(rune(r))
	}
}

func lookup(r rune) class {
	switch {
	case unicode.IsLower(r):
		return letterClass(r, lower)
	case unicode.IsUpper(r), unicode.IsTitle(r):
		return letterClass(r, upper)
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return number
	case r == '\r', r == '\n':
		return space | newline
	case unicode.IsSpace(r):
		return space
	case unicode.IsMark(r):
		return mark
	case unicode.IsPunct(r):
		return punct
	case unicode.IsSymbol(r):
		return symbol
	}
	return newCharacter(r)
}

// letterClass guards against characters that are Lower or Upper in Go without being of category L.
func letterClass(r rune, c class) class {
	if unicode.IsLetter(r) {
		return letter | c
	}
	return 0
}

// isWord is \w: Alphabetic, marks, decimal digits, connectors and joiners.
func isWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsMark(r) || newCharacter(r)&(letter|mark|number) != 0 ||
		unicode.In(r, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}
