package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

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
			r := philox([4]uint32{uint32(i / 4), 5, 0, 0},
				[2]uint32{uint32(seed * 0x9e3779b97f4a7c15), uint32(seed * 0x9e3779b97f4a7c15 >> 32)})
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
	require.InDelta(t, 1, expNeg(0), 0)
	require.Zero(t, expNeg(negInf))
	require.Zero(t, expNeg(nan()))
}

// TestDistribution draws 50,000 tokens from a vocabulary of 32 and compares with theory: chi
// squared at α = 1e-6.
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
				// Wilson and Hilferty's approximation of the quantile; 4.753 is the normal one at 1
				// - 1e-6.
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

// TestPropertySupport: a drawn token is in the support that the sorted definition gives, the rest
// of the row is untouched by greedy, and two samplers with different histories agree.
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

// TestNucleusShortCut: leaving the tail out early keeps the same tokens, ties and extremes
// included.
func TestNucleusShortCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for i := range 2000 {
		row := normal(1+rng.IntN(400), uint64(i), []float64{0, 0.01, 1, 5, 30}[i%5])
		if i%3 == 0 {
			for j := range row {
				row[j] = float32(math.Round(float64(row[j])*2) / 2)
			}
		}
		p, temperature := []float64{1e-6, 0.3, 0.5, 0.9, 0.999, 0.9999999}[i%6], float32(0.1+rng.Float64())
		_, top := argmax(row)
		var whole, short support
		whole.gather(row, temperature, negInf)
		whole.topP(p)
		short.gatherNucleus(row, temperature, top, p)
		short.topP(p)
		require.ElementsMatch(t, ids(whole), ids(short))
	}
}

func ids(s support) (out []int32) {
	for _, t := range s.items {
		out = append(out, t.id)
	}
	return out
}
