package conformance

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/llm"
)

// parameters are the properties of what changes the likelihood of single tokens.
var parameters = []property{
	{
		name:  "parameters/stay with their request",
		why:   "requests with different parameters share a batch: none may touch its neighbour's row",
		needs: []Capability{Sampling, Seeds},
		check: stayWithTheirRequest,
	},
	{
		name:  "parameters/logit bias",
		why:   "a bias is added to one token's logit, at most 100 either way, and to no other",
		needs: []Capability{TokenIDs, FullLogprobs, LogitBias},
		check: biased,
	},
	{
		name:  "parameters/penalties",
		why:   "presence counts once and frequency every time, for tokens of the answer and not of the prompt",
		needs: []Capability{TokenIDs, FullLogprobs, AllowedTokens, Penalties},
		check: penalized,
	},
	{
		name:  "parameters/repetition penalty",
		why:   "it divides positive logits and multiplies negative ones, for tokens of the prompt, too",
		needs: []Capability{TokenIDs, TokenInput, LogitBias, AllowedTokens, Repetition},
		check: repetition,
	},
	{
		name:  "parameters/no-repeat n-grams",
		why:   "no n tokens in a row may come twice",
		needs: []Capability{TokenIDs, NGrams},
		check: noRepeats,
	},
	{
		name:  "parameters/allowed tokens",
		why:   "a classifier allows a few tokens and takes the likeliest: another one is a wrong class",
		needs: []Capability{TokenIDs, FullLogprobs, AllowedTokens},
		check: allowedOnly,
	},
	{
		name:  "parameters/bad words",
		why:   "a banned word must not come out, and what comes before it must not change",
		needs: []Capability{TokenIDs, Text, BadWords},
		check: noBadWords,
	},
	{
		name:  "parameters/a row without tokens fails alone",
		why:   "parameters can rule out every token: that request has an error, and its neighbours have their answers",
		needs: []Capability{TokenIDs, AllowedTokens, StopIDs, MinTokens},
		check: emptyRow,
	},
}

