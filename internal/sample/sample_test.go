package sample

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
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

func draw(t testing.TB, p Params, row []float32) int32 {
	t.Helper()
	var s Sampler
	id, _, err := s.Draw(&State{Params: p}, slices.Clone(row))
	require.NoError(t, err)
	return id
}

// The known answers are those published with Random123 (kat_vectors, philox4x32 10).
func TestPhiloxKnownAnswers(t *testing.T) {
	const m = math.MaxUint32
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{want: [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{m, m, m, m}, [2]uint32{m, m}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{
			[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
			[2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		},
	} {
		require.Equal(t, c.want, philox(c.counter, c.key))
	}
}

// TestDrawFormula redoes the documented formula the slow way: the short cuts change nothing.
func TestDrawFormula(t *testing.T) {
	for seed := range uint64(200) {
		n := 1 + int(seed*7%999)
		row := normal(n, seed, []float64{0.01, 1, 8}[seed%3])
		temperature := []float32{0.1, 1, 2}[seed/3%3]
		best, want := math.Inf(-1), int32(-1)
		for i, x := range row {
			r := philox([4]uint32{uint32(i / 4), 5, 0, 0}, [2]uint32{uint32(seed * 0x9e3779b97f4a7c15), uint32(seed * 0x9e3779b97f4a7c15 >> 32)})
			if s := float64(x/temperature) + gumbel(r[i%4]); s > best {
				best, want = s, int32(i)
			}
		}
		p := Params{Temperature: float64(temperature), Seed: seed * 0x9e3779b97f4a7c15}
		var s Sampler
		got, _, err := s.Draw(&State{Params: p, Prompt: make([]int32, 5)}, slices.Clone(row))
		require.NoError(t, err)
		require.Equal(t, want, got)
		p.TopP = 0.9999999999 // the same race over a list
		got, _, _ = s.Draw(&State{Params: p, Prompt: make([]int32, 5)}, slices.Clone(row))
		require.Equal(t, want, got)
	}
}

func TestGumbelBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 200_000 {
		r := rng.Uint32()
		if i < 64 {
			r = ^uint32(0) << (i % 32) >> (i / 32)
		}
		if g := gumbel(r); g > gumbelBound(r)+1e-12 || g >= maxGumbel {
			t.Fatalf("gumbel(%#x) is %v, bounds are %v and %v", r, g, gumbelBound(r), maxGumbel)
		}
	}
}

func TestExpNeg(t *testing.T) {
	for x := float32(0); x > -87; x -= 0.00137 {
		if want := math.Exp(float64(x)); math.Abs(float64(expNeg(x))-want) > 3e-7*want {
			t.Fatalf("expNeg(%v) is %v, want %v", x, expNeg(x), want)
		}
	}
	require.Equal(t, float32(1), expNeg(0))
	require.Zero(t, expNeg(negInf))
	require.Zero(t, expNeg(nan()))
}

// TestDistribution draws 50,000 tokens from a vocabulary of 32 and compares with theory: chi squared at α = 1e-6.
func TestDistribution(t *testing.T) {
	const draws, vocab = 50_000, 32
	row := normal(vocab, 3, 1.5)
	for i, c := range []struct {
		name string
		p    Params
	}{
		{"temperature 1", Params{Temperature: 1}},
		{"temperature 0.6", Params{Temperature: 0.6}},
		{"temperature 2", Params{Temperature: 2}},
		{"top_k 5", Params{Temperature: 1, TopK: 5}},
		{"top_p 0.8", Params{Temperature: 1, TopP: 0.8}},
		{"top_k 20, top_p 0.9", Params{Temperature: 1.2, TopK: 20, TopP: 0.9}},
		{"min_p 0.1", Params{Temperature: 1, MinP: 0.1}},
		{"typical_p 0.7", Params{Temperature: 1, TypicalP: 0.7}},
		{"epsilon 0.02", Params{Temperature: 1, EpsilonCutoff: 0.02}},
		{"bias", Params{Temperature: 1, LogitBias: map[int32]float32{4: 2}}},
	} {
		for _, by := range []string{"position", "seed"} {
			if by == "seed" && i > 0 && c.p.TopP == 0 {
				continue // with and without a list of candidates is enough
			}
			t.Run(c.name+" by "+by, func(t *testing.T) {
				t.Parallel()
				want := theory(row, c.p)
				count, work := make([]float64, vocab), make([]float32, vocab)
				var s Sampler
				for i := range draws {
					p, n := c.p, i
					if by == "seed" {
						p.Seed, n = uint64(i), 7
					}
					id, _, err := s.Draw(&State{Params: p, Prompt: prompt[:n]}, append(work[:0], row...))
					if err != nil {
						t.Fatal(err)
					}
					count[id]++
				}
				chi2, df := 0.0, -1.0
				for i, w := range want {
					if w == 0 {
						require.Zero(t, count[i], "token %d is outside the support", i)
						continue
					}
					df++
					chi2 += (count[i] - w*draws) * (count[i] - w*draws) / (w * draws)
				}
				// Wilson and Hilferty's approximation of the quantile; 4.753 is the normal one at 1 - 1e-6.
				bound := df * math.Pow(1-2/(9*df)+4.753*math.Sqrt(2/(9*df)), 3)
				require.Less(t, chi2, bound, "χ² with %v degrees of freedom", df)
			})
		}
	}
}

var prompt = make([]int32, 50_000)

// theory is the distribution that parameters ask for, by sorting everything, in float64.
func theory(row []float32, p Params) []float64 {
	z := make([]float64, len(row))
	for i, x := range row {
		z[i] = (float64(x) + float64(p.LogitBias[int32(i)])) / p.Temperature
	}
	soft := func() []float64 {
		out, sum, top := make([]float64, len(z)), 0.0, slices.Max(z)
		for i, x := range z {
			out[i] = math.Exp(x - top)
			sum += out[i]
		}
		for i := range out {
			out[i] /= sum
		}
		return out
	}
	cut := func(by []float64, keep func(rank int, before, q float64) bool) {
		q, before := soft(), 0.0
		order := make([]int, len(z))
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(a, b int) int {
			if by[a] < by[b] {
				return -1
			}
			return 1
		})
		for rank, i := range order {
			if !keep(rank, before, q[i]) {
				z[i] = math.Inf(-1)
			}
			before += q[i]
		}
	}
	surprise := func() []float64 {
		q, h := soft(), 0.0
		for _, x := range q {
			h -= x * math.Log(x)
		}
		for i, x := range q {
			q[i] = math.Abs(-math.Log(x) - h)
		}
		return q
	}
	likely := func() []float64 {
		q := soft()
		for i := range q {
			q[i] = -q[i]
		}
		return q
	}
	top := slices.Max(soft())
	if p.MinP > 0 {
		cut(likely(), func(_ int, _, q float64) bool { return q >= p.MinP*top })
	}
	if p.TypicalP > 0 {
		cut(surprise(), func(_ int, before, _ float64) bool { return before < p.TypicalP })
	}
	if p.EpsilonCutoff > 0 {
		cut(likely(), func(_ int, _, q float64) bool { return q >= p.EpsilonCutoff })
	}
	if p.TopK > 0 {
		cut(likely(), func(rank int, _, _ float64) bool { return rank < p.TopK })
	}
	if p.TopP > 0 {
		cut(likely(), func(_ int, before, _ float64) bool { return before < p.TopP })
	}
	return soft()
}

// TestGreedyTopK1 pins that top_k 1 is argmax at any temperature, ties included (the lowest id), over 32 seeds.
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

// TestPoisonedRows: whatever the logits, the token is in range, or the error says that none is left.
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
			Temperature: 1, TopK: 60, TopP: 0.9, MinP: 0.01, TypicalP: 0.9, EpsilonCutoff: 0.001, RepetitionPenalty: 1.2,
			LogitBias: map[int32]float32{1: 3}, NoRepeatNGram: 3, Logprobs: 100,
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
					require.True(t, lp.Logprob <= 0, "%+v", lp)
					require.True(t, lp.Rank > i && lp.Rank <= n, "%+v", lp)
				}
			})
		}
	}
}

