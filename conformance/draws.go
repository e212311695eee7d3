package conformance

import (
	"fmt"
	"math"
	"slices"

	"github.com/enginetest/enginetest/llm"
)

// draws are the properties of the sampler's chances, judged against the engine's own
// log-probabilities.
var draws = []property{
	{
		name:  "sampler/draws at a temperature",
		why:   "a sampler that is a little wrong still writes fluent text: only counting shows it",
		needs: []Capability{TokenIDs, Logprobs, Sampling, Seeds},
		check: func(c *check) error {
			return c.drawn(func(d distribution, t float64) (llm.SamplingParams, distribution) {
				return llm.SamplingParams{Temperature: t}, d.tempered(t)
			})
		},
	},
	{
		name:  "sampler/draws of top-k",
		why:   "top-k keeps k tokens, not k−1 or k+1, and renormalizes what it keeps",
		needs: []Capability{TokenIDs, Logprobs, Sampling, Seeds, TopK},
		check: func(c *check) error {
			return c.drawn(func(d distribution, t float64) (llm.SamplingParams, distribution) {
				return llm.SamplingParams{Temperature: t, TopK: 5}, d.tempered(t)[:5].normalized()
			})
		},
	},
	{
		name:  "sampler/draws of top-p",
		why:   "top-p keeps the fewest likely tokens that reach p, with the one that crosses it",
		needs: []Capability{TokenIDs, Logprobs, Sampling, Seeds, TopP},
		check: func(c *check) error {
			return c.drawn(func(d distribution, t float64) (llm.SamplingParams, distribution) {
				d = d.tempered(t)
				return llm.SamplingParams{Temperature: t, TopP: d.nucleus(6)}, d[:6].normalized()
			})
		},
	},
	{
		name:  "sampler/draws of min-p",
		why:   "min-p is a share of the largest probability after the temperature, not a probability",
		needs: []Capability{TokenIDs, Logprobs, Sampling, Seeds, MinP},
		check: func(c *check) error {
			return c.drawn(func(d distribution, t float64) (llm.SamplingParams, distribution) {
				d = d.tempered(t)
				return llm.SamplingParams{Temperature: t, MinP: math.Sqrt(d[5].p*d[6].p) / d[0].p}, d[:6].normalized()
			})
		},
	},
	{
		name:  "sampler/draws of typical-p",
		why:   "typical-p keeps what is about as surprising as the whole is on average, which may leave out the likeliest",
		needs: []Capability{TokenIDs, Logprobs, Sampling, Seeds, TypicalP},
		check: func(c *check) error {
			return c.drawn(func(d distribution, t float64) (llm.SamplingParams, distribution) {
				if !d.complete() {
					return llm.SamplingParams{}, nil
				}
				kept, p := d.tempered(t).typical(0.6)
				return llm.SamplingParams{Temperature: t, TypicalP: p}, kept.normalized()
			})
		},
	},
	{
		name:  "sampler/draws of top-k and top-p",
		why:   "processors run in vLLM's order: top-p counts what top-k has left as the whole",
		needs: []Capability{TokenIDs, Logprobs, Sampling, Seeds, TopK, TopP},
		check: func(c *check) error {
			return c.drawn(func(d distribution, t float64) (llm.SamplingParams, distribution) {
				d = d.tempered(t)[:8].normalized()
				return llm.SamplingParams{Temperature: t, TopK: 8, TopP: d.nucleus(4)}, d[:4].normalized()
			})
		},
	},
	{
		name:  "sampler/top-k of one is greedy",
		why:   "with one token left there is no chance, at any temperature",
		needs: []Capability{Sampling, TopK},
		check: topKOfOne,
	},
}

const drawsPerRequest = 500

// drawn draws the first token of an answer many times, with seeds that are always the same.
func (c *check) drawn(expect func(distribution, float64) (llm.SamplingParams, distribution)) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	q, d, err := c.openEnded(l)
	if err != nil {
		return err
	}
	if d.complete() && len(d) < 16 {
		return fmt.Errorf("a vocabulary of %d tokens is too small to draw from", len(d))
	}
	t := 1.6
	if !d.complete() {
		t = 1 // what is not known cannot be tempered
	}
	p, want := expect(d, t)
	if want == nil {
		return lacks(FullLogprobs, "the engine tells those of %d tokens", len(d))
	}
	q.Sampling = p
	q.Sampling.MaxTokens = 1
	n := c.s.opts.draws
	ids, err := c.draw(l, q, n)
	if err != nil {
		return err
	}
	if i, found := want.outside(ids); found && want.complete() {
		q.Sampling.Seed = new(int64(i))
		return fmt.Errorf("drew token id %d, which the parameters rule out: they keep %d of %d tokens\nsmallest example found:\n%s",
			ids[i], len(want), len(d), requests([]llm.Request{q}))
	}
	if text := want.fits(ids); text != "" {
		return fmt.Errorf("%d draws don't follow the engine's own log-probabilities: %s\nwith the seeds 0 to %d:\n%s",
			n, text, n-1, requests([]llm.Request{q}))
	}
	c.notef("%d draws", n)
	return nil
}

