package grammar

import "unicode/utf8"

// runes matches one character of a range, as UTF-8. Surrogates are no characters.
func runes(lo, hi rune) expr {
	var out alt
	for _, part := range [][2]rune{{lo, min(hi, 0xD7FF)}, {max(lo, 0xE000), min(hi, utf8.MaxRune)}} {
		for n, first := 1, rune(0); n <= 4; n++ {
			last := [...]rune{0, 0x7F, 0x7FF, 0xFFFF, utf8.MaxRune}[n]
			if a, b := max(part[0], first), min(part[1], last); a <= b {
				out = append(out, sameLength(a, b, n)...)
			}
			first = last + 1
		}
	}
	return join(out)
}

// join makes one set of the alternatives that are single bytes.
func join(list alt) expr {
	var set byteSet
	var out alt
	for _, e := range list {
		if s, ok := e.(byteSet); ok {
			for i := range set {
				set[i] |= s[i]
			}
		} else {
			out = append(out, e)
		}
	}
	if set != (byteSet{}) {
		out = append(alt{set}, out...)
	}
	if len(out) == 1 {
		return out[0]
	}
	return out
}

// sameLength splits a range of characters of n bytes each so that in every part the bytes vary
// independently of each other.
func sameLength(lo, hi rune, n int) alt {
	for i := 1; i < n; i++ {
		m := rune(1)<<(6*i) - 1 // the last i bytes
		if lo&^m != hi&^m {
			if lo&m != 0 {
				return append(sameLength(lo, lo|m, n), sameLength(lo|m+1, hi, n)...)
			}
			if hi&m != m {
				return append(sameLength(lo, hi&^m-1, n), sameLength(hi&^m, hi, n)...)
			}
		}
	}
	a, b := []byte(string(lo)), []byte(string(hi))
	e := make(seq, n)
	for i := range n {
		var s byteSet
		s.add(a[i], b[i])
		e[i] = s
	}
	if n == 1 {
		return alt{e[0]}
	}
	return alt{e}
}
