package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
)

// sameAnswer are the properties of one request that is answered in different circumstances.
var sameAnswer = []property{
	{
		name:  "same answer/greedy twice",
		why:   "without it no test can compare an answer with an expected one",
		check: greedyTwice,
	},
	{
		name:  "same answer/in a batch as alone",
		why:   "what other callers ask must not change an answer; a wrong slot or row in a batch shows here first",
		check: batchAsAlone,
	},
	{
		name:  "same answer/cold as warm",
		why:   "a prefix that comes out of the cache must be the prefix that was computed: a stale block answers another prompt",
		needs: []Capability{PrefixReset},
		check: coldAsWarm,
	},
	{
		name:  "same answer/continued as in one go",
		why:   "tokens that are computed together as a prompt, in pieces, and one by one as an answer are the same text",
		needs: []Capability{TokenIDs, TokenInput},
		check: continued,
	},
	{
		name:  "same answer/under memory pressure",
		why:   "a sequence that loses its cache and is computed again must go on where it was",
		needs: []Capability{TightMemory},
		check: underPressure,
	},
	{
		name:  "same answer/after neighbours were aborted",
		why:   "blocks and rows that an abort frees are given to others while the batch goes on",
		check: afterAborts,
	},
	{
		name:  "same answer/after sleep and wake",
		why:   "a tensor that does not come back leaves an engine that talks nonsense",
		needs: []Capability{Sleeping},
		check: afterSleep,
	},
	{
		name:  "same answer/after a restart",
		why:   "what a test expects must not depend on what the process did before",
		check: afterRestart,
	},
	{
		name:  "same answer/streamed as whole",
		why:   "the pieces of a stream are the answer: none lost, none twice, none cut inside a character",
		needs: []Capability{Streaming},
		check: streamedAsWhole,
	},
	{
		name:  "same answer/seeds repeat",
		why:   "a seed is what makes a test with chance a test",
		needs: []Capability{Sampling, Seeds},
		check: seedsRepeat,
	},
	{
		name:  "same answer/seeds are their request's own",
		why:   "a draw must depend on the request's seed and not on the requests beside it or the order in which they came",
		needs: []Capability{Sampling, Seeds},
		check: seedsAlone,
	},
	{
		name:  "same answer/n as n requests",
		why:   "completions of one request are as good as requests of their own: with the seeds s, s+1, …, as vLLM has it",
		needs: []Capability{Sampling, Seeds, Several},
		check: severalAsSingle,
	},
}

func greedyTwice(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	return c.holds(c.greedy(4, 24), func(reqs []llm.Request) (string, error) {
		want, err := l.each(c, reqs...)
		if err != nil {
			return "", err
		}
		got, err := l.each(c, reqs...)
		if err != nil {
			return "", err
		}
		return c.s.difference(reqs, want, got), nil
	})
}

// batchAsAlone sends requests of different lengths together, then one by one. Some are long enough
// to be computed in pieces, and begin alike, so that they share blocks.
func batchAsAlone(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	reqs := append(c.greedy(6, 24), c.alike(9, 24)...)
	for i := range reqs {
		reqs[i].Sampling.MaxTokens += 2 * i
	}
	reset := func(context.Context) error { return nil }
	if e, ok := l.engine().(harness.PrefixCacheResetter); ok {
		reset = e.ResetPrefixCache
	}
	return c.holds(reqs, func(reqs []llm.Request) (string, error) {
		if err := reset(c); err != nil && lackOf(err, nil) == nil {
			return "", fmt.Errorf("reset of the prefix cache of an idle engine: %w", err)
		}
		got, err := l.generate(c, reqs...)
		if err != nil {
			return "", err
		}
		want, err := l.each(c, reqs...)
		if err != nil {
			return "", err
		}
		return c.s.difference(reqs, want, got), nil
	})
}

// coldAsWarm answers every prompt with an empty cache, then fills the cache with all of them and
// asks again, twice.
func coldAsWarm(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	e, _ := l.engine().(harness.PrefixCacheResetter)
	reqs := c.alike(8, 12)
	ids, err := c.tokens(l, reqs[2])
	if err != nil {
		return err
	}
	if n := len(ids); n >= 64 {
		// The same second half after another first half, and prompts of exactly a few blocks.
		other := slices.Clone(ids)
		slices.Reverse(other[:n/2/32*32])
		for _, p := range [][]int32{ids, other, ids[:64], ids[:32], other[:64]} {
			q := reqs[0]
			q.Prompt, q.PromptTokenIDs = "", p
			reqs = append(reqs, q)
		}
	}
	hits := 0
	err = c.holds(reqs, func(reqs []llm.Request) (string, error) {
		var want []llm.Output
		for _, q := range reqs {
			if err := e.ResetPrefixCache(c); err != nil {
				return "", fmt.Errorf("reset of the prefix cache of an idle engine: %w", err)
			}
			outs, err := l.generate(c, q)
			if err != nil {
				return "", err
			}
			if outs[0].CachedTokens > 0 {
				return fmt.Sprintf("%d prompt tokens came out of a prefix cache that was just reset",
					outs[0].CachedTokens), nil
			}
			want = append(want, outs...)
		}
		for range 2 {
			got, err := l.each(c, reqs...)
			if err != nil {
				return "", err
			}
			for _, o := range got {
				hits += o.CachedTokens
			}
			if d := c.s.difference(reqs, want, got); d != "" {
				return d, nil
			}
		}
		return "", nil
	})
	c.notef("%d prompt tokens came out of the cache", hits)
	return err
}

