package conformance

import "github.com/enginetest/enginetest/llm"

// prompt returns the i-th prompt as a request.
func (s *suite) prompt(i int, p llm.SamplingParams) llm.Request {
	if len(s.opts.tokens) > 0 {
		return llm.Request{PromptTokenIDs: s.opts.tokens[i%len(s.opts.tokens)], Sampling: p}
	}
	return llm.Request{Prompt: s.opts.prompts[i%len(s.opts.prompts)], Sampling: p}
}

// greedy returns n requests for the likeliest tokens, with their log-probabilities when the engine
// has them.
func (c *check) greedy(n, maxTokens int) []llm.Request {
	reqs := make([]llm.Request, n)
	for i := range reqs {
		reqs[i] = c.s.prompt(i, llm.SamplingParams{MaxTokens: maxTokens, Logprobs: c.scores()})
	}
	return reqs
}

// scores is how many log-probabilities a comparison asks for: none of an engine that lacks them.
func (c *check) scores() *int {
	if c.s.hasLogprobs == nil {
		has := false
		l, err := c.engine()
		if err == nil && c.s.missing(l.engine(), []Capability{Logprobs}) == nil {
			x, err := l.one(c, c.s.prompt(0, llm.SamplingParams{MaxTokens: 1, Logprobs: new(2)}))
			has = err == nil && len(x.Logprobs) > 0
		}
		c.s.hasLogprobs = &has
	}
	if !*c.s.hasLogprobs {
		return nil
	}
	return new(2)
}

// long returns n requests that keep the engine busy: they don't end before maxTokens, if it can be
// told so.
func (c *check) long(n, maxTokens int) []llm.Request {
	ignore := c.s.missing(nil, []Capability{EndOfSequence}) == nil
	reqs := make([]llm.Request, n)
	for i := range reqs {
		reqs[i] = c.s.prompt(i, llm.SamplingParams{MaxTokens: maxTokens, IgnoreEOS: ignore})
	}
	return reqs
}

// sampled returns n requests with chance, each with a seed of its own.
func (c *check) sampled(n, maxTokens int) []llm.Request {
	reqs := make([]llm.Request, n)
	for i := range reqs {
		reqs[i] = c.s.prompt(i, llm.SamplingParams{MaxTokens: maxTokens, Temperature: 1, Seed: new(int64(100 + i))})
	}
	return reqs
}

// tokens returns a request's prompt as token ids; nil when the engine does not take or tell them.
func (c *check) tokens(l *live, q llm.Request) ([]int32, error) {
	if q.PromptTokenIDs != nil {
		return q.PromptTokenIDs, nil
	}
	if c.s.missing(l.engine(), []Capability{TokenInput}) != nil {
		return nil, nil
	}
	q.Sampling = llm.SamplingParams{MaxTokens: 1}
	outs, err := l.generate(c, q)
	if err != nil {
		return nil, err
	}
	ids := outs[0].PromptTokenIDs
	if len(ids) == 0 {
		return nil, nil
	}
	if _, err := l.generate(c, llm.Request{PromptTokenIDs: ids, Sampling: q.Sampling}); lackOf(err, nil) != nil {
		return nil, nil
	}
	return ids, nil
}
