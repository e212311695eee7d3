package server

import (
	"cmp"
	"slices"

	"github.com/enginetest/enginetest/llm"
)

// unknownToken is the id of a token of which a server tells the text only.
const unknownToken = -1

// openAILogprobs are those of a completion (tokens and maps from text to log-probability), or of a
// chat (content). llama-server has the second form for both.
type openAILogprobs struct {
	Tokens        []string
	TokenLogprobs []float32            `json:"token_logprobs"`
	TopLogprobs   []map[string]float32 `json:"top_logprobs"`
	Content       []candidate
}

// candidate is a token at one position, with the most likely ones when it is the sampled one.
type candidate struct {
	ID      *int32
	Token   string
	Logprob float32
	Top     []candidate `json:"top_logprobs"`
}

// positions lists, for each token, the most likely ones, best first, and the sampled one among them
// or after them.
func (l *openAILogprobs) positions(ids []int32) [][]llm.Logprob {
	var out [][]llm.Logprob
	for i, c := range l.Content {
		if c.ID == nil && i < len(ids) {
			c.ID = &ids[i]
		}
		out = append(out, c.position())
	}
	for i, text := range l.Tokens {
		if i >= len(l.TokenLogprobs) {
			break
		}
		c := candidate{Token: text, Logprob: l.TokenLogprobs[i]}
		if i < len(ids) {
			c.ID = &ids[i]
		}
		if i < len(l.TopLogprobs) {
			for token, lp := range l.TopLogprobs[i] {
				c.Top = append(c.Top, candidate{Token: token, Logprob: lp})
			}
		}
		out = append(out, c.position())
	}
	return out
}

func (c candidate) position() []llm.Logprob {
	top := slices.Clone(c.Top)
	slices.SortStableFunc(top, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.Logprob, a.Logprob), cmp.Compare(a.Token, b.Token))
	})
	var out []llm.Logprob
	found := false
	for i, t := range top {
		lp := llm.Logprob{TokenID: unknownToken, Logprob: t.Logprob, Rank: i + 1, Token: t.Token}
		same := t.Token == c.Token && t.Logprob == c.Logprob
		if t.ID != nil {
			lp.TokenID = *t.ID
			same = c.ID != nil && *c.ID == *t.ID
		} else if same && c.ID != nil {
			lp.TokenID = *c.ID
		}
		found = found || same
		out = append(out, lp)
	}
	if !found {
		lp := llm.Logprob{TokenID: unknownToken, Logprob: c.Logprob, Token: c.Token} // its rank is not told
		if c.ID != nil {
			lp.TokenID = *c.ID
		}
		out = append(out, lp)
	}
	return out
}

// sum adds up the sampled tokens' log-probabilities.
func (l *openAILogprobs) sum() (sum float64) {
	for _, c := range l.Content {
		sum += float64(c.Logprob)
	}
	for _, lp := range l.TokenLogprobs {
		sum += float64(lp)
	}
	return sum
}
