package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/llm"
)

// limits is what sampling parameters are checked against.
type limits struct {
	vocab int
	eos   []int32
	tok   *tokenizer.Tokenizer // nil: none

	maxLen int // of a sequence; no word that is longer can be in one
}

// rules are a request's parameters that the engine itself follows; the sampler has the rest.
type rules struct {
	n           int
	maxTokens   int
	minTokens   int
	eos         []int32 // end the output, unless ignored
	stopIDs     []int32
	stop        []string
	includeStop bool
	skipSpecial bool
	logprobs    int // -1: none
	prompt      int // prompt logprobs; -1: none
}

const (
	greedyBelow   = 1e-5 // vLLM's _SAMPLING_EPS
	leastTemp     = 0.01 // vLLM's _MAX_TEMP: lower temperatures overflow
	maxLogitBias  = 100
	defaultTokens = 16
)

// resolve checks the parameters and turns them into what the sampler and the engine use.
func resolveParams(ctx context.Context, p SamplingParams, l limits) (sample.Params, rules, error) {
	if err := p.Check(); err != nil {
		return sample.Params{}, rules{}, err
	}
	r, err := rulesOf(&p, l)
	if err != nil {
		return sample.Params{}, rules{}, err
	}
	if err := checkIDs(&p, l.vocab); err != nil {
		return sample.Params{}, rules{}, err
	}
	s := sample.Params{
		Temperature: p.Temperature, TopK: max(p.TopK, 0), TopP: or(p.TopP, 1), MinP: p.MinP,
		TypicalP: or(p.TypicalP, 1), EpsilonCutoff: p.EpsilonCutoff,
		RepetitionPenalty: or(p.RepetitionPenalty, 1), PresencePenalty: p.PresencePenalty,
		FrequencyPenalty: p.FrequencyPenalty,
		NoRepeatNGram:    p.NoRepeatNGramSize, Allowed: append([]int32(nil), p.AllowedTokenIDs...),
		Processors: slices.Clone(p.LogitsProcessors),
		MinTokens:  r.minTokens, Logprobs: r.logprobs, LogprobsMode: sample.Mode{
			Processed: p.LogprobsMode == llm.ProcessedLogprobs || p.LogprobsMode == llm.ProcessedLogits,
			Logits:    p.LogprobsMode.Logits(),
		},
		StopIDs: append(append([]int32(nil), r.eos...), r.stopIDs...),
	}
	if p.Seed != nil {
		s.Seed = uint64(*p.Seed)
	}
	switch {
	case s.Temperature < greedyBelow:
		s.Temperature, s.TopK, s.TopP, s.MinP, s.TypicalP, s.EpsilonCutoff = 0, 0, 1, 0, 1, 0
	case s.Temperature < leastTemp:
		s.Temperature = leastTemp
	}
	if len(p.LogitBias) > 0 {
		s.LogitBias = make(map[int32]float32, len(p.LogitBias))
		for id, b := range p.LogitBias {
			s.LogitBias[id] = float32(min(max(b, -maxLogitBias), maxLogitBias))
		}
	}
	s.BadWords, err = badWords(ctx, p.BadWords, l)
	return s, r, err
}

func or(v, def float64) float64 {
	if v == 0 {
		return def
	}
	return v
}

// rules resolves what the engine follows itself.
func rulesOf(p *SamplingParams, l limits) (rules, error) {
	r := rules{
		n: max(p.N, 1), maxTokens: p.MaxTokens, minTokens: p.MinTokens,
		stopIDs: append([]int32(nil), p.StopTokenIDs...),
		stop:    append([]string(nil), p.Stop...), includeStop: p.IncludeStopInOutput,
		skipSpecial: p.SkipSpecialTokens == nil || *p.SkipSpecialTokens,
	}
	if r.maxTokens == 0 {
		r.maxTokens = defaultTokens
	}
	if !p.IgnoreEOS {
		r.eos = l.eos
	}
	if p.MinTokens < 0 || p.MinTokens > r.maxTokens {
		return r, paramError("MinTokens", p.MinTokens, fmt.Sprintf("in [0, MaxTokens (%d)]", r.maxTokens))
	}
	if r.n > 1 && p.Temperature < greedyBelow {
		return r, paramError("N", p.N, "1 with greedy sampling (Temperature 0): all outputs would be equal")
	}
	if len(p.Stop) > 0 && l.tok == nil {
		return r, fmt.Errorf("%w: Stop needs one; StopTokenIDs does not", llm.ErrNoTokenizer)
	}
	for i, s := range p.Stop {
		if s == "" {
			return r, paramError(fmt.Sprintf("Stop[%d]", i), `""`, "a text")
		}
		if !utf8.ValidString(s) { // it would cut the text inside a character
			return r, paramError(fmt.Sprintf("Stop[%d]", i), strconv.Quote(s), "UTF-8")
		}
	}
	var err error
	if r.logprobs, err = logprobs("Logprobs", p.Logprobs, l.vocab); err != nil {
		return r, err
	}
	r.prompt, err = logprobs("PromptLogprobs", p.PromptLogprobs, l.vocab)
	return r, err
}