// stayWithTheirRequest compares a batch of all parameters with each request alone.
func stayWithTheirRequest(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	var reqs []llm.Request
	for i, p := range []llm.SamplingParams{
		{},
		{Temperature: 1, Seed: new(int64(1))},
		{Temperature: 1.5, TopK: 3, Seed: new(int64(2))},
		{Temperature: 1.5, TopP: 0.6, Seed: new(int64(3))},
		{Temperature: 2, MinP: 0.1, Seed: new(int64(4))},
		{PresencePenalty: 2},
		{FrequencyPenalty: 2},
		{RepetitionPenalty: 1.5},
		{LogitBias: map[int32]float64{5: 50}},
		{AllowedTokenIDs: []int32{7, 8, 9}},
		{MinTokens: 12},
		{IgnoreEOS: true},
		{NoRepeatNGramSize: 2},
		{},
	} {
		p.MaxTokens = 16
		q := c.s.prompt(i/2, p)
		if _, err := l.one(c, q); lackOf(err, nil) != nil {
			continue
		} else if err != nil {
			return err
		}
		reqs = append(reqs, q)
	}
	return c.holds(reqs, func(reqs []llm.Request) (string, error) {
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

// best is the token with the highest score, and those so close to it that rounding may decide.
func best(d distribution, score func(m mass) float64) (top []int32) {
	most := math.Inf(-1)
	for _, m := range d {
		most = max(most, score(m))
	}
	for _, m := range d {
		if score(m) >= most-1e-3 {
			top = append(top, m.id)
		}
	}
	return top
}

func biased(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	q, d, err := c.whole(l)
	if err != nil {
		return err
	}
	for _, bias := range []map[int32]float64{
		{d[0].id: -100},
		{d[0].id: -100, d[1].id: -100, d[3].id: -100},
		{d[4].id: 3, d[5].id: 2},
		{d[9].id: 100},
		{d[2].id: 100, d[7].id: 100},
		{d[2].id: 100, d[7].id: 1000},
	} {
		q.Sampling = llm.SamplingParams{MaxTokens: 1, LogitBias: bias}
		x, err := l.one(c, q)
		if err != nil {
			return err
		}
		want := best(d, func(m mass) float64 { return math.Log(m.p) + min(bias[m.id], 100) })
		if len(x.TokenIDs) != 1 || !slices.Contains(want, x.TokenIDs[0]) {
			return fmt.Errorf("chose %v, want token id %d by the engine's own log-probabilities\n%s", x.TokenIDs,
				want[0], requests([]llm.Request{q}))
		}
	}
	return nil
}

// penalized follows greedy answers of four tokens, which must come again and again, and checks
// every choice against the log-probabilities before the penalties.
func penalized(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	q, first, err := c.whole(l)
	if err != nil {
		return err
	}
	ids, err := c.tokens(l, q)
	if err != nil {
		return err
	}
	steps, changed := 0, 0
	for _, p := range []llm.SamplingParams{
		{PresencePenalty: 2}, {FrequencyPenalty: 1.5}, {FrequencyPenalty: -2}, {
			PresencePenalty:  -2,
			FrequencyPenalty: 0.5,
		},
	} {
		p.MaxTokens, p.Logprobs = 24, new(-1)
		for _, m := range first[:4] {
			p.AllowedTokenIDs = append(p.AllowedTokenIDs, m.id)
		}
		q.Sampling = p
		if ids != nil { // what the prompt has must not count
			q.Prompt, q.PromptTokenIDs = "", slices.Concat(ids, p.AllowedTokenIDs[1:3])
		}
		x, err := l.one(c, q)
		if err != nil {
			return err
		}
		counts := map[int32]int{}
		for at, id := range x.TokenIDs {
			d := slices.DeleteFunc(distributionOf(x.Logprobs[at]), func(m mass) bool {
				return !slices.Contains(p.AllowedTokenIDs, m.id)
			})
			want := best(d, func(m mass) float64 {
				s := math.Log(m.p) - p.FrequencyPenalty*float64(counts[m.id])
				if counts[m.id] > 0 {
					s -= p.PresencePenalty
				}
				return s
			})
			if !slices.Contains(want, id) {
				return fmt.Errorf("token %d is %d, want %d by the engine's own log-probabilities and the tokens before it, %v\n%s",
					at, id, want[0], x.TokenIDs[:at], requests([]llm.Request{q}))
			}
			if steps++; id != d[0].id {
				changed++
			}
			counts[id]++
		}
	}
	c.notef("%d choices, of which penalties changed %d", steps, changed)
	return nil
}

// repetition weighs two tokens whose logits a bias makes known: a is in the prompt, b is not.
func repetition(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	const a, b = 11, 12
	for _, x := range []struct {
		biasA, biasB float64
		want         []int32
	}{
		{100, 60, []int32{b, a, a}},   // a: about 100/10; b: about 60, then 60/10
		{-10, -100, []int32{b, a, a}}, // a: about −10·100; b: about −100, then −100·100
	} {
		penalty := 10.0
		if x.biasA < 0 {
			x.biasA, penalty = -40, 100
		}
		q := llm.Request{PromptTokenIDs: []int32{a, a + 2, a}, Sampling: llm.SamplingParams{
			MaxTokens: 3, IgnoreEOS: true, RepetitionPenalty: penalty, AllowedTokenIDs: []int32{
				a,
				b,
			}, LogitBias: map[int32]float64{a: x.biasA, b: x.biasB},
		}}
		got, err := l.one(c, q)
		if err != nil {
			return err
		}
		if !slices.Equal(x.want, got.TokenIDs) {
			return fmt.Errorf("chose %v, want %v: the prompt has token id %d, and not %d\n%s", got.TokenIDs, x.want, a,
				b, requests([]llm.Request{q}))
		}
	}
	return nil
}

func noRepeats(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	for _, n := range []int{1, 2, 3} {
		q := c.long(7, 96)[6]
		q.Sampling.NoRepeatNGramSize = n
		outs, err := l.generate(c, q)
		if err != nil {
			return err
		}
		all := slices.Concat(outs[0].PromptTokenIDs, outs[0].Completions[0].TokenIDs)
		prompt := len(outs[0].PromptTokenIDs)
		for end := max(n, prompt+1); end <= len(all); end++ {
			for from := 0; from+n < end; from++ {
				if slices.Equal(all[from:from+n], all[end-n:end]) {
					return fmt.Errorf("the tokens %v came twice, the second time as token %d of the answer\n%s",
						all[from:from+n], end-1-prompt, requests([]llm.Request{q}))
				}
			}
		}
	}
	return nil
}

func allowedOnly(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	q, d, err := c.whole(l)
	if err != nil {
		return err
	}
	for _, from := range []int{3, 10, len(d) - 4} {
		allowed := []int32{d[from].id, d[from+1].id, d[from+2].id}
		for _, t := range []float64{0, 2} {
			q.Sampling = llm.SamplingParams{MaxTokens: 16, Temperature: t, AllowedTokenIDs: allowed}
			x, err := l.one(c, q)
			if err != nil {
				return err
			}
			for at, id := range x.TokenIDs {
				if !slices.Contains(allowed, id) {
					return fmt.Errorf("token %d is %d, which is not allowed\n%s", at, id, requests([]llm.Request{q}))
				}
			}
			want := best(d[from:from+3], func(m mass) float64 { return math.Log(m.p) })
			if t == 0 && !slices.Contains(want, x.TokenIDs[0]) {
				return fmt.Errorf("chose %d, want %d, the likeliest of those allowed\n%s", x.TokenIDs[0], want[0],
					requests([]llm.Request{q}))
			}
		}
	}
	return nil
}

// noBadWords bans a word of the plain answer: everything before it stays, and it does not come.
func noBadWords(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	tried := 0
	for i := range 4 {
		q := c.s.prompt(i, llm.SamplingParams{MaxTokens: 32})
		plain, err := l.one(c, q)
		if err != nil {
			return err
		}
		words := strings.Fields(plain.Text)
		if len(words) < 4 {
			continue
		}
		word := strings.Trim(words[len(words)/2], ".,;:!?\"'")
		at := strings.Index(plain.Text, word)
		if len(word) < 3 || at <= 0 {
			continue
		}
		tried++
		q.Sampling.BadWords = []string{word}
		got, err := l.one(c, q)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(strings.Fields(got.Text), func(w string) bool {
			return strings.Trim(w, ".,;:!?\"'") == word
		}) {
			return fmt.Errorf("the word %q came out\n%s\n  got  %s", word, requests([]llm.Request{q}), answer(got))
		}
		same := firstDifference(plain.TokenIDs, got.TokenIDs)
		if before := strings.TrimRight(plain.Text[:at], " "); !strings.HasPrefix(got.Text, before) && same == 0 {
			return fmt.Errorf("what comes before the banned word %q has changed\n%s\n  got  %s\n  want %q at its start",
				word, requests([]llm.Request{q}), answer(got), before)
		}
	}
	if tried == 0 {
		return lacks(BadWords, "no prompt has an answer with a word in its middle")
	}
	return nil
}

func emptyRow(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	reqs := c.greedy(2, 32)
	want, err := l.each(c, reqs...)
	if err != nil {
		return err
	}
	calls := l.background(c, reqs...)
	q := c.s.prompt(0, llm.SamplingParams{
		MaxTokens: 4, MinTokens: 2, AllowedTokenIDs: []int32{9},
		StopTokenIDs: []int32{9},
	})
	x, err := l.one(c, q)
	if err == nil {
		return fmt.Errorf("a request whose only token is ruled out was answered: %s\n%s", answer(x),
			requests([]llm.Request{q}))
	}
	if lackOf(err, nil) != nil {
		return err
	}
	if err := wait(c, calls); err != nil {
		return err
	}
	for i, x := range calls {
		if x.err != nil {
			return fmt.Errorf("a neighbour of a request whose only token is ruled out failed: %w", x.err)
		}
		if d := c.s.difference(reqs[i:i+1], want[i:i+1], x.outs); d != "" {
			return errors.New("beside a request whose only token is ruled out: " + d)
		}
	}
	return c.idleSoon(l)
}
