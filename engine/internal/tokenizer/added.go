package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is found in the text before the model sees it.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only where no word character touches it
	LStrip     bool   `json:"lstrip"`      // takes the spaces before it
	RStrip     bool   `json:"rstrip"`      // and behind it
	Normalized bool   `json:"normalized"`  // looked for in the normalized text, itself normalized
	Special    bool   `json:"special"`
}

// addedTokens finds them: those of the raw text first, then in what is left, normalized, the
// others.
type addedTokens struct {
	raw, normalized trie
	special         map[int32]bool
}

func newAddedTokens(list []addedToken, normalize []normalizer) *addedTokens {
	a := &addedTokens{special: map[int32]bool{}}
	for i := range list {
		t := &list[i]
		if t.Special {
			a.special[t.ID] = true
		}
		if t.Normalized {
			a.normalized.add(normalizeAll(normalize, t.Content), t)
		} else {
			a.raw.add(t.Content, t)
		}
	}
	return a
}

// section is an added token (id ≥ 0) or normalized text (id −1).
type section struct {
	piece
	id int32
}

func (a *addedTokens) sections(text string, normalize []normalizer) []section {
	var out []section
	for _, s := range a.raw.find(nil, text, true) {
		if s.id >= 0 {
			out = append(out, s)
			continue
		}
		out = a.normalized.find(out, normalizeAll(normalize, s.text), s.first)
	}
	return out
}

// trie holds the spellings of tokens, for the longest match at a place.
type trie struct {
	first [256]bool
	edges map[uint64]int32 // node<<8 | byte → node; node 0 is the root
	ends  map[int32]*addedToken
}

func (t *trie) add(content string, token *addedToken) {
	if content == "" {
		return
	}
	if t.edges == nil {
		t.edges, t.ends = map[uint64]int32{}, map[int32]*addedToken{}
	}
	t.first[content[0]] = true
	node := int32(0)
	for i := range len(content) {
		key := uint64(node)<<8 | uint64(content[i])
		next, ok := t.edges[key]
		if !ok {
			next = int32(len(t.edges) + 1)
			t.edges[key] = next
		}
		node = next
	}
	if t.ends[node] == nil {
		t.ends[node] = token
	}
}

// longest returns the longest token at s[i:], and its length.
func (t *trie) longest(s string, i int) (token *addedToken, length int) {
	node := int32(0)
	for j := i; j < len(s); j++ {
		next, ok := t.edges[uint64(node)<<8|uint64(s[j])]
		if !ok {
			break
		}
		if node = next; t.ends[node] != nil {
			token, length = t.ends[node], j+1-i
		}
	}
	return token, length
}

// find appends text cut at its tokens. first says that text begins where the input begins.
func (t *trie) find(out []section, text string, first bool) []section {
	rest := func(from, to int) {
		if from < to {
			out = append(out, section{piece{text[from:to], first && from == 0}, -1})
		}
	}
	done := 0
	for i := 0; i < len(text); i++ {
		if !t.first[text[i]] {
			continue
		}
		token, n := t.longest(text, i)
		if token == nil {
			continue
		}
		start, stop := i, i+n
		i = stop - 1
		if token.SingleWord && touchesWord(text, start, stop) {
			continue
		}
		if token.LStrip {
			if start >= done {
				start = done + len(strings.TrimRightFunc(text[done:start], unicode.IsSpace))
			} else {
				start = done
			}
		}
		if token.RStrip {
			if stop = max(stop, done); stop > done { // else the spaces up to done are known already
				stop = len(text) - len(strings.TrimLeftFunc(text[stop:], unicode.IsSpace))
			}
		}
		rest(done, start)
		if start < stop { // else the token before has taken all of its spaces
			out = append(out, section{id: token.ID})
		}
		done = stop
	}
	rest(done, len(text))
	return out
}

func touchesWord(text string, start, stop int) bool {
	before, _ := utf8.DecodeLastRuneInString(text[:start])
	after, _ := utf8.DecodeRuneInString(text[stop:])
	return start > 0 && isWord(before) || stop < len(text) && isWord(after)
}
