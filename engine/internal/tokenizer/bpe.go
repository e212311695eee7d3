package tokenizer

import (
	"context"
	"slices"
	"unicode/utf8"
)

// bpe is the byte-pair-encoding model: it splits a word into characters (bytes, in a byte-level
// vocabulary) and then merges neighbours, the merge of the lowest rank first and of equal ones the
// leftmost.
type bpe struct {
	vocab        map[string]int32 // as spelled in the file
	merges       map[uint64]merge // by pair of ids
	byteLevel    bool
	byteIDs      [256]int32       // byteLevel: the token of each byte, -1 when there is none
	whole        map[string]int32 // ignoreMerges: tokens by the text that they stand for
	fallback     [256]int32       // byteFallback: the token <0xNN> of each byte, -1 when there is none
	byteFallback bool
	fuseUnk      bool
	unk          int32  // -1 when there is none: unknown characters are dropped
	seams        *seams // where a text can be cut; nil: nowhere
}

type merge struct{ rank, id int32 }

func pair(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

// scratch is one encoding's working memory and its bounds. It remembers short words, because text
// repeats them.
type scratch struct {
	ctx  context.Context
	most int   // tokens
	err  error // why the encoding has stopped
	work int   // words so far, and parts of long ones

	pieces, next []piece

	ids   []int32
	link  []link
	heap  candidates
	words map[string][]int32
}

const (
	maxWords  = 1 << 13 // remembered at most
	shortWord = 32      // characters
)

func newScratch(ctx context.Context, most int) *scratch {
	return &scratch{ctx: ctx, most: most, words: map[string][]int32{}}
}

// askEvery is how many words are encoded between two looks at the context.
const askEvery = 64

// goesOn reports whether the encoding, with n tokens so far, is within its bounds. If not, err says
// why.
func (s *scratch) goesOn(n int) bool {
	if s.err == nil && n > s.most {
		s.err = &TooLongError{AtLeast: n, Most: s.most}
	}
	if s.work++; s.err == nil && s.work%askEvery == 1 {
		s.err = s.ctx.Err()
	}
	return s.err == nil
}

// encode appends the tokens of a piece of text; they are incomplete when s has an error.
func (m *bpe) encode(out []int32, text string, s *scratch) []int32 {
	if m.whole != nil {
		if id, ok := m.whole[text]; ok {
			return append(out, id)
		}
	}
	if m.seams == nil {
		return m.word(out, text, s)
	}
	for text != "" && s.goesOn(len(out)) {
		end := m.seams.next(text)
		out = m.word(out, text[:end], s)
		text = text[end:]
	}
	return out
}

// word appends the tokens of a text that is merged as a whole.
func (m *bpe) word(out []int32, word string, s *scratch) []int32 {
	if len(word) > shortWord {
		return m.merge(out, word, s)
	}
	if ids, ok := s.words[word]; ok {
		return append(out, ids...)
	}
	start := len(out)
	out = m.merge(out, word, s)
	if len(s.words) < maxWords {
		s.words[word] = slices.Clone(out[start:])
	}
	return out
}

func (m *bpe) merge(out []int32, word string, s *scratch) []int32 {
	if m.byteLevel {
		s.ids = m.bytes(s.ids[:0], word)
	} else {
		s.ids = m.chars(s.ids[:0], word)
	}
	// Scanning for the best pair again and again is quadratic but has no overhead: a heap pays only
	// on long words.
	if len(s.ids) <= shortWord {
		return append(out, m.mergeShort(s.ids)...)
	}
	return m.mergeLong(out, s)
}

// bytes spells a word in the tokens of its bytes.
func (m *bpe) bytes(ids []int32, word string) []int32 {
	pending := false // an unknown token, not yet appended
	for i := range len(word) {
		id := m.byteIDs[word[i]]
		if id < 0 {
			ids, pending = m.unknown(ids, pending)
			continue
		}
		if pending {
			ids, pending = append(ids, m.unk), false
		}
		ids = append(ids, id)
	}
	if pending {
		ids = append(ids, m.unk)
	}
	return ids
}

// chars spells a word in the tokens of its characters, or of a character's bytes.
func (m *bpe) chars(ids []int32, word string) []int32 {
	pending := false
	for len(word) > 0 {
		_, n := utf8.DecodeRuneInString(word)
		c := word[:n]
		word = word[n:]
		if id, ok := m.vocab[c]; ok {
			if pending {
				ids, pending = append(ids, m.unk), false
			}
			ids = append(ids, id)
		} else if m.byteFallback && m.hasBytes(c) {
			for j := range len(c) { // a pending unknown token stays behind these, as in the library
				ids = append(ids, m.fallback[c[j]])
			}
		} else {
			ids, pending = m.unknown(ids, pending)
		}
	}
	if pending {
		ids = append(ids, m.unk)
	}
	return ids
}

// unknown holds an unknown character back, so that with fuseUnk a run of them is one token.
func (m *bpe) unknown(ids []int32, pending bool) ([]int32, bool) {
	if m.unk < 0 {
		return ids, false
	}
	if pending && !m.fuseUnk {
		ids = append(ids, m.unk)
	}
	return ids, true
}

func (m *bpe) hasBytes(c string) bool {
	for i := range len(c) {
		if m.fallback[c[i]] < 0 {
			return false
		}
	}
	return true
}

// mergeShort merges in place.
func (m *bpe) mergeShort(ids []int32) []int32 {
	const none = int32(1<<31 - 1)
	var ranks [shortWord]merge // ranks[i] is the merge of ids[i] and ids[i+1]
	look := func(i int) merge {
		if i+1 < len(ids) {
			if mg, ok := m.merges[pair(ids[i], ids[i+1])]; ok {
				return mg
			}
		}
		return merge{rank: none}
	}
	for i := range ids {
		ranks[i] = look(i)
	}
	for len(ids) > 1 {
		best := 0
		for i := 1; i < len(ids)-1; i++ {
			if ranks[i].rank < ranks[best].rank {
				best = i
			}
		}
		if ranks[best].rank == none {
			break
		}
		ids[best] = ranks[best].id
		copy(ids[best+1:], ids[best+2:])
		copy(ranks[best+1:len(ids)], ranks[best+2:len(ids)])
		ids = ids[:len(ids)-1]
		ranks[best] = look(best)
		if best > 0 {
			ranks[best-1] = look(best - 1)
		}
	}
	return ids
}

// link is a symbol of a long word in a doubly linked list.
type link struct {
	id         int32 // -1: merged into its left neighbour
	prev, next int32 // -1 at the ends
}

// mergeLong merges with a heap, in O(n log n), and appends what is left.
func (m *bpe) mergeLong(out []int32, s *scratch) []int32 {
	s.link, s.heap = s.link[:0], s.heap[:0]
	for i, id := range s.ids {
		s.link = append(s.link, link{id: id, prev: int32(i) - 1, next: int32(i) + 1})
	}
	s.link[len(s.link)-1].next = -1
	consider := func(at int32) {
		if at < 0 || s.link[at].next < 0 {
			return
		}
		if mg, ok := m.merges[pair(s.link[at].id, s.link[s.link[at].next].id)]; ok {
			s.heap.push(candidate{mg, at})
		}
	}
	for i := range s.link {
		consider(int32(i))
	}
	for n := 1; len(s.heap) > 0; n++ {
		if n%64 == 0 && !s.goesOn(len(out)) {
			return out
		}
		c := s.heap.pop()
		left := &s.link[c.at]
		if left.id < 0 || left.next < 0 {
			continue
		}
		right := &s.link[left.next]
		mg, ok := m.merges[pair(left.id, right.id)]
		if !ok || mg != c.merge {
			continue // a neighbour has changed since
		}
		left.id, left.next = mg.id, right.next
		right.id = -1
		if left.next >= 0 {
			s.link[left.next].prev = c.at
		}
		consider(left.prev)
		consider(c.at)
	}
	for i := int32(0); i >= 0; i = s.link[i].next {
		out = append(out, s.link[i].id)
	}
	return out
}

// candidate is a possible merge of the symbol at a place with the next.
type candidate struct {
	merge
	at int32
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

// candidates is a binary heap; container/heap would box every element.
type candidates []candidate

func (h *candidates) push(c candidate) {
	s := append(*h, c)
	i := len(s) - 1
	for i > 0 && s[i].before(s[(i-1)/2]) {
		s[i], s[(i-1)/2] = s[(i-1)/2], s[i]
		i = (i - 1) / 2
	}
	*h = s
}

func (h *candidates) pop() candidate {
	s := *h
	top := s[0]
	s[0] = s[len(s)-1]
	s = s[:len(s)-1]
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(s) {
			break
		}
		if child+1 < len(s) && s[child+1].before(s[child]) {
			child++
		}
		if !s[child].before(s[i]) {
			break
		}
		s[i], s[child] = s[child], s[i]
		i = child
	}
	*h = s
	return top
}
