package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// seams are the places between two characters that no merge reaches over: what stands on either
// side is merged alone, with the same result. Vocabularies of the SentencePiece kind have no words
// to cut a text into, and merging it as a whole takes ten times as long.
type seams struct {
	known map[rune]bool   // characters that are tokens
	joins map[uint64]bool // pairs of characters that some merge can join
	quick [quickChars][quickChars]bool
}

// The characters that a seam is found for without a map: ASCII, and the visible space as the last.
const (
	quickChars   = utf8.RuneSelf + 1
	visibleSpace = '▁'
)

// quick returns a character's index in the table, or quickChars.
func quick(r rune) int {
	switch {
	case r < utf8.RuneSelf:
		return int(r)
	case r == visibleSpace:
		return quickChars - 1
	}
	return quickChars
}

// newSeams returns nil where seams cannot be told from the characters: when a merge has a byte's
// token.
func newSeams(vocab map[string]int32, merges []mergePair) *seams {
	s := &seams{known: map[rune]bool{}, joins: map[uint64]bool{}}
	for token := range vocab {
		if r, n := utf8.DecodeRuneInString(token); n > 0 && n == len(token) && r != utf8.RuneError {
			s.known[r] = true
		}
	}
	for _, m := range merges {
		if m.comment {
			continue
		}
		if isByteToken(m.a) || isByteToken(m.b) {
			return nil
		}
		a, _ := utf8.DecodeLastRuneInString(m.a)
		b, _ := utf8.DecodeRuneInString(m.b)
		s.joins[runes(a, b)] = true
	}
	for a := range rune(utf8.RuneSelf) {
		s.quick[quick(a)][quick(visibleSpace)] = s.at(a, visibleSpace)
		s.quick[quick(visibleSpace)][quick(a)] = s.at(visibleSpace, a)
		for b := range rune(utf8.RuneSelf) {
			s.quick[a][b] = s.at(a, b)
		}
	}
	s.quick[quick(visibleSpace)][quick(visibleSpace)] = s.at(visibleSpace, visibleSpace)
	return s
}

// isByteToken reports whether a token is spelled <0xNN>.
func isByteToken(s string) bool {
	return len(s) == len("<0x00>") && strings.HasPrefix(s, "<0x") && strings.HasSuffix(s, ">")
}

func runes(a, b rune) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

// at reports whether there is a seam between two characters. There is none before an unknown
// character: it can belong to the one before it.
func (s *seams) at(a, b rune) bool { return s.known[b] && !s.joins[runes(a, b)] }

// next returns the length of the text before the first seam.
func (s *seams) next(text string) int {
	var before rune
	q := quickChars // of the character before
	for i, r := range text {
		p := quick(r)
		switch {
		case i == 0:
		case p < quickChars && q < quickChars:
			if s.quick[q][p] {
				return i
			}
		case s.at(before, r):
			return i
		}
		before, q = r, p
	}
	return len(text)
}