// alike returns n requests whose prompts share beginnings of different lengths.
func (c *check) alike(n, maxTokens int) []llm.Request {
	reqs := c.greedy(n, maxTokens)
	if len(c.s.opts.tokens) > 0 {
		return reqs
	}
	const common = "These are the notes of the keeper of the lighthouse, who wrote down every day what came by the sea. "
	for i := range reqs {
		text := ""
		for range 1 + i%3 {
			text += common
		}
		reqs[i].Prompt = text + reqs[i].Prompt
	}
	return reqs
}

// continued cuts an answer and has it continued with the first part as a prompt.
func continued(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	reqs := c.alike(4, 40)
	outs, err := l.each(c, reqs...)
	if err != nil {
		return err
	}
	compared := 0
	for i, o := range outs {
		prompt, full := o.PromptTokenIDs, o.Completions[0]
		if reqs[i].PromptTokenIDs != nil {
			prompt = reqs[i].PromptTokenIDs
		}
		if len(prompt) == 0 || len(full.TokenIDs) == 0 {
			return lacks(TokenInput, "an output has no token ids of its prompt")
		}
		for _, cut := range []int{1, 7, 16, 33} {
			if cut >= len(full.TokenIDs) {
				break
			}
			q := llm.Request{PromptTokenIDs: slices.Concat(prompt, full.TokenIDs[:cut]), Sampling: reqs[i].Sampling}
			q.Sampling.MaxTokens -= cut
			rest, err := l.one(c, q)
			if err != nil {
				return err
			}
			want := llm.Completion{
				TokenIDs: full.TokenIDs[cut:], Text: rest.Text, FinishReason: full.FinishReason,
				StopReason: full.StopReason,
			}
			if len(full.Logprobs) > 0 {
				want.Logprobs = full.Logprobs[cut:]
			}
			if d := c.s.differ(want, rest); d != "" {
				return fmt.Errorf("the first %d tokens of an answer as part of the prompt: %s\n%s\n  got  %s\n  want %s",
					cut, d, requests([]llm.Request{q}), answer(rest), answer(want))
			}
			compared++
		}
	}
	c.notef("%d cuts", compared)
	return nil
}

func underPressure(c *check) error {
	l, err := c.own()
	if err != nil {
		return err
	}
	reqs := c.long(8, 64)
	for i := range reqs {
		if i%2 == 1 && c.s.missing(l.engine(), []Capability{Sampling, Seeds}) == nil {
			reqs[i].Sampling.Temperature, reqs[i].Sampling.Seed = 1, new(int64(i))
		}
	}
	want, err := l.each(c, reqs...)
	if err != nil {
		return err
	}
	if err := l.close(); err != nil {
		return err
	}
	tight, err := c.start(c.s.opts.tight)
	if err != nil {
		return err
	}
	return c.holdsAgainst(tight, reqs, want, "with little cache memory")
}

// holdsAgainst sends requests together and compares with known answers.
func (c *check) holdsAgainst(l *live, reqs []llm.Request, want []llm.Output, when string) error {
	got, err := l.generate(c, reqs...)
	if err != nil {
		return fmt.Errorf("%s: %w", when, err)
	}
	if d := c.s.difference(reqs, want, got); d != "" {
		return fmt.Errorf("%s: %s", when, d)
	}
	return nil
}

func afterAborts(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	reqs := c.greedy(4, 48)
	want, err := l.each(c, reqs...)
	if err != nil {
		return err
	}
	neighbours, cancel := cancellable(c)
	defer cancel()
	doomed := l.background(neighbours, c.long(4, longAnswer)...)
	if err := l.running(c, 1, doomed); err != nil {
		return err
	}
	calls := l.background(c, reqs...)
	if err := l.running(c, 5, append(calls, doomed...)); err != nil {
		return err
	}
	cancel()
	if err := wait(c, append(calls, doomed...)); err != nil {
		return err
	}
	for i, x := range calls {
		if x.err != nil {
			return fmt.Errorf("a request failed when its neighbours were aborted: %w", x.err)
		}
		if d := c.s.difference(reqs[i:i+1], want[i:i+1], x.outs); d != "" {
			return errors.New("when its neighbours were aborted: " + d)
		}
	}
	return nil
}

