package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestIDsOutsideTheRow: ids at and beyond the vocabulary, negative and huge ones touch nothing
// (GHSA-wr27-mx79-rg6c and its kin wrote into the next request's row). The row is the middle of a
// larger array.
func TestIDsOutsideTheRow(t *testing.T) {
	outside := []int32{-1, math.MinInt32, 100, 101, 10_000_000, math.MaxInt32}
	p := Params{
		Temperature: 1, BadWords: [][]int32{{}}, StopIDs: outside, MinTokens: 5, Allowed: append([]int32{7},
			outside...),
		LogitBias: map[int32]float32{}, RepetitionPenalty: 1.5, FrequencyPenalty: 1, PresencePenalty: 1,
		NoRepeatNGram: 1, Logprobs: 3,
	}
	for _, id := range outside {
		p.BadWords = append(p.BadWords, []int32{id}, []int32{id, id})
		p.LogitBias[id] = 50
	}
	array := normal(300, 1, 1)
	before := slices.Clone(array)
	var s Sampler
	id, lps, err := s.Draw(&State{Params: p, Prompt: outside, Output: outside}, array[100:200:200])
	require.NoError(t, err)
	require.EqualValues(t, 7, id)
	require.Equal(t, before[:100], array[:100], "the row before")
	require.Equal(t, before[200:], array[200:], "the row after")
	require.Equal(t, s.Logprobs(before[100:200], 7, 3, Mode{}), lps)
	require.Empty(t, s.Logprobs(before[100:200], 100, 0, Mode{}))
	require.Empty(t, s.Logprobs(before[100:200], -1, 0, Mode{}))
}

// TestNoTokenNamesTheMask reads the whole message.
func TestNoTokenNamesTheMask(t *testing.T) {
	row := []float32{1, 2, nan(), negInf, 3}
	st := &State{
		Params: Params{Allowed: []int32{0, 1, 2}, BadWords: [][]int32{{0}}, MinTokens: 1, StopIDs: []int32{1}},
		Prompt: []int32{0},
	}
	var s Sampler
	_, _, err := s.Draw(st, row)
	require.ErrorIs(t, err, ErrNoToken)
	require.EqualError(t, err,
		"sample: no token is left to draw: of 5 tokens, allowed_token_ids masked 1, bad_words masked 1, "+
			"min_tokens masked 1, 1 were -Inf as the model gave them, 1 are NaN")
}

func TestEdits(t *testing.T) {
	flat := func() []float32 { return []float32{1, 1, -1, 1, 0, 1} }
	for _, c := range []struct {
		reason string
		st     State
		want   []float32
	}{
		{"nothing asked", State{}, flat()},
		{
			"allowed, twice the same",
			State{Params: Params{Allowed: []int32{2, 3, 3}}},
			[]float32{negInf, negInf, -1, 1, negInf, negInf},
		},
		{"a bad word of one token", State{Params: Params{BadWords: [][]int32{{3}}}}, []float32{1, 1, -1, negInf, 0, 1}},
		{
			"a bad word begun",
			State{Params: Params{BadWords: [][]int32{{4, 0, 3}}}, Output: []int32{1, 4, 0}},
			[]float32{1, 1, -1, negInf, 0, 1},
		},
		{
			"a bad word begun in the prompt only",
			State{Params: Params{BadWords: [][]int32{{4, 3}}}, Prompt: []int32{4}},
			flat(),
		},
		{
			"a bad word longer than the output",
			State{Params: Params{BadWords: [][]int32{{4, 0, 3}}}, Output: []int32{0}},
			flat(),
		},
		{
			"min tokens not reached",
			State{Params: Params{MinTokens: 2, StopIDs: []int32{5}}, Output: []int32{0}},
			[]float32{1, 1, -1, 1, 0, negInf},
		},
		{"min tokens reached", State{Params: Params{MinTokens: 2, StopIDs: []int32{5}}, Output: []int32{0, 0}}, flat()},
		{
			"bias, clamped",
			State{Params: Params{LogitBias: map[int32]float32{0: 2, 1: 1e9, 2: -inf, 3: nan()}}},
			[]float32{3, 101, -101, 1, 0, 1},
		},
		{
			"repetition on prompt and output, both signs",
			State{Params: Params{RepetitionPenalty: 2}, Prompt: []int32{0, 2}, Output: []int32{1, 4}},
			[]float32{
				0.5,
				0.5, -2, 1, 0, 1,
			},
		},
		{"frequency on output only", State{
			Params: Params{FrequencyPenalty: 0.5}, Prompt: []int32{0},
			Output: []int32{1, 1, 3},
		}, []float32{1, 0, -1, 0.5, 0, 1}},
		{"presence on output only", State{
			Params: Params{PresencePenalty: -0.5}, Prompt: []int32{0},
			Output: []int32{1, 1, 3},
		}, []float32{1, 1.5, -1, 1.5, 0, 1}},
		{"repetition first, then the others", State{Params: Params{
			RepetitionPenalty: 2, FrequencyPenalty: 0.5,
			PresencePenalty: 0.25,
		}, Output: []int32{0, 0}}, []float32{0.5 - 1 - 0.25, 1, -1, 1, 0, 1}},
		{"bias first, then penalties", State{Params: Params{
			RepetitionPenalty: 2,
			LogitBias:         map[int32]float32{2: 4, 0: -2},
		}, Prompt: []int32{0, 2}}, []float32{-2, 1, 1.5, 1, 0, 1}},
		{
			"a mask survives bias and penalties",
			State{Params: Params{
				Allowed:   []int32{0},
				LogitBias: map[int32]float32{1: 100}, RepetitionPenalty: 0.5,
			}, Prompt: []int32{1}},
			[]float32{1, negInf, negInf, negInf, negInf, negInf},
		},
		{"2-grams over prompt and output", State{
			Params: Params{NoRepeatNGram: 2}, Prompt: []int32{0, 3, 0},
			Output: []int32{5, 0},
		}, []float32{1, 1, -1, negInf, 0, negInf}},
		{
			"1-grams ban all of the text",
			State{Params: Params{NoRepeatNGram: 1}, Prompt: []int32{0}, Output: []int32{5}},
			[]float32{negInf, 1, -1, 1, 0, negInf},
		},
		{"text shorter than the n-gram", State{Params: Params{NoRepeatNGram: 4}, Prompt: []int32{0, 1}}, flat()},
	} {
		t.Run(c.reason, func(t *testing.T) {
			row := flat()
			var s Sampler
			s.edit(&c.st, row)
			require.Equal(t, c.want, row)
		})
	}
}

// TestIncrementalCounts: a State that grew token by token edits as a fresh one does.
func TestIncrementalCounts(t *testing.T) {
	p := Params{RepetitionPenalty: 1.3, FrequencyPenalty: 0.2, PresencePenalty: 0.1, NoRepeatNGram: 3}
	rng := rand.New(rand.NewPCG(5, 5))
	grown := &State{Params: p, Prompt: []int32{1, 2, 3, 1, 2}}
	var s Sampler
	for step := range 400 {
		grown.Output = append(grown.Output, rng.Int32N(6))
		fresh := &State{Params: p, Prompt: grown.Prompt, Output: grown.Output}
		a, b := normal(20, uint64(step), 1), normal(20, uint64(step), 1)
		s.edit(grown, a)
		s.edit(fresh, b)
		require.Equal(t, b, a, "step %d", step)
	}
}
