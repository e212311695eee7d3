package sample

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var inf = float32(math.Inf(1))

func nan() float32 { return float32(math.NaN()) }

func normal(n int, seed uint64, scale float64) []float32 {
	rng := rand.New(rand.NewPCG(seed, 0))
	row := make([]float32, n)
	for i := range row {
		row[i] = float32(rng.NormFloat64() * scale)
	}
	return row
}

func draw(t *testing.T, p Params, row []float32) int32 {
	t.Helper()
	var s Sampler
	id, _, err := s.Draw(&State{Params: p}, slices.Clone(row))
	require.NoError(t, err)
	return id
}

// TestGreedyTopK1 pins that top_k 1 is argmax at any temperature, ties included (the lowest id),
// over 32 seeds.
func TestGreedyTopK1(t *testing.T) {
	tied := normal(1000, 1, 1)
	tied[17], tied[400], tied[999] = 9, 9, 9
	for seed := range uint64(32) {
		for _, temperature := range []float64{0, 1e-6, 0.01, 1, 2} {
			require.EqualValues(t, 17, draw(t, Params{Temperature: temperature, TopK: 1, Seed: seed}, tied))
		}
	}
	require.EqualValues(t, 17, draw(t, Params{}, tied))
}

// TestPoisonedRows: whatever the logits, the token is in range, or the error says that none is
// left.
func TestPoisonedRows(t *testing.T) {
	n := 100
	fill := func(x float32) []float32 { return slices.Repeat([]float32{x}, n) }
	with := func(row []float32, at int, x ...float32) []float32 { copy(row[at:], x); return row }
	rows := map[string]struct {
		row  []float32
		only []int32 // the tokens that may be drawn; nil: any; empty: none
	}{
		"all NaN":             {fill(nan()), []int32{}},
		"all -Inf":            {fill(negInf), []int32{}},
		"all +Inf":            {fill(inf), nil},
		"one NaN":             {with(fill(0), 3, nan()), nil},
		"NaN but one":         {with(fill(nan()), 42, 1), []int32{42}},
		"-Inf but one":        {with(fill(negInf), 99, -5), []int32{99}},
		"one +Inf":            {with(normal(n, 1, 1), 0, inf), []int32{0}},
		"two +Inf and NaN":    {with(normal(n, 1, 1), 7, inf, nan(), inf), []int32{7, 9}},
		"largest floats":      {with(fill(-math.MaxFloat32), 5, math.MaxFloat32), []int32{5}},
		"smallest everywhere": {fill(-math.MaxFloat32), nil},
		"empty":               {nil, []int32{}},
	}
	params := map[string]Params{
		"greedy":      {},
		"temperature": {Temperature: 1},
		"cold":        {Temperature: 0.01},
		"hot, top_k":  {Temperature: 2, TopK: 50},
		"top_p":       {Temperature: 1, TopP: 0.5},
		"min_p":       {Temperature: 1, MinP: 0.3},
		"everything": {
			Temperature: 1, TopK: 60, TopP: 0.9, MinP: 0.01, TypicalP: 0.9, EpsilonCutoff: 0.001,
			RepetitionPenalty: 1.2,
			LogitBias:         map[int32]float32{1: 3}, NoRepeatNGram: 3, Logprobs: 100,
		},
	}
	for rn, r := range rows {
		for pn, p := range params {
			t.Run(rn+"/"+pn, func(t *testing.T) {
				var s Sampler
				id, lps, err := s.Draw(&State{Params: p, Prompt: []int32{1, 2, 3}}, slices.Clone(r.row))
				if r.only != nil && len(r.only) == 0 {
					require.ErrorIs(t, err, ErrNoToken)
					return
				}
				require.NoError(t, err)
				require.True(t, id >= 0 && int(id) < n, "%d", id)
				if r.only != nil {
					require.Contains(t, r.only, id)
				}
				for i, lp := range lps {
					require.LessOrEqual(t, lp.Logprob, float32(0), "%+v", lp)
					require.True(t, lp.Rank > i && lp.Rank <= n, "%+v", lp)
				}
			})
		}
	}
}

// TestLogprobsAreRaw: over the whole vocabulary, before any parameter; best first, ranks of ties by
// id.
func TestLogprobsAreRaw(t *testing.T) {
	row := normal(300, 9, 4)
	row[8] = row[20]
	norm := 0.0
	for _, x := range row {
		norm += math.Exp(float64(x))
	}
	order := make([]int32, len(row))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(row[b], row[a]) })
	last := order[len(order)-1]
	p := Params{
		Temperature: 0.5, TopK: 3, Allowed: []int32{last}, LogitBias: map[int32]float32{last: 100},
		RepetitionPenalty: 3,
	}
	for _, k := range []int{0, 1, 5, 280, 300} {
		p.Logprobs = k
		var s Sampler
		id, lps, err := s.Draw(&State{Params: p, Prompt: []int32{last}}, slices.Clone(row))
		require.NoError(t, err)
		require.Equal(t, last, id)
		require.Len(t, lps, min(k+1, 300))
		for i, lp := range lps {
			if i == k {
				require.Equal(t, last, lp.Token)
				require.Equal(t, 300, lp.Rank)
			} else {
				require.Equal(t, order[i], lp.Token)
				require.Equal(t, i+1, lp.Rank)
			}
			require.InDelta(t, float64(row[lp.Token])-math.Log(norm), lp.Logprob, 1e-5)
		}
	}
}
