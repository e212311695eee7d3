package sample

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// whole is the values of all tokens in a mode, and the drawn token.
func whole(t *testing.T, s *Sampler, p Params, mode Mode, row []float32) ([]float64, int32) {
	t.Helper()
	p.LogprobsMode, p.Logprobs = mode, len(row)
	token, lps, err := s.Draw(&State{Params: p, Prompt: prompt[:7]}, slices.Clone(row))
	require.NoError(t, err)
	require.Len(t, lps, len(row))
	out := make([]float64, len(row))
	for i, lp := range lps {
		out[lp.Token] = float64(lp.Logprob)
		require.Equal(t, i+1, lp.Rank)
		require.True(t, i == 0 || lps[i-1].Logprob >= lp.Logprob, "best first")
	}
	return out, token
}

// The four modes against float64 and sorting: raw values are the row's, processed ones are what the
// parameters leave of it; the token is the same in every mode.
func TestModes(t *testing.T) {
	var s Sampler
	for i, p := range []Params{
		{},
		{LogitBias: map[int32]float32{3: 4, 9: -2}},
		{Temperature: 1},
		{Temperature: 0.4},
		{Temperature: 1.7, LogitBias: map[int32]float32{3: 4, 9: -2}},
		{Temperature: 1, TopK: 5},
		{Temperature: 0.7, TopK: 280},
		{Temperature: 1, TopP: 0.8},
		{Temperature: 1.3, TopK: 20, TopP: 0.9},
		{Temperature: 1, MinP: 0.1},
		{Temperature: 1, TypicalP: 0.7},
		{Temperature: 1, EpsilonCutoff: 0.01},
		{Temperature: 1.5, TopK: 40, TopP: 0.95, MinP: 0.02, LogitBias: map[int32]float32{3: 4}},
		{Temperature: 0.5, TopK: 1},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			row := normal(300, uint64(40+i), 2)
			p.Seed = uint64(i)
			greedy := p
			greedy.Temperature = 1 // none
			want := theory(row, greedy)
			if p.Temperature > 0 {
				want = theory(row, p)
			}
			rawLogprobs, token := whole(t, &s, p, Mode{}, row)
			rawLogits, token1 := whole(t, &s, p, Mode{Logits: true}, row)
			logprobs, token2 := whole(t, &s, p, Mode{Processed: true}, row)
			logits, token3 := whole(t, &s, p, Mode{Processed: true, Logits: true}, row)
			require.Equal(t, []int32{token, token, token}, []int32{token1, token2, token3})
			raw := theory(row, Params{Temperature: 1})
			masked := 0
			for id, x := range row {
				require.InDelta(t, float64(x), rawLogits[id], 0)
				require.InDelta(t, math.Log(raw[id]), rawLogprobs[id], 1e-4)
				if want[id] == 0 {
					masked++
					require.True(t, math.IsInf(logits[id], -1))
					require.True(t, math.IsInf(logprobs[id], -1))
					continue
				}
				z := float64(x + p.LogitBias[int32(id)])
				if p.Temperature > 0 {
					z /= p.Temperature
				}
				require.InDelta(t, z, logits[id], 1e-4)
				require.InDelta(t, math.Log(want[id]), logprobs[id], 1e-4)
			}
			require.Equal(t, masked > 0, p.TopK+int(p.TopP+p.MinP+p.TypicalP+p.EpsilonCutoff+0.999) > 0)
			require.False(t, math.IsInf(logprobs[token], -1), "the token could be drawn")
		})
	}
}

// Rows that are not finite: what is reported is what the draw saw.
func TestModesOfPoisonedRows(t *testing.T) {
	inf := float32(math.Inf(1))
	var s Sampler
	values, token := whole(t, &s, Params{Temperature: 1}, Mode{Processed: true}, []float32{1, inf, nan(), inf})
	require.Contains(t, []int32{1, 3}, token)
	require.Equal(t, []float64{math.Inf(-1), float64(float32(math.Log(0.5))), math.Inf(-1), float64(float32(math.Log(0.5)))}, values)
	values, token = whole(t, &s, Params{}, Mode{Processed: true, Logits: true}, []float32{1, nan(), 3})
	require.Equal(t, int32(2), token)
	require.Equal(t, []float64{1, math.Inf(-1), 3}, values)
	// every logit overflows when divided: the likeliest is taken
	values, token = whole(t, &s, Params{Temperature: 1e-4, TopK: 2}, Mode{Processed: true}, []float32{-3e38, -2e38})
	require.Equal(t, int32(1), token)
	require.True(t, math.IsInf(values[0], -1))
}
