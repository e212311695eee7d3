package conformance

import (
	"fmt"
	"math"
	"slices"

	"github.com/enginetest/enginetest/llm"
)

// logprobs are the properties of what an engine says about its tokens' probabilities.
var logprobs = []property{
	{
		name:  "logprobs/well-formed",
		why:   "evaluations add them up: each position has its token, the likeliest in order with their ranks, and their sum",
		needs: []Capability{TokenIDs, Logprobs},
		check: wellFormed,
	},
	{
		name:  "logprobs/whole vocabulary",
		why:   "probabilities of all tokens add up to one, or they are not probabilities",
		needs: []Capability{TokenIDs, FullLogprobs},
		check: sumsToOne,
	},
	{
		name:  "logprobs/same for every k",
		why:   "asking for more of them must not change those that were there before, nor the answer",
		needs: []Capability{TokenIDs, Logprobs},
		check: sameForEveryK,
	},
	{
		name:  "logprobs/before any parameter",
		why:   "they are the model's, so that answers drawn with different parameters can be compared",
		needs: []Capability{TokenIDs, Logprobs, Sampling, Seeds},
		check: beforeParameters,
	},
	{
		name:  "logprobs/four modes",
		why:   "a trainer divides by what its tokens were drawn from: raw or processed, logits or not, they belong together",
		needs: []Capability{TokenIDs, FullLogprobs, LogprobModes, Sampling, Seeds, TopK, LogitBias},
		check: fourModes,
	},
	{
		name:  "logprobs/prompt as output",
		why:   "a token has one probability after the same text, whether it was in the prompt or in the answer",
		needs: []Capability{TokenIDs, TokenInput, Logprobs, PromptScores},
		check: promptAsOutput,
	},
}

func wellFormed(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	for i := range 4 {
		for _, k := range []int{0, 1, 5} {
			p := llm.SamplingParams{MaxTokens: 12, Logprobs: new(k)}
			if i%2 == 1 {
				p.Temperature, p.Seed = 1.8, new(int64(i))
			}
			q := c.s.prompt(i, p)
			x, err := l.one(c, q)
			if err != nil {
				return err
			}
			if err := identified(x); err != nil {
				return err
			}
			if text := malformed(x, k, i%2 == 0); text != "" {
				return fmt.Errorf("%s\n%s\n  got  %s", text, requests([]llm.Request{q}), answer(x))
			}
		}
	}
	return nil
}

// malformed says what is wrong with a completion's k log-probabilities; "" when nothing is.
func malformed(x llm.Completion, k int, greedy bool) string {
	if len(x.Logprobs) != len(x.TokenIDs) {
		return fmt.Sprintf("log-probabilities at %d positions, of %d tokens", len(x.Logprobs), len(x.TokenIDs))
	}
	cumulative := 0.0
	for i, lps := range x.Logprobs {
		chosen, ok := logprobOf(lps, x.TokenIDs[i])
		among := chosen.Rank > 0 && chosen.Rank <= k // a rank of 0 is not known
		switch {
		case !ok:
			return fmt.Sprintf("token %d has no log-probability of itself", i)
		case len(lps) != k+1 && !among || len(lps) != k && among:
			return fmt.Sprintf("token %d has %d log-probabilities: want the %d likeliest, and the chosen one when it is not among them (it has rank %d)",
				i, len(lps), k, chosen.Rank)
		case greedy && k > 0 && chosen.Rank != 1 || greedy && chosen.Rank > 1:
			return fmt.Sprintf("token %d was chosen greedily and has rank %d", i, chosen.Rank)
		}
		cumulative += float64(chosen.Logprob)
		if text := unordered(lps, k); text != "" {
			return fmt.Sprintf("token %d: %s", i, text)
		}
		if sum := distributionOf(lps).sum(); sum > 1.0001 {
			return fmt.Sprintf("token %d: %d probabilities have a sum of %g", i, len(lps), sum)
		}
	}
	if math.Abs(cumulative-x.CumulativeLogprob) > 1e-4 {
		return fmt.Sprintf("the cumulative log-probability is %g, and those of the tokens add up to %g",
			x.CumulativeLogprob, cumulative)
	}
	return ""
}

// unordered checks the k likeliest: best first, with ranks 1 to k, each once.
func unordered(lps []llm.Logprob, k int) string {
	for i, lp := range lps[:k] {
		switch {
		case lp.Rank != i+1:
			return fmt.Sprintf("number %d of the likeliest has rank %d", i+1, lp.Rank)
		case i > 0 && lp.Logprob > lps[i-1].Logprob:
			return fmt.Sprintf("rank %d (%v) is likelier than rank %d (%v)", i+1, lp.Logprob, i, lps[i-1].Logprob)
		case slices.ContainsFunc(lps[:i], func(o llm.Logprob) bool { return o.TokenID == lp.TokenID }):
			return fmt.Sprintf("token id %d is listed twice", lp.TokenID)
		}
	}
	if len(lps) > k && k > 0 && lps[k].Rank > 0 && lps[k].Rank <= k {
		return fmt.Sprintf("the chosen token is not among the %d likeliest, and has rank %d", k, lps[k].Rank)
	}
	return ""
}

