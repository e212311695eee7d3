package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// A byte-level vocabulary spells each byte as a printable character: GPT-2's table. Printable ASCII
// and Latin-1 stand for themselves, the other 68 bytes for U+0100 onwards.
var (
	byteToRune [256]rune
	runeToByte = make(map[rune]byte, 256)
)

func init() {
	next := rune(0x100)
	for b := range byteToRune {
		r := rune(b)
		if printable := b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE; !printable {
			r = next
			next++
		}
		byteToRune[b] = r
		runeToByte[r] = byte(b)
	}
}

// unspell turns a byte-level token into its bytes; not ok when a character is not of the table.
func unspell(token string) (string, bool) {
	b := make([]byte, 0, len(token))
	for _, r := range token {
		c, ok := runeToByte[r]
		if !ok {
			return "", false
		}
		b = append(b, c)
	}
	return string(b), true
}

// validUTF8 replaces what is not UTF-8 by U+FFFD, one for each maximal part of a character (Unicode
// 15, section 3.9; Rust's from_utf8_lossy and Python's errors="replace" do the same).
func validUTF8(s string) string {
	var b strings.Builder
	b.Grow(len(s) + 8)
	for len(s) > 0 {
		n := badPrefix(s)
		if n > 0 {
			b.WriteRune(utf8.RuneError)
		} else {
			_, n = utf8.DecodeRuneInString(s)
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

// badPrefix is the length of the maximal part of a character that s starts with, 0 when s starts
// with a whole one.
func badPrefix(s string) int {
	if r, n := utf8.DecodeRuneInString(s); r != utf8.RuneError || n > 1 {
		return 0
	}
	n := 1
	for n < len(s) && !utf8.FullRuneInString(s[:n+1]) { // FullRune is true of what no more bytes can mend
		n++
	}
	return n
}

// incompleteTail is the number of bytes at the end of s that may become a character when more
// follow.
func incompleteTail(s []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(s); n++ {
		tail := s[len(s)-n:]
		if utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
