package tokenizer

import (
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// normalizer rewrites a section of text that is no added token.
type normalizer func(string) string

func form(f norm.Form) normalizer { return f.String }

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

// lowercase maps each character alone, as the library does: no final sigma. U+0130 is the one character with a longer lower case.
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
