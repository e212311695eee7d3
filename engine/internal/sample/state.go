package sample

import "github.com/enginetest/enginetest/engine/internal/grammar"

// State is one sequence's sampler: its parameters, its prompt and what it has put out so far. The
// engine appends to Output; what penalties and n-grams need to know about the tokens is kept up to
// date from there at each draw, one map access a token. An engine that takes tokens back makes a
// new State. A State belongs to one goroutine at a time.
type State struct {
	Params   Params
	Embedded int // positions of a prompt that has no token ids
	Prompt   []int32
	Output   []int32

	counted int             // tokens of Prompt and Output, in that order, that are in tokens
	index   map[int32]int32 // token id -> its place in tokens
	tokens  []tokenCount    // the distinct tokens
	ngrams  ngramIndex
	matcher *grammar.Matcher // of Params.Grammar
	view    view             // for Params.Processors
}

// tokenCount says how often a token came in the output; 0 is a token of the prompt only.
type tokenCount struct {
	id     int32
	output int32
}

// at is the token at a position of prompt and output.
func (s *State) at(i int) int32 {
	if i < len(s.Prompt) {
		return s.Prompt[i]
	}
	return s.Output[i-len(s.Prompt)]
}

// known is the number of tokens in Prompt and Output.
func (s *State) known() int { return len(s.Prompt) + len(s.Output) }

// count takes up the tokens that came since the last call.
func (s *State) count() []tokenCount {
	if s.index == nil {
		s.index = map[int32]int32{}
	}
	for ; s.counted < s.known(); s.counted++ {
		id := s.at(s.counted)
		k, ok := s.index[id]
		if !ok {
			k = int32(len(s.tokens))
			s.index[id] = k
			s.tokens = append(s.tokens, tokenCount{id: id})
		}
		if s.counted >= len(s.Prompt) {
			s.tokens[k].output++
		}
	}
	return s.tokens
}

// ngramIndex finds earlier places of a sequence's last n-1 tokens: chains of positions with the
// same hash.
type ngramIndex struct {
	heads map[uint64]int32 // hash of n-1 tokens -> the last position that follows them
	prev  []int32          // for each position, the one before it in its chain, or -1
}

// followers calls f with every token that came after an earlier copy of the last n-1 tokens.
func (s *State) followers(n int, f func(id int32)) {
	x, length := &s.ngrams, s.known()
	if length+1 < n {
		return
	}
	if x.heads == nil {
		x.heads = map[uint64]int32{}
	}
	for i := len(x.prev); i < length; i++ {
		last := int32(-1)
		if i >= n-1 {
			h := s.hash(i-n+1, i)
			if p, ok := x.heads[h]; ok {
				last = p
			}
			x.heads[h] = int32(i)
		}
		x.prev = append(x.prev, last)
	}
	p, ok := x.heads[s.hash(length-n+1, length)]
	for ; ok && p >= 0; p = x.prev[p] {
		if s.same(int(p)-n+1, length-n+1, n-1) {
			f(s.at(int(p)))
		}
	}
}

// hash is FNV-1a over the tokens at the positions [from, to).
func (s *State) hash(from, to int) uint64 {
	h := uint64(14695981039346656037)
	for i := from; i < to; i++ {
		h = (h ^ uint64(uint32(s.at(i)))) * 1099511628211
	}
	return h
}

// same reports whether n tokens from position a equal those from position b.
func (s *State) same(a, b, n int) bool {
	for i := range n {
		if s.at(a+i) != s.at(b+i) {
			return false
		}
	}
	return true
}
