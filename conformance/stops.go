package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/enginetest/enginetest/llm"
)

// stops are the properties of how answers end.
var stops = []property{
	{
		name:  "stops/max tokens",
		why:   "callers pay for tokens and size buffers by it: one too many is one too many",
		needs: []Capability{TokenIDs},
		check: maxTokens,
	},
	{
		name:  "stops/end of sequence",
		why:   "the model's own end must end the answer, and ignoring it must not",
		needs: []Capability{TokenIDs, EndOfSequence},
		check: endOfSequence,
	},
	{
		name:  "stops/min tokens",
		why:   "until then neither the end nor a stop id may come, and the answer before them stays",
		needs: []Capability{TokenIDs, MinTokens, EndOfSequence},
		check: minTokens,
	},
	{
		name:  "stops/strings",
		why:   "a stop string ends the text before it, wherever the borders of tokens are",
		needs: []Capability{Text, StopStrings},
		check: stopStrings,
	},
	{
		name:  "stops/strings in a stream",
		why:   "what a stop string will take away must be held back: once sent, it is sent",
		needs: []Capability{Text, Streaming, StopStrings},
		check: stopStreams,
	},
	{
		name:  "stops/ids",
		why:   "the first listed id ends the answer, is its last token, and is named",
		needs: []Capability{TokenIDs, StopIDs},
		check: stopIDs,
	},
}

func maxTokens(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	plain, err := l.one(c, c.long(1, 40)[0])
	if err != nil {
		return err
	}
	for _, n := range []int{1, 2, 15, 16, 17, 33} {
		if n > len(plain.TokenIDs) {
			break
		}
		q := c.long(1, n)[0]
		x, err := l.one(c, q)
		if err != nil {
			return err
		}
		if len(x.TokenIDs) != n || x.FinishReason != llm.FinishLength || x.StopReason != "" {
			return fmt.Errorf("%d tokens, want %d with the finish reason %q\n%s\n  got  %s", len(x.TokenIDs), n,
				llm.FinishLength, requests([]llm.Request{q}), answer(x))
		}
		if !slices.Equal(plain.TokenIDs[:n], x.TokenIDs) {
			return fmt.Errorf("fewer tokens are other tokens\n%s\n  got  %s", requests([]llm.Request{q}), answer(x))
		}
	}
	return nil
}

// ending finds a prompt whose answer the model ends by itself.
func (c *check) ending(l *live) (llm.Request, llm.Completion, error) {
	for i := range max(len(c.s.opts.prompts), len(c.s.opts.tokens)) {
		q := c.s.prompt(i, llm.SamplingParams{MaxTokens: 64})
		x, err := l.one(c, q)
		if err != nil {
			return q, x, err
		}
		if x.FinishReason == llm.FinishStop && len(x.TokenIDs) > 1 && len(x.TokenIDs) < 60 {
			return q, x, nil
		}
	}
	return llm.Request{}, llm.Completion{}, lacks(EndOfSequence,
		"no prompt has an answer of 2 to 60 tokens that ends by itself: option Prompts can have one")
}

func endOfSequence(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	q, x, err := c.ending(l)
	if err != nil {
		return err
	}
	if x.StopReason != "" {
		return fmt.Errorf("the end of sequence has the stop reason %q, want none\n%s", x.StopReason,
			requests([]llm.Request{q}))
	}
	n := len(x.TokenIDs)
	q.Sampling.IgnoreEOS, q.Sampling.MaxTokens = true, n+7
	on, err := l.one(c, q)
	if err != nil {
		return err
	}
	banned := len(on.TokenIDs) >= n && on.TokenIDs[n-1] != x.TokenIDs[n-1] // some engines draw another token there
	same := n
	if banned {
		same = n - 1
		c.notef("the end of sequence is not drawn with IgnoreEOS")
	}
	if len(on.TokenIDs) != n+7 || on.FinishReason != llm.FinishLength || !slices.Equal(on.TokenIDs[:same], x.TokenIDs[:same]) ||
		banned && slices.Contains(on.TokenIDs, x.TokenIDs[n-1]) {
		return fmt.Errorf("IgnoreEOS: want %d tokens that begin with %v\n%s\n  got  %s", n+7, x.TokenIDs,
			requests([]llm.Request{q}), answer(on))
	}
	return nil
}

func minTokens(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	q, x, err := c.ending(l)
	if err != nil {
		return err
	}
	n, eos := len(x.TokenIDs), x.TokenIDs[len(x.TokenIDs)-1]
	q.Sampling.MinTokens = n - 1
	same, err := l.one(c, q)
	if err != nil {
		return err
	}
	if d := c.s.differ(x, same); d != "" {
		return fmt.Errorf("MinTokens %d, of an answer that has %d and its end: %s\n%s\n  got  %s\n  want %s", n-1, n-1,
			d, requests([]llm.Request{q}), answer(same), answer(x))
	}
	q.Sampling.MinTokens = n + 4
	later, err := l.one(c, q)
	if err != nil {
		return err
	}
	if len(later.TokenIDs) < n+4 || slices.Contains(later.TokenIDs[:n+4], eos) ||
		!slices.Equal(later.TokenIDs[:n-1], x.TokenIDs[:n-1]) {
		return fmt.Errorf("want %v, and then at least %d tokens without %d\n%s\n  got  %s", x.TokenIDs[:n-1], 5, eos,
			requests([]llm.Request{q}), answer(later))
	}
	return nil
}

