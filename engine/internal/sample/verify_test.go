package sample

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Tokens that come out of verification have the target's distribution, whatever was proposed: χ² of
// pairs of tokens, of which the second depends on the first, at 1e-6.
func TestVerifyKeepsTheDistribution(t *testing.T) {
	const vocab, draws = 6, 30_000
	rows := [vocab + 1][]float32{} // the logits after nothing, and after each token
	probs := [vocab + 1][]float64{}
	for i := range rows {
		sum := 0.0
		for j := range vocab {
			x := float32((i*5+j*3)%7) * 0.4
			rows[i] = append(rows[i], x)
			probs[i] = append(probs[i], math.Exp(float64(x)))
			sum += probs[i][j]
		}
		for j := range probs[i] {
			probs[i][j] /= sum
		}
	}
	for _, drafts := range [][]int32{{0, 1}, {3, 3}, {5, 0}} {
		s, seen, accepted := &Sampler{}, [vocab][vocab]float64{}, 0
		for seed := range draws {
			st := &State{Params: Params{Temperature: 1, TopP: 1, Logprobs: -1, Seed: uint64(seed)}, Prompt: []int32{1}}
			text := st.Output
			for len(text) < 2 { // a rejected draft ends a step
				d := drafts[len(text):]
				at := []float32{}
				for i := range len(d) + 1 {
					row := rows[vocab]
					if before := append(text[:len(text):len(text)], d[:i]...); len(before) > 0 {
						row = rows[before[len(before)-1]]
					}
					at = append(at, row...)
				}
				st.Output = text
				first, more, err := s.Verify(st, d, at)
				require.NoError(t, err)
				text = append(text, first.Token)
				for _, m := range more {
					text = append(text, m.Token)
				}
				accepted += len(more)
			}
			seen[text[0]][text[1]]++
		}
		chi, cells := 0.0, float64(vocab*vocab)
		for a := range vocab {
			for b := range vocab {
				want := draws * probs[vocab][a] * probs[a][b]
				require.Greater(t, want, 5.0)
				chi += (seen[a][b] - want) * (seen[a][b] - want) / want
			}
		}
		const z = 4.7534 // of 1e-6; the critical value is Wilson and Hilferty's
		k := cells - 1
		critical := k * math.Pow(1-2/(9*k)+z*math.Sqrt(2/(9*k)), 3)
		assert.Less(t, chi, critical, "drafts %v", drafts)
		assert.Positive(t, accepted)
	}
}

// Verify returns what single draws return, bit for bit: the tokens, their log-probabilities, the penalties
// that each has for the next.
func TestVerifyDrawsAsDraw(t *testing.T) {
	const vocab = 12
	row := func(st *State) []float32 {
		out := make([]float32, vocab)
		for i := range out {
			out[i] = float32((i*7+3*len(st.Output))%11) * 0.3
		}
		return out
	}
	params := Params{Temperature: 0.9, TopP: 0.95, RepetitionPenalty: 1.2, PresencePenalty: 0.3, Logprobs: 2, Seed: 5}
	alone, s := &State{Params: params, Prompt: []int32{1, 2}}, &Sampler{}
	var want []Drawn
	for range 4 {
		id, lps, err := s.Draw(alone, row(alone))
		require.NoError(t, err)
		want = append(want, Drawn{id, lps})
		alone.Output = append(alone.Output, id)
	}
	for right := range 4 { // drafts before the first wrong one
		st := &State{Params: params, Prompt: []int32{1, 2}}
		drafts := []int32{want[0].Token, want[1].Token, want[2].Token}
		if right < 3 {
			drafts[right] = (drafts[right] + 1) % vocab
		}
		var rows []float32
		for i := range 4 {
			rows = append(rows, row(&State{Output: make([]int32, i)})...)
		}
		first, more, err := s.Verify(st, drafts, rows)
		require.NoError(t, err)
		assert.Equal(t, want[:right+1], append([]Drawn{first}, more...))
		assert.Len(t, st.Output, right)
	}
}