func sumsToOne(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	if _, _, err := c.whole(l); err != nil {
		return err
	}
	for i := range 3 {
		q := c.s.prompt(i, llm.SamplingParams{MaxTokens: 4, Logprobs: new(-1)})
		x, err := l.one(c, q)
		if err != nil {
			return err
		}
		for at, lps := range x.Logprobs {
			if sum := distributionOf(lps).sum(); math.Abs(sum-1) > 1e-3 {
				return fmt.Errorf("token %d: the probabilities of all %d tokens have a sum of %g\n%s", at, len(lps),
					sum, requests([]llm.Request{q}))
			}
			if text := unordered(lps, len(lps)); text != "" {
				return fmt.Errorf("token %d: %s\n%s", at, text, requests([]llm.Request{q}))
			}
		}
	}
	return nil
}

func sameForEveryK(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	q := c.s.prompt(1, llm.SamplingParams{MaxTokens: 16, Logprobs: new(8)})
	want, err := l.one(c, q)
	if err == nil {
		err = identified(want)
	}
	if err != nil {
		return err
	}
	for _, k := range []int{0, 1, 3} {
		q.Sampling.Logprobs = new(k)
		got, err := l.one(c, q)
		if err != nil {
			return err
		}
		less := want
		less.Logprobs = nil
		for i, lps := range want.Logprobs {
			keep := slices.DeleteFunc(slices.Clone(lps), func(lp llm.Logprob) bool {
				return lp.Rank > k && lp.TokenID != want.TokenIDs[i]
			})
			less.Logprobs = append(less.Logprobs, keep)
		}
		if d := c.s.differ(less, got); d != "" {
			return fmt.Errorf("with %d log-probabilities in place of 8: %s\n%s", k, d, requests([]llm.Request{q}))
		}
	}
	return nil
}

func beforeParameters(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	q := c.s.prompt(0, llm.SamplingParams{MaxTokens: 1, Logprobs: new(5)})
	plain, err := l.one(c, q)
	if err == nil {
		err = identified(plain)
	}
	if err != nil {
		return err
	}
	for _, p := range []llm.SamplingParams{
		{Temperature: 0.4, Seed: new(int64(1))},
		{Temperature: 1.7, Seed: new(int64(2)), TopK: 2},
		{LogitBias: map[int32]float64{plain.TokenIDs[0]: -20}},
		{PresencePenalty: 2, FrequencyPenalty: 2, RepetitionPenalty: 1.8},
	} {
		p.MaxTokens, p.Logprobs = 1, new(5)
		q.Sampling = p
		x, err := l.one(c, q)
		if lackOf(err, nil) != nil {
			continue
		}
		if err != nil {
			return err
		}
		if d := logprobsDiffer([][]llm.Logprob{plain.Logprobs[0][:5]}, [][]llm.Logprob{x.Logprobs[0][:5]},
			c.s.opts.tolerance); d != "" {
			return fmt.Errorf("%s, as without parameters\n%s", d, requests([]llm.Request{q}))
		}
	}
	return nil
}

func promptAsOutput(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	for i := range 3 {
		q := c.s.prompt(i, llm.SamplingParams{MaxTokens: 24, Logprobs: new(3)})
		outs, err := l.generate(c, q)
		if err != nil {
			return err
		}
		prompt, x := outs[0].PromptTokenIDs, outs[0].Completions[0]
		if err := identified(x); err != nil {
			return err
		}
		if q.PromptTokenIDs != nil {
			prompt = q.PromptTokenIDs
		}
		again := llm.Request{
			PromptTokenIDs: slices.Concat(prompt, x.TokenIDs),
			Sampling:       llm.SamplingParams{MaxTokens: 1, PromptLogprobs: new(3)},
		}
		outs, err = l.generate(c, again)
		if err != nil {
			return err
		}
		got := outs[0].PromptLogprobs
		switch {
		case len(got) != len(again.PromptTokenIDs):
			return fmt.Errorf("%d prompt log-probabilities, of %d tokens\n%s", len(got), len(again.PromptTokenIDs),
				requests([]llm.Request{again}))
		case got[0] != nil:
			return fmt.Errorf("the first token of a prompt has a log-probability, with nothing before it\n%s",
				requests([]llm.Request{again}))
		}
		if d := logprobsDiffer(x.Logprobs, got[len(prompt):], c.s.opts.tolerance); d != "" {
			return fmt.Errorf("an answer's tokens as part of the prompt: %s (counted from token %d)\n%s", d,
				len(prompt), requests([]llm.Request{again}))
		}
		for at := 1; at < len(got); at++ {
			if _, ok := logprobOf(got[at], again.PromptTokenIDs[at]); !ok {
				return fmt.Errorf("token %d of the prompt has no log-probability of itself\n%s", at,
					requests([]llm.Request{again}))
			}
		}
	}
	return nil
}