// stopCase is a stop string and what it must leave of a text.
type stopCase struct {
	stop []string
	by   string
	at   int
}

// stopCases cuts stop strings of different lengths out of a text, across the borders of its tokens.
func stopCases(text string) (out []stopCase) {
	add := func(stops ...string) {
		x := stopCase{stop: stops, at: -1}
		end := len(text) + 1
		for _, s := range stops {
			// The stop that is complete first wins, then the one that begins first.
			if i := strings.Index(text, s); i >= 0 && (i+len(s) < end || i+len(s) == end && i < x.at) {
				x.by, x.at, end = s, i, i+len(s)
			}
		}
		out = append(out, x)
	}
	runes := []rune(text)
	for i, n := range []int{1, 2, 3, 5, 8, 13} {
		if at := len(runes) * (i + 2) / 10; at+n <= len(runes) {
			add(string(runes[at : at+n]))
		}
	}
	if n := len(runes); n >= 12 {
		add("\x01never", string(runes[n/2:n/2+3]))
		add(string(runes[n*2/3:n*2/3+2]), string(runes[n/3:n/3+2]))
	}
	return out
}

func (c *check) stopping(l *live, each func(q llm.Request, plain llm.Completion, x stopCase) error) error {
	for i := range 3 {
		q := c.s.prompt(i, llm.SamplingParams{MaxTokens: 24})
		plain, err := l.one(c, q)
		if err != nil {
			return err
		}
		if plain.Text == "" {
			return lacks(Text, "an answer has no text")
		}
		for _, x := range stopCases(plain.Text) {
			q.Sampling.Stop = x.stop
			if err := each(q, plain, x); err != nil {
				return err
			}
		}
	}
	return nil
}

// named reports whether an answer says what stopped it. An engine that never does passes, unless it
// claims to.
func (c *check) named(x llm.Completion, by string) bool {
	if x.StopReason == "" && !slices.Contains(c.s.opts.claims, StopReasons) {
		c.notef("answers don't say which stop string ended them")
		return true
	}
	return x.StopReason == by
}

func stopStrings(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	return c.stopping(l, func(q llm.Request, plain llm.Completion, x stopCase) error {
		for _, include := range []bool{false, true} {
			q.Sampling.IncludeStopInOutput = include
			got, err := l.one(c, q)
			if include && lackOf(err, nil) != nil && !slices.Contains(c.s.opts.claims, StopStrings) {
				c.notef("a stop string cannot be part of the text")
				continue
			}
			if err != nil {
				return err
			}
			want := plain.Text[:x.at]
			if include {
				want += x.by
			}
			if got.Text != want || got.FinishReason != llm.FinishStop || !c.named(got, x.by) {
				return fmt.Errorf("want %q, stopped by %q\n%s\n  got  %s\n  without stop strings %s", want, x.by,
					requests([]llm.Request{q}), answer(got), answer(plain))
			}
			if n := len(got.TokenIDs); n > len(plain.TokenIDs) || !slices.Equal(got.TokenIDs, plain.TokenIDs[:n]) {
				return fmt.Errorf("the tokens before a stop string are other tokens\n%s\n  got  %s\n  without stop strings %s", requests([]llm.Request{q}), answer(got), answer(plain))
			}
		}
		return nil
	})
}

func stopStreams(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	return c.stopping(l, func(q llm.Request, plain llm.Completion, x stopCase) error {
		want, sent := plain.Text[:x.at], ""
		cs, err := l.stream(c, q, func(d llm.Delta) bool { sent += d.Text; return !strings.HasPrefix(want, sent) })
		if err != nil {
			return err
		}
		if got := cs[0]; got.Text != want || got.FinishReason != llm.FinishStop || !c.named(got, x.by) {
			return fmt.Errorf("want %q, stopped by %q\n%s\n  got  %s, streamed", want, x.by, requests([]llm.Request{q}),
				answer(got))
		}
		return nil
	})
}

func stopIDs(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	for i := range 3 {
		q := c.s.prompt(i, llm.SamplingParams{MaxTokens: 24})
		plain, err := l.one(c, q)
		if err != nil {
			return err
		}
		if len(plain.TokenIDs) == 0 {
			return lacks(TokenIDs, "an answer has none")
		}
		for _, at := range []int{0, len(plain.TokenIDs) / 3, len(plain.TokenIDs) / 2} {
			id := plain.TokenIDs[at]
			first := slices.Index(plain.TokenIDs, id)
			if first == len(plain.TokenIDs)-1 && plain.FinishReason == llm.FinishStop {
				continue // the end of sequence itself
			}
			q.Sampling.StopTokenIDs = []int32{id}
			got, err := l.one(c, q)
			if err != nil {
				return err
			}
			if !slices.Equal(got.TokenIDs, plain.TokenIDs[:first+1]) || got.FinishReason != llm.FinishStop ||
				got.StopReason != strconv.Itoa(int(id)) {
				return fmt.Errorf("want %v, stopped by %d\n%s\n  got  %s", plain.TokenIDs[:first+1], id,
					requests([]llm.Request{q}), answer(got))
			}
			want := ""
			if first > 0 {
				before, err := l.one(c, c.s.prompt(i, llm.SamplingParams{MaxTokens: first}))
				if err != nil {
					return err
				}
				want = before.Text
			}
			if got.Text != want {
				return fmt.Errorf("want the text %q, without the token that stopped it\n%s\n  got  %s", want,
					requests([]llm.Request{q}), answer(got))
			}
		}
	}
	return nil
}