// TestIDsOutsideTheRow: ids at and beyond the vocabulary, negative and huge ones touch nothing (GHSA-wr27-mx79-rg6c and its kin wrote into the
// next request's row). The row is the middle of a larger array.
func TestIDsOutsideTheRow(t *testing.T) {
	outside := []int32{-1, math.MinInt32, 100, 101, 10_000_000, math.MaxInt32}
	p := Params{
		Temperature: 1, BadWords: [][]int32{{}}, StopIDs: outside, MinTokens: 5, Allowed: append([]int32{7}, outside...),
		LogitBias: map[int32]float32{}, RepetitionPenalty: 1.5, FrequencyPenalty: 1, PresencePenalty: 1, NoRepeatNGram: 1, Logprobs: 3,
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
	require.Equal(t, s.Logprobs(before[100:200], 7, 3), lps)
	require.Empty(t, s.Logprobs(before[100:200], 100, 0))
	require.Empty(t, s.Logprobs(before[100:200], -1, 0))
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
	require.EqualError(t, err, "sample: no token is left to draw: of 5 tokens, allowed_token_ids masked 1, bad_words masked 1, "+
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
		{"allowed, twice the same", State{Params: Params{Allowed: []int32{2, 3, 3}}}, []float32{negInf, negInf, -1, 1, negInf, negInf}},
		{"a bad word of one token", State{Params: Params{BadWords: [][]int32{{3}}}}, []float32{1, 1, -1, negInf, 0, 1}},
		{"a bad word begun", State{Params: Params{BadWords: [][]int32{{4, 0, 3}}}, Output: []int32{1, 4, 0}}, []float32{1, 1, -1, negInf, 0, 1}},
		{"a bad word begun in the prompt only", State{Params: Params{BadWords: [][]int32{{4, 3}}}, Prompt: []int32{4}}, flat()},
		{"a bad word longer than the output", State{Params: Params{BadWords: [][]int32{{4, 0, 3}}}, Output: []int32{0}}, flat()},
		{"min tokens not reached", State{Params: Params{MinTokens: 2, StopIDs: []int32{5}}, Output: []int32{0}}, []float32{1, 1, -1, 1, 0, negInf}},
		{"min tokens reached", State{Params: Params{MinTokens: 2, StopIDs: []int32{5}}, Output: []int32{0, 0}}, flat()},
		{"bias, clamped", State{Params: Params{LogitBias: map[int32]float32{0: 2, 1: 1e9, 2: -inf, 3: nan()}}}, []float32{3, 101, -101, 1, 0, 1}},
		{"repetition on prompt and output, both signs", State{Params: Params{RepetitionPenalty: 2}, Prompt: []int32{0, 2}, Output: []int32{1, 4}}, []float32{0.5, 0.5, -2, 1, 0, 1}},
		{"frequency on output only", State{Params: Params{FrequencyPenalty: 0.5}, Prompt: []int32{0}, Output: []int32{1, 1, 3}}, []float32{1, 0, -1, 0.5, 0, 1}},
		{"presence on output only", State{Params: Params{PresencePenalty: -0.5}, Prompt: []int32{0}, Output: []int32{1, 1, 3}}, []float32{1, 1.5, -1, 1.5, 0, 1}},
		{"repetition first, then the others", State{Params: Params{RepetitionPenalty: 2, FrequencyPenalty: 0.5, PresencePenalty: 0.25}, Output: []int32{0, 0}}, []float32{0.5 - 1 - 0.25, 1, -1, 1, 0, 1}},
		{"a mask survives bias and penalties", State{Params: Params{Allowed: []int32{0}, LogitBias: map[int32]float32{1: 100}, RepetitionPenalty: 0.5}, Prompt: []int32{1}}, []float32{1, negInf, negInf, negInf, negInf, negInf}},
		{"2-grams over prompt and output", State{Params: Params{NoRepeatNGram: 2}, Prompt: []int32{0, 3, 0}, Output: []int32{5, 0}}, []float32{1, 1, -1, negInf, 0, negInf}},
		{"1-grams ban all of the text", State{Params: Params{NoRepeatNGram: 1}, Prompt: []int32{0}, Output: []int32{5}}, []float32{negInf, 1, -1, 1, 0, negInf}},
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

// TestLogprobsAreRaw: over the whole vocabulary, before any parameter; best first, ranks of ties by id.
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
	p := Params{Temperature: 0.5, TopK: 3, Allowed: []int32{last}, LogitBias: map[int32]float32{last: 100}, RepetitionPenalty: 3}
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

// TestPropertySupport: a drawn token is in the support that the sorted definition gives, the rest of the row is untouched by greedy, and two
// samplers with different histories agree.
func TestPropertySupport(t *testing.T) {
	var used Sampler
	rapid.Check(t, func(t *rapid.T) {
		vocab := rapid.IntRange(1, 700).Draw(t, "vocab")
		row := normal(vocab, rapid.Uint64().Draw(t, "row"), rapid.Float64Range(0.01, 10).Draw(t, "scale"))
		p := Params{
			Temperature: rapid.Float64Range(0.01, 2).Draw(t, "temperature"),
			TopK:        rapid.SampledFrom([]int{0, 2, 7, 50, 255, 300, 699}).Draw(t, "top_k"),
			TopP:        rapid.SampledFrom([]float64{0, 1e-9, 0.1, 0.5, 0.9, 1}).Draw(t, "top_p"),
			MinP:        rapid.SampledFrom([]float64{0, 0, 0.001, 0.1, 1}).Draw(t, "min_p"),
			Seed:        rapid.Uint64().Draw(t, "seed"),
			Logprobs:    -1,
		}
		var fresh Sampler
		position := rapid.IntRange(0, 100).Draw(t, "position")
		a, _, err := used.Draw(&State{Params: p, Prompt: prompt[:position]}, slices.Clone(row))
		require.NoError(t, err)
		b, _, err := fresh.Draw(&State{Params: p, Output: prompt[:position]}, slices.Clone(row))
		require.NoError(t, err)
		require.Equal(t, a, b, "seed and position decide, nothing else")
		require.Positive(t, theory(row, p)[a], "token %d is outside the support", a)
	})
}

// TestIncrementalCounts: a State that grew token by token, was cut back and grew again edits as a fresh one does.
func TestIncrementalCounts(t *testing.T) {
	p := Params{RepetitionPenalty: 1.3, FrequencyPenalty: 0.2, PresencePenalty: 0.1, NoRepeatNGram: 3}
	rng := rand.New(rand.NewPCG(5, 5))
	grown := &State{Params: p, Prompt: []int32{1, 2, 3, 1, 2}}
	var s Sampler
	for step := range 400 {
		if step%97 == 96 {
			grown.Output = grown.Output[:len(grown.Output)-11]
			s.edit(grown, normal(20, 0, 1)) // the engine draws after it took tokens back, before it adds others
		}
		grown.Output = append(grown.Output, rng.Int32N(6))
		fresh := &State{Params: p, Prompt: grown.Prompt, Output: grown.Output}
		a, b := normal(20, uint64(step), 1), normal(20, uint64(step), 1)
		s.edit(grown, a)
		s.edit(fresh, b)
		require.Equal(t, b, a, "step %d", step)
	}
}

func TestSelectionAgreesWithSorting(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for range 500 {
		items := make([]item, 1+rng.IntN(200))
		sum := 0.0
		for i := range items {
			items[i] = item{id: int32(i), key: float32(rng.IntN(20)), mass: float32(rng.IntN(8))}
			sum += float64(items[i].mass)
		}
		target := rng.Float64() * 1.1 * sum
		byOrder := slices.Clone(items)
		slices.SortFunc(byOrder, func(a, b item) int {
			if a.before(b) {
				return -1
			}
			return 1
		})
		want, acc := byOrder[len(byOrder)-1], 0.0
		for _, x := range byOrder {
			if acc += float64(x.mass); acc >= target {
				want = x
				break
			}
		}
		require.Equal(t, want, crossing(items, target))
	}
}

func BenchmarkDraw(b *testing.B) {
	for _, vocab := range []int{32_000, 128_256, 151_936} {
		row, work := normal(vocab, 1, 3), make([]float32, vocab)
		for _, c := range []struct {
			name string
			p    Params
		}{
			{"greedy", Params{Logprobs: -1}},
			{"temperature", Params{Temperature: 1, Logprobs: -1}},
			{"top_k=50", Params{Temperature: 1, TopK: 50, Logprobs: -1}},
			{"top_k=1000", Params{Temperature: 1, TopK: 1000, Logprobs: -1}},
			{"top_p=0.9", Params{Temperature: 1, TopP: 0.9, Logprobs: -1}},
			{"top_k=50,top_p=0.9", Params{Temperature: 1, TopK: 50, TopP: 0.9, Logprobs: -1}},
			{"min_p=0.05", Params{Temperature: 1, MinP: 0.05, Logprobs: -1}},
			{"greedy,logprobs=5", Params{Logprobs: 5}},
			{"greedy,logprobs=all", Params{Logprobs: vocab}},
		} {
			b.Run(fmt.Sprintf("vocab=%d/%s", vocab, c.name), func(b *testing.B) {
				var s Sampler
				st := &State{Params: c.p}
				for b.Loop() {
					copy(work, row)
					if _, _, err := s.Draw(st, work); err != nil {
						b.Fatal(err)
					}
					st.Params.Seed++
				}
			})
		}
	}
}

func BenchmarkPenalties(b *testing.B) {
	st := &State{Params: Params{RepetitionPenalty: 1.1, NoRepeatNGram: 3, Logprobs: -1}, Prompt: prompt[:8000]}
	row := normal(32_000, 1, 3)
	var s Sampler
	for b.Loop() {
		st.Output = append(st.Output, int32(len(st.Output)%5000))
		s.edit(st, row)
	}
}