// logprobs resolves a number of log-probabilities: -1 none.
func logprobs(field string, k *int, vocab int) (int, error) {
	switch {
	case k == nil:
		return -1, nil
	case *k == -1:
		return vocab, nil
	case *k < 0 || *k > vocab:
		return 0, paramError(field, *k, fmt.Sprintf("in [0, %d], or -1 for the whole vocabulary", vocab))
	}
	return *k, nil
}

func checkIDs(p *SamplingParams, vocab int) error {
	for _, list := range []struct {
		field string
		ids   []int32
	}{{"StopTokenIDs", p.StopTokenIDs}, {"AllowedTokenIDs", p.AllowedTokenIDs}} {
		if len(list.ids) > vocab { // each token costs a look at all of them
			return paramError(list.field, fmt.Sprintf("a list of %d", len(list.ids)),
				fmt.Sprintf("at most as long as the vocabulary (%d)", vocab))
		}
		for i, id := range list.ids {
			if id < 0 || int(id) >= vocab {
				return checkID(fmt.Sprintf("%s[%d]", list.field, i), id, vocab)
			}
		}
	}
	if p.AllowedTokenIDs != nil && len(p.AllowedTokenIDs) == 0 {
		return paramError("AllowedTokenIDs", "empty", "left out, or at least one id")
	}
	for id := range p.LogitBias {
		if err := checkID("LogitBias' token id", id, vocab); err != nil {
			return err
		}
	}
	return nil
}

func checkID(field string, id int32, vocab int) error {
	if id < 0 || int(id) >= vocab {
		return paramError(field, id, fmt.Sprintf("a token id in [0, %d)", vocab))
	}
	return nil
}

func (l *limits) badWordError(ctx context.Context, i int, err error) error {
	if long, ok := errors.AsType[*tokenizer.TooLongError](err); ok {
		return paramError(fmt.Sprintf("BadWords[%d]", i), fmt.Sprintf("a text of at least %d tokens", long.AtLeast),
			fmt.Sprintf("at most MaxModelLen (%d) tokens", l.maxLen))
	}
	return fmt.Errorf("engine: not started: %w", ended(ctx))
}

// badWords turns words into token sequences, each as it is at the start of a text and as it is
// after a space. vLLM leaves the second out when its length differs from the first's, and then a
// word of two tokens comes out freely after a space.
func badWords(ctx context.Context, words []string, l limits) ([][]int32, error) {
	if len(words) == 0 {
		return nil, nil
	}
	if l.tok == nil {
		return nil, fmt.Errorf("%w: BadWords needs one", llm.ErrNoTokenizer)
	}
	var out [][]int32
	for i, w := range words {
		w = strings.TrimLeft(w, " ")
		if w == "" {
			return nil, paramError(fmt.Sprintf("BadWords[%d]", i), fmt.Sprintf("%q", words[i]),
				"a text that is not blank")
		}
		plain, err := l.tok.EncodeAtMost(ctx, w, false, l.maxLen)
		if err != nil {
			return nil, l.badWordError(ctx, i, err)
		}
		spaced, err := l.tok.EncodeAtMost(ctx, " "+w, false, l.maxLen)
		if err != nil {
			return nil, l.badWordError(ctx, i, err)
		}
		if len(plain) > 0 {
			out = append(out, plain)
		}
		if len(spaced) > 0 && !slices.Equal(spaced, plain) {
			out = append(out, spaced)
		}
	}
	return out, nil
}
