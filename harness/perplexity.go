package harness

import (
	"math"
	"slices"

	"github.com/enginetest/enginetest/llm"
)

// PromptPerplexity is exp(−mean log-probability) of the prompt's tokens after the first, which has
// nothing before it.
func (r *Runner) PromptPerplexity(prompt string) float64 {
	r.t.Helper()
	return r.perplexity(prompt, r.promptScores(prompt)[0], 1)
}

// PromptPerplexityMasked is PromptPerplexity without the tokens of mask, which the prompt begins
// with: a question whose answer is judged. The tokens of mask alone must be the first of the
// prompt's, so end it where a token ends.
func (r *Runner) PromptPerplexityMasked(prompt, mask string) float64 {
	r.t.Helper()
	outs := r.promptScores(prompt, mask)
	all, masked := outs[0].PromptTokenIDs, outs[1].PromptTokenIDs
	n := 0
	for n < min(len(all), len(masked)) && all[n] == masked[n] {
		n++
	}
	if n < len(masked) {
		r.t.Fatalf("%s: perplexity of %q: its tokens %v do not begin with those of the mask %q, %v: they differ at token %d",
			r.pkg, prompt, all, mask, masked, n)
	}
	return r.perplexity(prompt, outs[0], max(n, 1))
}

// promptScores asks for the log-probabilities of prompts' own tokens.
func (r *Runner) promptScores(prompts ...string) []llm.Output {
	r.t.Helper()
	zero := 0
	reqs := make([]llm.Request, len(prompts))
	for i, p := range prompts {
		reqs[i] = llm.Request{Prompt: p, Sampling: llm.SamplingParams{MaxTokens: 1, PromptLogprobs: &zero}}
	}
	return r.Generate(reqs...)
}

// perplexity is that of the prompt's tokens from the given one on.
func (r *Runner) perplexity(prompt string, out llm.Output, from int) float64 {
	r.t.Helper()
	if n := len(out.PromptTokenIDs); n < 2 || len(out.PromptLogprobs) != n {
		r.t.Fatalf("%s: perplexity of %q: %d prompt tokens (want at least 2) with %d log-probabilities (want one a token)",
			r.pkg, prompt, n, len(out.PromptLogprobs))
	}
	n := len(out.PromptTokenIDs) - from
	if n < 1 {
		r.t.Fatalf("%s: perplexity of %q: all of its %d tokens are masked", r.pkg, prompt, from)
	}
	sum := 0.0
	for i, id := range out.PromptTokenIDs[from:] {
		lps := out.PromptLogprobs[from+i]
		at := slices.IndexFunc(lps, func(lp llm.Logprob) bool { return lp.TokenID == id })
		if at < 0 {
			r.t.Fatalf("%s: perplexity of %q: position %d has no log-probability of its own token %d", r.pkg, prompt,
				from+i, id)
			return math.NaN() // a fake TB
		}
		sum += float64(lps[at].Logprob)
	}
	return math.Exp(-sum / float64(n))
}
