package conformance

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/enginetest/enginetest/llm"
)

// mass is a token's probability.
type mass struct {
	id int32
	p  float64
}

// distribution is what the next token is drawn from, likeliest first. It may lack the unlikely
// ones: the rest is then less than what is missing to 1.
type distribution []mass

func distributionOf(lps []llm.Logprob) distribution {
	d := make(distribution, len(lps))
	for i, lp := range lps {
		d[i] = mass{lp.TokenID, math.Exp(float64(lp.Logprob))}
	}
	slices.SortFunc(d, func(a, b mass) int { return cmp.Or(cmp.Compare(b.p, a.p), cmp.Compare(a.id, b.id)) })
	return d
}

func (d distribution) sum() (sum float64) {
	for _, m := range d {
		sum += m.p
	}
	return sum
}

// complete reports whether the probabilities are those of all tokens.
func (d distribution) complete() bool { return d.sum() > 0.9999 }

func (d distribution) entropy() (h float64) {
	for _, m := range d {
		if m.p > 0 {
			h -= m.p * math.Log(m.p)
		}
	}
	return h
}

// tempered is the distribution at a temperature: p^(1/t), to a sum of 1. At 1 it is as it was.
func (d distribution) tempered(t float64) distribution {
	if t == 1 {
		return d
	}
	out := slices.Clone(d)
	for i := range out {
		out[i].p = math.Pow(out[i].p, 1/t)
	}
	return out.normalized()
}

func (d distribution) normalized() distribution {
	out, sum := slices.Clone(d), d.sum()
	for i := range out {
		out[i].p /= sum
	}
	return out
}

// nucleus returns a top-p that keeps exactly the n likeliest tokens, far from rounding.
func (d distribution) nucleus(n int) (p float64) {
	return d[:n-1].sum() + d[n-1].p/2
}

// typical keeps the tokens whose surprise is closest to the entropy, until they have p together
// (arXiv:2202.00666), and returns the p nearest to the given one that is far from rounding.
func (d distribution) typical(p float64) (kept distribution, used float64) {
	h := d.entropy()
	by := slices.Clone(d)
	slices.SortStableFunc(by, func(a, b mass) int {
		return cmp.Compare(math.Abs(-math.Log(a.p)-h), math.Abs(-math.Log(b.p)-h))
	})
	sum := 0.0
	for i, m := range by {
		if sum+m.p >= p {
			return by[:i+1], sum + m.p/2
		}
		sum += m.p
	}
	return by, 1
}

// fits compares drawn tokens with the distribution: a χ² test whose bins hold at least eight
// expected draws each. It returns "" when they fit, at a level of one in a million.
func (d distribution) fits(drawn []int32) string {
	counts := map[int32]int{}
	for _, id := range drawn {
		counts[id]++
	}
	n := float64(len(drawn))
	var chi, restExpected, worst float64
	var worstText string
	bins, restSeen := 0, len(drawn)
	add := func(name string, seen int, expected float64) {
		bins++
		x := (float64(seen) - expected) * (float64(seen) - expected) / expected
		if chi += x; x > worst {
			worst, worstText = x, fmt.Sprintf("%s came %d times, want about %.0f", name, seen, expected)
		}
	}
	for _, m := range d {
		if n*m.p < 8 {
			continue
		}
		restSeen -= counts[m.id]
		add(fmt.Sprintf("token id %d", m.id), counts[m.id], n*m.p)
		restExpected += n * m.p
	}
	if rest := n - restExpected; rest >= 8 {
		add("the unlikely tokens together", restSeen, rest)
	}
	if bins < 2 {
		return ""
	}
	if z := normalOf(chi, float64(bins-1)); z > 4.75 {
		return fmt.Sprintf("χ² is %.1f with %d degrees of freedom, %.1f σ: %s", chi, bins-1, z, worstText)
	}
	return ""
}

// normalOf turns a χ² value into a standard normal one (Wilson and Hilferty, 1931).
func normalOf(chi, freedom float64) float64 {
	v := 2 / (9 * freedom)
	return (math.Cbrt(chi/freedom) - (1 - v)) / math.Sqrt(v)
}

// outside returns the first drawn token that the distribution lacks.
func (d distribution) outside(drawn []int32) (at int, found bool) {
	for i, id := range drawn {
		if !slices.ContainsFunc(d, func(m mass) bool { return m.id == id }) {
			return i, true
		}
	}
	return 0, false
}
