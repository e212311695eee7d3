package conformance

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/enginetest/enginetest/llm"
)

// refusals are the properties of requests that no engine can answer.
var refusals = []property{
	{
		name:  "refusals/parameters out of range",
		why:   "a parameter that is taken silently, or read as another, changes answers without a trace; the ranges are vLLM's",
		needs: []Capability{RangeChecks},
		check: outOfRange,
	},
	{
		name:  "refusals/prompts that don't fit",
		why:   "an empty or an overlong prompt must be refused at once, not cut, and not wait for room that never comes",
		check: badPrompts,
	},
}

// wrong is a parameter out of its range.
type wrong struct {
	field string
	set   llm.SamplingParams
	needs Capability // "": of every engine
}

var outOfRanges = []wrong{
	{field: "MaxTokens", set: llm.SamplingParams{MaxTokens: -1}},
	{field: "MinTokens", set: llm.SamplingParams{MinTokens: -1}, needs: MinTokens},
	{field: "MinTokens", set: llm.SamplingParams{MaxTokens: 4, MinTokens: 5}, needs: MinTokens},
	{field: "N", set: llm.SamplingParams{N: -1}, needs: Several},
	{field: "N", set: llm.SamplingParams{N: 16385, Temperature: 1}, needs: Several},
	{field: "Temperature", set: llm.SamplingParams{Temperature: -0.1}},
	{field: "Temperature", set: llm.SamplingParams{Temperature: 2.1}},
	{field: "Temperature", set: llm.SamplingParams{Temperature: math.NaN()}},
	{field: "Temperature", set: llm.SamplingParams{Temperature: math.Inf(1)}},
	{field: "TopK", set: llm.SamplingParams{Temperature: 1, TopK: -2}, needs: TopK},
	{field: "TopP", set: llm.SamplingParams{Temperature: 1, TopP: -0.1}, needs: TopP},
	{field: "TopP", set: llm.SamplingParams{Temperature: 1, TopP: 1.1}, needs: TopP},
	{field: "TopP", set: llm.SamplingParams{Temperature: 1, TopP: math.NaN()}, needs: TopP},
	{field: "MinP", set: llm.SamplingParams{Temperature: 1, MinP: -0.1}, needs: MinP},
	{field: "MinP", set: llm.SamplingParams{Temperature: 1, MinP: 1.1}, needs: MinP},
	{field: "PresencePenalty", set: llm.SamplingParams{PresencePenalty: -2.1}, needs: Penalties},
	{field: "PresencePenalty", set: llm.SamplingParams{PresencePenalty: 2.1}, needs: Penalties},
	{field: "FrequencyPenalty", set: llm.SamplingParams{FrequencyPenalty: -2.1}, needs: Penalties},
	{field: "FrequencyPenalty", set: llm.SamplingParams{FrequencyPenalty: 2.1}, needs: Penalties},
	{field: "RepetitionPenalty", set: llm.SamplingParams{RepetitionPenalty: -1}, needs: Repetition},
	{field: "RepetitionPenalty", set: llm.SamplingParams{RepetitionPenalty: math.Inf(1)}, needs: Repetition},
	{field: "Logprobs", set: llm.SamplingParams{Logprobs: new(-2)}, needs: Logprobs},
	{field: "PromptLogprobs", set: llm.SamplingParams{PromptLogprobs: new(-2)}, needs: PromptScores},
	{field: "LogitBias", set: llm.SamplingParams{LogitBias: map[int32]float64{-1: 1}}, needs: LogitBias},
	{field: "LogitBias", set: llm.SamplingParams{LogitBias: map[int32]float64{10_000_000: 1}}, needs: LogitBias},
	{field: "LogitBias", set: llm.SamplingParams{LogitBias: map[int32]float64{1: math.NaN()}}, needs: LogitBias},
	{field: "AllowedTokenIDs", set: llm.SamplingParams{AllowedTokenIDs: []int32{}}, needs: AllowedTokens},
	{field: "AllowedTokenIDs", set: llm.SamplingParams{AllowedTokenIDs: []int32{-1}}, needs: AllowedTokens},
	{field: "AllowedTokenIDs", set: llm.SamplingParams{AllowedTokenIDs: []int32{10_000_000}}, needs: AllowedTokens},
	{field: "StopTokenIDs", set: llm.SamplingParams{StopTokenIDs: []int32{-1}}, needs: StopIDs},
	{field: "Stop", set: llm.SamplingParams{Stop: []string{""}}, needs: StopStrings},
	{field: "BadWords", set: llm.SamplingParams{BadWords: []string{""}}, needs: BadWords},
}

