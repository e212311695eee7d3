package sample

import (
	"math"
	"slices"
)

// The processors of this file edit single logits of a row; -Inf masks a token. Token ids outside
// the row are ignored: a wrong id must never touch another row. Those that mask return how many
// tokens they masked that were possible before.

var negInf = float32(math.Inf(-1))

// mask rules out one token.
func mask(row []float32, id int32) int {
	if uint(id) >= uint(len(row)) || !(row[id] > negInf) {
		return 0
	}
	row[id] = negInf
	return 1
}

// allow rules out every token but ids; scratch holds their logits meanwhile.
func allow(row []float32, ids []int32, scratch []float32) (masked int, _ []float32) {
	scratch = scratch[:0]
	for _, id := range ids {
		v := negInf
		if uint(id) < uint(len(row)) {
			v = row[id]
		}
		scratch = append(scratch, v)
	}
	before := possible(row)
	for i := range row {
		row[i] = negInf
	}
	for i, id := range ids {
		if uint(id) < uint(len(row)) {
			row[id] = scratch[i]
		}
	}
	return before - possible(row), scratch
}

// possible counts the tokens that are neither masked nor NaN.
func possible(row []float32) int {
	n := 0
	for _, x := range row {
		if x > negInf {
			n++
		}
	}
	return n
}

// banWords rules out the last token of every word whose other tokens are the end of the output.
func banWords(row []float32, words [][]int32, output []int32) (masked int) {
	bannedWords(words, output, func(id int32) { masked += mask(row, id) })
	return masked
}

// bannedWords calls f with those last tokens.
func bannedWords(words [][]int32, output []int32, f func(id int32)) {
	for _, w := range words {
		n := len(w) - 1
		if n >= 0 && n <= len(output) && slices.Equal(output[len(output)-n:], w[:n]) {
			f(w[n])
		}
	}
}

// banIDs rules out ids.
func banIDs(row []float32, ids []int32) (masked int) {
	for _, id := range ids {
		masked += mask(row, id)
	}
	return masked
}

// banNGrams rules out every token that would make the last n tokens repeat n tokens of the prompt
// and output.
func banNGrams(row []float32, s *State, n int) (masked int) {
	s.followers(n, func(id int32) { masked += mask(row, id) })
	return masked
}

// addBias adds to single logits, at most 100 either way.
func addBias(row []float32, bias map[int32]float32) {
	for id, b := range bias {
		if uint(id) < uint(len(row)) && b == b {
			row[id] += min(max(b, -100), 100)
		}
	}
}

// penalize makes tokens of the text so far less likely (or more, with the opposite sign):
// repetition divides positive logits and multiplies negative ones, for prompt and output (CTRL,
// arXiv:1909.05858, section 4.1); frequency is subtracted for every time that the token came in the
// output, presence once.
func penalize(row []float32, tokens []tokenCount, repetition, frequency, presence float32) {
	for _, t := range tokens {
		if uint(t.id) >= uint(len(row)) {
			continue
		}
		x := row[t.id]
		if x > 0 {
			x /= repetition
		} else {
			x *= repetition
		}
		if t.output > 0 {
			x -= frequency*float32(t.output) + presence
		}
		row[t.id] = x
	}
}
