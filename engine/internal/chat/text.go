package chat

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// Texts, as Python's str and Jinja's filters treat them.

func lower(s string) string { return cases.Lower(language.Und).String(s) }
func upper(s string) string { return cases.Upper(language.Und).String(s) }

// isCased is str.islower or str.isupper: there is a letter with case, and fold changes nothing.
func isCased(s string, fold func(string) string) bool {
	return strings.IndexFunc(s, func(c rune) bool {
		return unicode.IsUpper(c) || unicode.IsLower(c) || unicode.IsTitle(c)
	}) >= 0 && fold(s) == s
}

func capitalize(s string) string {
	for i := range s {
		if i > 0 {
			return upper(s[:i]) + lower(s[i:])
		}
	}
	return upper(s)
}

// title is str.title: a letter behind anything but a letter is upper case.
func title(s string) string {
	var b strings.Builder
	inWord := false
	for _, c := range s {
		letter := unicode.IsUpper(c) || unicode.IsLower(c) || unicode.IsTitle(c)
		if letter && !inWord {
			b.WriteRune(unicode.ToTitle(c))
		} else {
			b.WriteRune(unicode.ToLower(c))
		}
		inWord = letter
	}
	return b.String()
}

// titleFilter is Jinja's: words begin behind white space, hyphens and opening brackets.
func titleFilter(s string) string {
	var b strings.Builder
	word := strings.Builder{}
	end := func() {
		b.WriteString(capitalize(word.String()))
		word.Reset()
	}
	for _, c := range s {
		if isSpace(c) || strings.ContainsRune("-({[<", c) {
			end()
			b.WriteRune(c)
			continue
		}
		word.WriteRune(c)
	}
	end()
	return b.String()
}

// strip is str.strip and its halves; chars is absent, None or a set of characters.
func strip(r *run, s string, chars any, left, right bool) string {
	cut := isSpace
	if chars = given(chars, nil); chars != nil {
		set := wantText(r, chars, "strip")
		cut = func(c rune) bool { return strings.ContainsRune(set, c) }
	}
	r.charge(len(s) / 64)
	if left {
		s = strings.TrimLeftFunc(s, cut)
	}
	if right {
		s = strings.TrimRightFunc(s, cut)
	}
	return s
}

func textList(r *run, parts []string) []any {
	out := make([]any, len(parts))
	for i, p := range parts {
		out[i] = p
	}
	return r.list(out)
}

// split is str.split, and str.rsplit from the end.
func split(r *run, s string, sep, count any, fromEnd bool) any {
	r.charge(len(s) / 8)
	most := r.integer(given(count, int64(-1)), "split's maxsplit")
	if most < 0 {
		most = len(s)
	}
	sep = given(sep, nil)
	if sep == nil {
		return textList(r, splitSpace(s, most, fromEnd))
	}
	by := wantText(r, sep, "split")
	if by == "" {
		fail(Runtime, r.line, "split by an empty text")
	}
	if !fromEnd {
		return textList(r, strings.SplitN(s, by, most+1))
	}
	var parts []string
	for range most {
		i := strings.LastIndex(s, by)
		if i < 0 {
			break
		}
		parts = append(parts, s[i+len(by):])
		s = s[:i]
	}
	parts = append(parts, s)
	slices.Reverse(parts)
	return textList(r, parts)
}

func splitSpace(s string, most int, fromEnd bool) (parts []string) {
	trim, next := strings.TrimLeftFunc, nextSpace
	if fromEnd {
		trim, next = strings.TrimRightFunc, lastSpace
	}
	for s = trim(s, isSpace); s != ""; s = trim(s, isSpace) {
		part, rest := s, ""
		if most > 0 {
			part, rest = next(s)
		}
		parts = append(parts, part)
		s = rest
		most--
	}
	if fromEnd {
		slices.Reverse(parts)
	}
	return parts
}

// nextSpace cuts a text before its first white space.
func nextSpace(s string) (word, rest string) {
	if i := strings.IndexFunc(s, isSpace); i >= 0 {
		return s[:i], s[i:]
	}
	return s, ""
}

// lastSpace cuts a text behind its last white space.
func lastSpace(s string) (word, rest string) {
	i := strings.LastIndexFunc(s, isSpace)
	if i < 0 {
		return s, ""
	}
	_, n := utf8.DecodeRuneInString(s[i:])
	return s[i+n:], s[:i]
}

// splitLines is str.splitlines.
func splitLines(s string, keep bool) (lines []string) {
	for s != "" {
		i := strings.IndexFunc(s, func(c rune) bool {
			return c >= '\n' && c <= '\r' || c >= 0x1c && c <= 0x1e || c == 0x85 || c == 0x2028 || c == 0x2029
		})
		if i < 0 {
			return append(lines, s)
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			n = 2
		}
		if keep {
			lines = append(lines, s[:i+n])
		} else {
			lines = append(lines, s[:i])
		}
		s = s[i+n:]
	}
	return lines
}

// replace is str.replace: count −1 is every one.
func replace(r *run, s, from, to string, count int) string {
	r.charge((len(s) + len(from)) / 64)
	if n := strings.Count(s, from); count != 0 && n > 0 {
		if count > 0 {
			n = min(n, count)
		}
		r.room(max(len(to), 1), int64(n), 4*maxBytes)
	}
	return r.text(strings.Replace(s, from, to, count))
}

// indent is Jinja's filter.
func indent(r *run, s string, width any, first, blank bool) string {
	pad, ok := width.(string)
	if !ok {
		n := r.integer(width, "indent's width")
		r.room(1, int64(n), maxBytes)
		pad = strings.Repeat(" ", max(n, 0))
	}
	lines := splitLines(s+"\n", false)
	r.room(max(len(pad), 1), int64(len(lines)), maxBytes)
	for i := range lines {
		if i > 0 && (blank || lines[i] != "") || i == 0 && first {
			lines[i] = pad + lines[i]
		}
	}
	return r.text(strings.Join(lines, "\n"))
}

// find returns the index of a text in characters, -1 when it is not there.
func find(r *run, s, sub string, last bool) int64 {
	r.charge(len(s) / 64)
	i := strings.Index(s, sub)
	if last {
		i = strings.LastIndex(s, sub)
	}
	if i < 0 {
		return -1
	}
	return int64(len([]rune(s[:i])))
}

// affix is str.startswith and str.endswith: one text, or a tuple of them.
func affix(r *run, s string, v any, has func(s, part string) bool) bool {
	if list, ok := v.(tuple); ok {
		return slices.ContainsFunc(list, func(x any) bool { return has(s, wantText(r, x, "startswith or endswith")) })
	}
	return has(s, wantText(r, v, "startswith or endswith"))
}

// every reports whether s has characters and all are of a kind.
func every(s string, kind func(rune) bool) bool {
	return s != "" && strings.IndexFunc(s, func(c rune) bool { return !kind(c) }) < 0
}