func outOfRange(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	refused := 0
	var errs []error
	for _, w := range outOfRanges {
		if w.needs != "" && c.s.missing(l.engine(), []Capability{w.needs}) != nil {
			continue
		}
		if w.set.MaxTokens == 0 {
			w.set.MaxTokens = 2
		}
		q := c.s.prompt(0, w.set)
		outs, err := l.refused(c, q)
		switch {
		case err == nil:
			errs = append(errs, fmt.Errorf("%s is out of range, and was answered: %s\n%s", w.field, answers(outs),
				requests([]llm.Request{q})))
		case lackOf(err, nil) != nil:
		case !names(err, w.field):
			errs = append(errs, fmt.Errorf("%s is out of range, and the error does not name it: %w\n%s", w.field, err,
				requests([]llm.Request{q})))
		default:
			refused++
		}
	}
	if refused == 0 && len(errs) == 0 {
		return lacks(RangeChecks, "every parameter is refused as unsupported")
	}
	c.notef("%d of %d values refused by name", refused, len(outOfRanges))
	return errors.Join(errs...)
}

// names reports whether an error is about a field: a llm.ParamError, or a text with the field's
// name as Go or as JSON has it.
func names(err error, field string) bool {
	if p, ok := errors.AsType[*llm.ParamError](err); ok {
		return strings.HasPrefix(p.Field, field)
	}
	var snake strings.Builder
	for i, r := range strings.NewReplacer("IDs", "Ids").Replace(field) {
		if unicode.IsUpper(r) && i > 0 {
			snake.WriteByte('_')
		}
		snake.WriteRune(unicode.ToLower(r))
	}
	text := err.Error()
	return strings.Contains(text, field) || strings.Contains(text, snake.String())
}

func badPrompts(c *check) error {
	l, err := c.engine()
	if err != nil {
		return err
	}
	long := strings.Repeat("too long for any cache of a test ", 40_000)
	reqs := map[string]llm.Request{"empty": {}, "too long": {Prompt: long}}
	if len(c.s.opts.tokens) > 0 {
		reqs = map[string]llm.Request{
			"empty":    {PromptTokenIDs: []int32{}},
			"too long": {PromptTokenIDs: make([]int32, 1<<20)},
		}
	} else if c.s.missing(l.engine(), []Capability{TokenInput}) == nil {
		reqs["of no known token"] = llm.Request{PromptTokenIDs: []int32{math.MaxInt32}}
		reqs["with a negative token"] = llm.Request{PromptTokenIDs: []int32{1, -5}}
	}
	for what, q := range reqs {
		q.Sampling.MaxTokens = 2
		if outs, err := l.refused(c, q); err == nil {
			if empty(outs) {
				c.notef("a prompt that is %s is aborted without an error", what)
				continue
			}
			return fmt.Errorf("a prompt that is %s was answered: %s", what, answers(outs))
		} else if c.Err() != nil {
			return fmt.Errorf("a prompt that is %s is not refused, and waits", what)
		}
	}
	return c.idleSoon(l)
}

// empty reports whether outputs say that nothing was answered: some servers load a model, or end a
// request at once, when the prompt is empty.
func empty(outs []llm.Output) bool {
	return !slices.ContainsFunc(outs, func(o llm.Output) bool {
		return slices.ContainsFunc(o.Completions, func(x llm.Completion) bool {
			return x.FinishReason != llm.FinishAbort || x.Text != "" || len(x.TokenIDs) > 0
		})
	})
}
