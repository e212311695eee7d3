package tokenizer

import (
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// normalizer rewrites a section of text that is no added token.
type normalizer func(string) string

// form is a Unicode normalization form. x/text breaks a run of more than 30 combining marks with
// U+034F (its stream-safe format): where it did, the form is computed anew without that.
func form(f norm.Form) normalizer {
	return func(s string) string {
		out := f.String(s)
		if strings.Count(out, joiner) > strings.Count(s, joiner) {
			return unbroken(f, s)
		}
		return out
	}
}

const joiner = "\u034f"

// unbroken decomposes, orders marks by their class and composes, by the book (Unicode, section
// 3.11), for runs of any length.
func unbroken(f norm.Form, s string) string {
	decomposed, compose := f, false
	switch f {
	case norm.NFC:
		decomposed, compose = norm.NFD, true
	case norm.NFKC:
		decomposed, compose = norm.NFKD, true
	}
	var runes []rune
	for _, r := range s {
		runes = append(runes, []rune(decomposed.String(string(r)))...)
	}
	for i := 0; i < len(runes); i++ {
		j := i
		for j < len(runes) && combining(runes[j]) != 0 {
			j++
		}
		slices.SortStableFunc(runes[i:j], func(a, b rune) int { return int(combining(a)) - int(combining(b)) })
		i = j
	}
	if compose {
		runes = composed(runes)
	}
	return string(runes)
}

func combining(r rune) uint8 { return norm.NFD.PropertiesString(string(r)).CCC() }

// composed joins each mark with the starter before it, unless a mark between them blocks it.
func composed(runes []rune) []rune {
	out := runes[:0]
	starter, last := -1, uint8(0) // last is the class of the character before, when it did not compose
	for _, r := range runes {
		class := combining(r)
		if starter >= 0 && (len(out) == starter+1 || last != 0 && last < class) {
			if joined := []rune(norm.NFC.String(string(out[starter]) + string(r))); len(joined) == 1 {
				out[starter] = joined[0]
				continue
			}
		}
		if class == 0 {
			starter = len(out)
		}
		last = class
		out = append(out, r)
	}
	return out
}

func prepend(prefix string) normalizer {
	return func(s string) string {
		if s == "" {
			return s
		}
		return prefix + s
	}
}

func replace(old, with string) normalizer {
	return func(s string) string { return strings.ReplaceAll(s, old, with) }
}

// lowercase maps each character alone, as the library does: no final sigma. U+0130 is the one
// character with a longer lower case.
func lowercase(s string) string {
	return strings.ToLower(strings.ReplaceAll(s, "İ", "i̇"))
}

func strip(left, right bool) normalizer {
	return func(s string) string {
		if left {
			s = strings.TrimLeftFunc(s, unicode.IsSpace)
		}
		if right {
			s = strings.TrimRightFunc(s, unicode.IsSpace)
		}
		return s
	}
}

func normalizeAll(steps []normalizer, s string) string {
	for _, step := range steps {
		s = step(s)
	}
	return s
}