// draw returns the first token of n answers with the seeds 0, 1, …. They are completions of few
// requests, unless the engine takes no request with that many.
func (c *check) draw(l *live, q llm.Request, n int) (ids []int32, err error) {
	batch := func(q llm.Request, size int) []llm.Request {
		q.Sampling.N = size
		return []llm.Request{q}
	}
	several := c.s.missing(l.engine(), []Capability{Several}) == nil
	for len(ids) < n {
		if !several {
			batch = singles
		}
		q.Sampling.Seed = new(int64(len(ids)))
		reqs := batch(q, min(drawsPerRequest, n-len(ids)))
		outs, err := l.generate(c, reqs...)
		if err != nil && several {
			several = false
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, o := range outs {
			for _, x := range o.Completions {
				if len(x.TokenIDs) != 1 {
					return nil, fmt.Errorf("%d tokens for MaxTokens 1\n%s", len(x.TokenIDs), requests(reqs[:1]))
				}
				ids = append(ids, x.TokenIDs[0])
			}
		}
	}
	return ids, nil
}

// singles are a request with n completions as n requests.
func singles(q llm.Request, n int) (reqs []llm.Request) {
	for i := range n {
		one := q
		one.Sampling.Seed = new(*q.Sampling.Seed + int64(i))
		reqs = append(reqs, one)
	}
	return reqs
}

// openEnded returns the prompt after which the engine is least sure of the next token, and what it
// thinks of each; of the 20 likeliest when it does not tell more.
func (c *check) openEnded(l *live) (q llm.Request, d distribution, err error) {
	k, most := -1, -1.0
	var candidates []llm.Request
	for i := range max(len(c.s.opts.prompts), len(c.s.opts.tokens)) {
		candidates = append(candidates, c.s.prompt(i, llm.SamplingParams{}))
	}
	if len(c.s.opts.tokens) == 0 {
		for _, text := range []string{"I", "He saw a", "The"} { // which most things may follow
			candidates = append(candidates, llm.Request{Prompt: text})
		}
	}
	for _, r := range candidates {
		r.Sampling = llm.SamplingParams{MaxTokens: 1, Logprobs: new(k)}
		x, err := l.one(c, r)
		if err != nil && k < 0 {
			k, r.Sampling.Logprobs = 20, new(20)
			x, err = l.one(c, r)
		}
		if err != nil {
			return q, nil, err
		}
		if err := identified(x); err != nil {
			return q, nil, err
		}
		if next := distributionOf(x.Logprobs[0]); next.entropy() > most {
			most, q, d = next.entropy(), r, next
		}
	}
	return q, d, nil
}

// whole is openEnded for a property that needs every token's probability.
func (c *check) whole(l *live) (q llm.Request, d distribution, err error) {
	if q, d, err = c.openEnded(l); err == nil && !d.complete() {
		err = lacks(FullLogprobs, "the engine tells those of %d tokens", len(d))
	}
	return q, d, err
}

// identified reports an answer whose log-probabilities don't say which tokens they are of.
func identified(x llm.Completion) error {
	switch {
	case len(x.TokenIDs) == 0:
		return lacks(TokenIDs, "an answer has none")
	case len(x.Logprobs) == 0:
		return lacks(Logprobs, "an answer has none")
	case slices.ContainsFunc(x.Logprobs[0], func(lp llm.Logprob) bool { return lp.TokenID < 0 }):
		return lacks(Logprobs, "they have no token ids")
	}
	return nil
}

func topKOfOne(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	for i := range max(len(c.s.opts.prompts), len(c.s.opts.tokens)) {
		want, err := l.one(c, c.s.prompt(i, llm.SamplingParams{MaxTokens: 24}))
		if err != nil {
			return err
		}
		var reqs []llm.Request
		for range 4 {
			reqs = append(reqs, c.s.prompt(i, llm.SamplingParams{MaxTokens: 24, Temperature: 2, TopK: 1}))
		}
		outs, err := l.generate(c, reqs...)
		if err != nil {
			return err
		}
		for _, o := range outs {
			if d := c.s.differ(want, o.Completions[0]); d != "" {
				return fmt.Errorf("%s\n%s\n  got  %s\n  want %s, the greedy answer", d, requests(reqs[:1]),
					answer(o.Completions[0]), answer(want))
			}
		}
	}
	return nil
}
