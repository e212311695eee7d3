package tokenizer

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// TooLongError is a text with more tokens than its caller wants.
type TooLongError struct {
	AtLeast int // tokens
	Most    int
}

func (e *TooLongError) Error() string {
	return fmt.Sprintf("tokenizer: the text has at least %d tokens, more than %d", e.AtLeast, e.Most)
}

// bound says how much text one token can stand for.
type bound struct {
	bytes  int  // at most, of the text that is encoded; 0: any number
	spaces bool // a token, or the normalizer, can swallow any number of spaces besides
}

// least returns a number of tokens that a text has at least. It reads the text only where it must,
// and only until the number exceeds most.
func (b bound) least(text string, most int) int {
	if b.bytes == 0 || len(text)/b.bytes <= most {
		return 0
	}
	if !b.spaces {
		return len(text) / b.bytes
	}
	n := 0
	for _, r := range text {
		if !unicode.IsSpace(r) {
			n += utf8.RuneLen(r)
		}
		if n/b.bytes > most {
			break
		}
	}
	return n / b.bytes
}

// shrinkage is what the steps before the model do to the length of a text.
type shrinkage struct {
	bytes  int  // that can become one; 0: any number
	strips bool // spaces at the ends of a text
	spaces bool // other characters become spaces
	drops  bool // the pre-tokenizer drops separators
}

// A canonical composition joins at most four marks with a letter, a compatibility form makes one
// byte of at most four, and a lower case one of at most three. No character needs as much as this.
const (
	shrinkForm  = 8
	shrinkLower = 3
)

// add takes a normalizer into account.
func (s *shrinkage) add(kind string, pattern *matcher, content string) {
	switch kind {
	case "NFC", "NFD", "NFKC", "NFKD":
		s.bytes *= shrinkForm
	case "Lowercase":
		s.bytes *= shrinkLower
	case "Replace":
		if content == "" {
			s.bytes = 0
		} else if pattern.String != nil {
			s.bytes *= (len(*pattern.String) + len(content) - 1) / len(content)
		}
		s.spaces = s.spaces || strings.ContainsFunc(content, unicode.IsSpace)
	case "Strip":
		s.strips = true
	}
	s.bytes = min(s.bytes, 1<<20)
}

// bound returns how much text one token of a tokenizer can stand for.
func (s *shrinkage) bound(t *Tokenizer, added []addedToken) bound {
	m := t.model
	longest := utf8.UTFMax // a character that becomes the unknown token
	for i := range 256 {
		known := m.byteLevel && m.byteIDs[i] >= 0 || !m.byteLevel && m.byteFallback && m.fallback[i] >= 0
		if !known && (m.unk < 0 || m.fuseUnk) {
			return bound{} // any number of unknown characters becomes one token, or none
		}
	}
	for token := range m.vocab {
		n := len(token)
		if m.byteLevel {
			n = utf8.RuneCountInString(token)
		}
		longest = max(longest, n)
	}
	b := bound{spaces: s.strips}
	for _, a := range added {
		longest = max(longest, len(a.Content), len(normalizeAll(t.normalize, a.Content)))
		b.spaces = b.spaces || a.LStrip || a.RStrip
	}
	if s.drops || s.spaces && b.spaces {
		return bound{}
	}
	b.bytes = longest * s.bytes
	return b
}

// MaxBytes is the length of the longest text that can have at most n tokens; 0 when any text can.
func (t *Tokenizer) MaxBytes(n int) int {
	if t.bound.spaces {
		return 0
	}
	return t.bound.bytes * n
}
