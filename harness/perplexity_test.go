package harness_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/internal/faketb"
	"github.com/enginetest/enginetest/llm"
)

// letters is an engine whose tokens are letters: the log-probability of the n-th of a prompt is -n.
// It returns up to most log-probabilities for a token, worst first.
type letters struct{ most int }

func (letters) Shutdown(context.Context) error { return nil }

func (e letters) Generate(_ context.Context, reqs ...llm.Request) ([]llm.Output, error) {
	outs := make([]llm.Output, len(reqs))
	for i, q := range reqs {
		o := &outs[i]
		o.Prompt = q.Prompt
		for at, c := range []byte(q.Prompt) {
			o.PromptTokenIDs = append(o.PromptTokenIDs, int32(c))
			o.PromptLogprobs = append(o.PromptLogprobs, []llm.Logprob{{TokenID: int32(c), Logprob: float32(-at)}})
		}
		c := llm.Completion{TokenIDs: make([]int32, q.Sampling.MaxTokens)}
		for range c.TokenIDs {
			var lps []llm.Logprob
			for j := range e.most {
				lps = append(lps, llm.Logprob{TokenID: int32(j), Logprob: float32(j - 10)})
			}
			c.Logprobs = append(c.Logprobs, lps)
		}
		o.Completions = []llm.Completion{c}
	}
	return outs, nil
}

func startLetters(t harness.TB, most int) *harness.Runner {
	return harness.Start(t, func(context.Context) (letters, error) { return letters{most}, nil }, noGPU...)
}

func TestPerplexity(t *testing.T) {
	r := startLetters(t, 3)
	assert.InDelta(t, math.Exp(2), r.PromptPerplexity("abcd"), 1e-9, "1, 2, 3")
	assert.InDelta(t, math.Exp(2), r.PromptPerplexityMasked("abcd", ""), 1e-9)
	assert.InDelta(t, math.Exp(2), r.PromptPerplexityMasked("abcd", "a"), 1e-9, "the first has nothing before it")
	assert.InDelta(t, math.Exp(2.5), r.PromptPerplexityMasked("abcd", "ab"), 1e-9, "2, 3")
	assert.InDelta(t, math.Exp(3), r.PromptPerplexityMasked("abcd", "abc"), 1e-9)
	for mask, want := range map[string]string{
		"abcd": "all of its 4 tokens are masked", "b": "they differ at token 0", "abd": "they differ at token 2",
	} {
		failures := faketb.Run(func(ft *faketb.T) { startLetters(ft, 3).PromptPerplexityMasked("abcd", mask) })
		require.Len(t, failures, 1, mask)
		assert.Contains(t, failures[0], want)
	}
}

func TestGreedyLogprobsLimit(t *testing.T) {
	r := startLetters(t, 6) // more than are asked for
	done := r.GenerateGreedyLogprobsLimit([]string{"ab", "c"}, 2, 3)
	require.Len(t, done, 2)
	for _, c := range done {
		require.Len(t, c.Logprobs, 2)
		for _, lps := range c.Logprobs {
			require.Len(t, lps, 3)
			assert.Equal(t, []int32{5, 4, 3}, []int32{lps[0].TokenID, lps[1].TokenID, lps[2].TokenID}, "the best first")
		}
	}
	for k, want := range map[int]string{0: "must be at least 1", 7: "returned 6 log-probabilities for token 0 of prompt 0"} {
		failures := faketb.Run(func(ft *faketb.T) { startLetters(ft, 6).GenerateGreedyLogprobsLimit([]string{"ab"}, 2, k) })
		require.Len(t, failures, 1)
		assert.Contains(t, failures[0], want)
	}
}