func afterSleep(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	e, _ := l.engine().(harness.Sleeper)
	reqs := c.greedy(6, 24)
	want, err := l.each(c, reqs...)
	if err != nil {
		return err
	}
	for _, level := range []int{1, 2, 1} {
		if err := e.Sleep(c, level); err != nil {
			return fmt.Errorf("sleep at level %d: %w", level, err)
		}
		if err := e.Wake(c); err != nil {
			return fmt.Errorf("wake from level %d: %w", level, err)
		}
		got, err := l.each(c, reqs...)
		if err != nil {
			return err
		}
		if d := c.s.difference(reqs, want, got); d != "" {
			return fmt.Errorf("after sleep at level %d: %s", level, d)
		}
	}
	return nil
}

func afterRestart(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	reqs := c.greedy(6, 24)
	want, err := l.each(c, reqs...)
	if err != nil {
		return err
	}
	next, err := c.own()
	if err != nil {
		return err
	}
	got, err := next.each(c, reqs...)
	if err != nil {
		return err
	}
	if d := c.s.difference(reqs, want, got); d != "" {
		return errors.New("another start of the same engine: " + d)
	}
	return nil
}

func streamedAsWhole(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	return c.holds(c.greedy(6, 40), func(reqs []llm.Request) (string, error) {
		want, err := l.each(c, reqs...)
		if err != nil {
			return "", err
		}
		for i, q := range reqs {
			cs, err := l.stream(c, q, whole)
			if err != nil {
				return "", err
			}
			if len(cs[0].TokenIDs) == 0 {
				want[i].Completions[0].TokenIDs = nil // a stream of texts
			}
			if d := c.s.difference(reqs[i:i+1], want[i:i+1],
				[]llm.Output{{Completions: cs, PromptLogprobs: want[i].PromptLogprobs}}); d != "" {
				return "streamed: " + d, nil
			}
		}
		return "", nil
	})
}

func seedsRepeat(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	reqs := c.sampled(6, 24)
	for i := range reqs {
		reqs[i] = c.s.prompt(0, reqs[i].Sampling)
	}
	err = c.holds(reqs, func(reqs []llm.Request) (string, error) {
		want, err := l.each(c, reqs...)
		if err != nil {
			return "", err
		}
		got, err := l.each(c, reqs...)
		if err != nil {
			return "", err
		}
		for _, o := range got {
			seen[answer(o.Completions[0])] = true
		}
		return c.s.difference(reqs, want, got), nil
	})
	if err == nil && len(seen) < 2 {
		return fmt.Errorf("%d seeds, and every answer is the same: the seed or the temperature has no effect\n%s",
			len(reqs), requests(reqs))
	}
	c.notef("%d answers of %d seeds", len(seen), len(reqs))
	return err
}

func seedsAlone(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	return c.holds(c.sampled(8, 24), func(reqs []llm.Request) (string, error) {
		want, err := l.each(c, reqs...)
		if err != nil {
			return "", err
		}
		mates := append(slices.Clone(reqs), c.sampled(3, 8)...)
		for i := range 3 {
			mates[len(reqs)+i].Sampling.Seed = nil
		}
		for _, order := range []string{"together", "in reverse order"} {
			got, err := l.generate(c, mates...)
			if err != nil {
				return "", err
			}
			if order == "in reverse order" {
				slices.Reverse(got)
			}
			if d := c.s.difference(reqs, want, got); d != "" {
				return order + ": " + d, nil
			}
			slices.Reverse(mates)
		}
		return "", nil
	})
}

func severalAsSingle(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	q := c.sampled(1, 16)[0]
	q.Sampling.N = 4
	outs, err := l.generate(c, q)
	if err != nil {
		return err
	}
	for i, got := range outs[0].Completions {
		if got.Index != i {
			return fmt.Errorf("completion %d has the index %d\n%s", i, got.Index, requests([]llm.Request{q}))
		}
		single := q
		single.Sampling.N, single.Sampling.Seed = 0, new(*q.Sampling.Seed+int64(i))
		want, err := l.one(c, single)
		if err != nil {
			return err
		}
		if d := c.s.differ(want, got); d != "" {
			return fmt.Errorf("completion %d of 4: %s\n%s\n  got  %s\n  want %s, the answer to the same request with N 1 and seed %d",
				i, d, requests([]llm.Request{q}), answer(got), answer(want), *single.Sampling.Seed)
		}
	}
	return nil
}
