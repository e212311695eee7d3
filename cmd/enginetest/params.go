package main

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/enginetest/enginetest/engine"
	"github.com/spf13/pflag"
)

// request is one prompt with its sampling parameters, as a line of --batch has it and as the flags give it. A nil field was not given: an
// explicit zero is another thing than a default, and is checked against its range.
type request struct {
	Prompt    *string   `json:"prompt"`
	PromptIDs *tokenIDs `json:"prompt_ids"`

	MaxTokens         *int              `json:"max_tokens"`
	MinTokens         *int              `json:"min_tokens"`
	N                 *int              `json:"n"`
	Temperature       *float64          `json:"temperature"`
	TopK              *int              `json:"top_k"`
	TopP              *float64          `json:"top_p"`
	MinP              *float64          `json:"min_p"`
	TypicalP          *float64          `json:"typical_p"`
	EpsilonCutoff     *float64          `json:"epsilon_cutoff"`
	Seed              *int64            `json:"seed"`
	RepetitionPenalty *float64          `json:"repetition_penalty"`
	PresencePenalty   *float64          `json:"presence_penalty"`
	FrequencyPenalty  *float64          `json:"frequency_penalty"`
	NoRepeatNGramSize *int              `json:"no_repeat_ngram_size"`
	LogitBias         map[int32]float64 `json:"logit_bias"`
	AllowedTokenIDs   *tokenIDs         `json:"allowed_token_ids"`
	BadWords          []string          `json:"bad_words"`
	Stop              stopWords         `json:"stop"`
	StopTokenIDs      tokenIDs          `json:"stop_token_ids"`
	IncludeStop       *bool             `json:"include_stop_str_in_output"`
	IgnoreEOS         *bool             `json:"ignore_eos"`
	SkipSpecialTokens *bool             `json:"skip_special_tokens"`
	Logprobs          *int              `json:"logprobs"`
	PromptLogprobs    *int              `json:"prompt_logprobs"`
}

// flags makes a flag of every sampling parameter.
func (r *request) flags(f *pflag.FlagSet) {
	intVar(f, &r.MaxTokens, "max-tokens", "longest output, in tokens (default 16)")
	intVar(f, &r.MinTokens, "min-tokens", "mask EOS and stop ids until so many tokens are out")
	intVar(f, &r.N, "n", "outputs per prompt (default 1)")
	floatVar(f, &r.Temperature, "temperature", "0 is greedy (default 0)")
	intVar(f, &r.TopK, "top-k", "keep the k most likely tokens; 0 and -1 are off")
	floatVar(f, &r.TopP, "top-p", "keep the most likely tokens that add up to p, in (0, 1]")
	floatVar(f, &r.MinP, "min-p", "keep tokens at least so likely as p times the likeliest, in [0, 1]")
	floatVar(f, &r.TypicalP, "typical-p", "locally typical sampling, in (0, 1]")
	floatVar(f, &r.EpsilonCutoff, "epsilon-cutoff", "drop tokens less likely than this, in [0, 1)")
	ptrVar(f, &r.Seed, "seed", "int", "of this request's draws", func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) })
	floatVar(f, &r.RepetitionPenalty, "repetition-penalty", "over prompt and output, above 0; 1 is off")
	floatVar(f, &r.PresencePenalty, "presence-penalty", "over the output, -2 to 2")
	floatVar(f, &r.FrequencyPenalty, "frequency-penalty", "over the output, -2 to 2")
	intVar(f, &r.NoRepeatNGramSize, "no-repeat-ngram-size", "no n-gram of this size comes twice; 0 is off")
	f.Var(&biasFlag{&r.LogitBias}, "logit-bias", "added to logits: id=bias,id=bias")
	ptrVar(f, &r.AllowedTokenIDs, "allowed-token-ids", "ids", "no other token comes out: 1,2,3", parseIDs)
	f.StringArrayVar(&r.BadWords, "bad-words", nil, "a text that the output may not contain (repeat the flag for more)")
	f.StringArrayVar((*[]string)(&r.Stop), "stop", nil, "a text that ends the output (repeat the flag for more)")
	f.Func("stop-token-ids", "ids that end the output: 1,2,3", func(s string) (err error) { r.StopTokenIDs, err = parseIDs(s); return err })
	boolVar(f, &r.IncludeStop, "include-stop-str-in-output", "keep the stop text in the output")
	boolVar(f, &r.IgnoreEOS, "ignore-eos", "go on after the end-of-sequence token")
	boolVar(f, &r.SkipSpecialTokens, "skip-special-tokens", "leave special tokens out of the text (default true)")
	intVar(f, &r.Logprobs, "logprobs", "log-probabilities of the output: of the sampled token and the k most likely; -1 is the vocabulary")
	intVar(f, &r.PromptLogprobs, "prompt-logprobs", "the same for the prompt's tokens")
}

// fill takes what r was not given from the defaults.
func (r *request) fill(defaults request) {
	to, from := reflect.ValueOf(r).Elem(), reflect.ValueOf(defaults)
	for i := range to.NumField() {
		if to.Field(i).IsZero() {
			to.Field(i).Set(from.Field(i))
		}
	}
}

// engineRequest checks explicit values that engine.SamplingParams cannot tell from "not given", and converts.
func (r *request) engineRequest() (engine.Request, error) {
	out := engine.Request{Sampling: engine.SamplingParams{
		MinTokens: val(r.MinTokens), Temperature: val(r.Temperature), TopK: val(r.TopK), MinP: val(r.MinP), EpsilonCutoff: val(r.EpsilonCutoff),
		Seed: r.Seed, PresencePenalty: val(r.PresencePenalty), FrequencyPenalty: val(r.FrequencyPenalty), NoRepeatNGramSize: val(r.NoRepeatNGramSize),
		LogitBias: r.LogitBias, BadWords: r.BadWords, Stop: r.Stop, StopTokenIDs: r.StopTokenIDs, IncludeStopInOutput: val(r.IncludeStop),
		IgnoreEOS: val(r.IgnoreEOS), SkipSpecialTokens: r.SkipSpecialTokens, Logprobs: r.Logprobs, PromptLogprobs: r.PromptLogprobs,
		MaxTokens: val(r.MaxTokens), N: val(r.N), TopP: val(r.TopP), TypicalP: val(r.TypicalP), RepetitionPenalty: val(r.RepetitionPenalty),
	}}
	for _, zero := range []struct {
		field, bound string
		given        bool
	}{
		{"max_tokens", "at least 1", isZero(r.MaxTokens)},
		{"n", "at least 1", isZero(r.N)},
		{"top_p", "in (0, 1]", isZero(r.TopP)},
		{"typical_p", "in (0, 1]", isZero(r.TypicalP)},
		{"repetition_penalty", "above 0", isZero(r.RepetitionPenalty)},
	} {
		if zero.given {
			return out, &engine.ParamError{Field: zero.field, Value: 0, Bound: zero.bound}
		}
	}
	if r.AllowedTokenIDs != nil {
		out.Sampling.AllowedTokenIDs = *r.AllowedTokenIDs
	}
	switch {
	case r.Prompt != nil && r.PromptIDs != nil:
		return out, usagef("prompt and prompt_ids are both given; give one")
	case r.Prompt != nil:
		out.Prompt = *r.Prompt
	case r.PromptIDs != nil:
		out.PromptTokenIDs = *r.PromptIDs
	default:
		return out, usagef("no prompt: give prompt or prompt_ids")
	}
	return out, nil
}

func val[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func isZero[T int | float64](p *T) bool { return p != nil && *p == 0 }

// stopWords is one text or a list of them, as in OpenAI's API.
type stopWords []string

// UnmarshalJSON takes a string or a list of strings.
func (s *stopWords) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		*s = make(stopWords, 1)
		return strictUnmarshal(data, &(*s)[0])
	}
	return strictUnmarshal(data, (*[]string)(s))
}

// tokenIDs is a list of token ids; null among them is no id.
type tokenIDs []int32

// UnmarshalJSON refuses null, which encoding/json would read as token 0.
func (ids *tokenIDs) UnmarshalJSON(data []byte) error {
	var list []*int32
	if err := strictUnmarshal(data, &list); err != nil {
		return err
	}
	*ids = make(tokenIDs, len(list))
	for i, id := range list {
		if id == nil {
			return fmt.Errorf("token id %d is null", i)
		}
		(*ids)[i] = *id
	}
	return nil
}

// ptrValue is a flag that leaves a nil pointer when it is not given.
type ptrValue[T any] struct {
	p     **T
	kind  string
	parse func(string) (T, error)
}

func ptrVar[T any](f *pflag.FlagSet, p **T, name, kind, usage string, parse func(string) (T, error)) {
	f.Var(&ptrValue[T]{p, kind, parse}, name, usage)
}

func intVar(f *pflag.FlagSet, p **int, name, usage string) {
	ptrVar(f, p, name, "int", usage, strconv.Atoi)
}

func floatVar(f *pflag.FlagSet, p **float64, name, usage string) {
	ptrVar(f, p, name, "float", usage, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
}

func boolVar(f *pflag.FlagSet, p **bool, name, usage string) {
	ptrVar(f, p, name, "bool", usage, strconv.ParseBool)
	f.Lookup(name).NoOptDefVal = "true"
}

func (v *ptrValue[T]) Set(s string) error {
	x, err := v.parse(s)
	if err == nil {
		*v.p = &x
	}
	return err
}

func (v *ptrValue[T]) Type() string { return v.kind }

func (v *ptrValue[T]) String() string {
	if v.p == nil || *v.p == nil {
		return ""
	}
	return fmt.Sprint(**v.p)
}

// biasFlag reads id=bias pairs.
type biasFlag struct{ m *map[int32]float64 }

func (b *biasFlag) Set(s string) error {
	m := map[int32]float64{}
	for pair := range strings.SplitSeq(s, ",") {
		id, bias, ok := strings.Cut(pair, "=")
		n, err := strconv.ParseInt(strings.TrimSpace(id), 10, 32)
		f, err2 := strconv.ParseFloat(strings.TrimSpace(bias), 64)
		if !ok || err != nil || err2 != nil {
			return fmt.Errorf("%q is not id=bias", pair)
		}
		m[int32(n)] = f
	}
	*b.m = m
	return nil
}

func (b *biasFlag) Type() string { return "id=bias,…" }

func (b *biasFlag) String() string { return "" }

// parseIDs reads "1,2,3"; an empty string is no ids.
func parseIDs(s string) (tokenIDs, error) {
	ids := tokenIDs{}
	if strings.TrimSpace(s) == "" {
		return ids, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(part), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is not a token id", part)
		}
		ids = append(ids, int32(n))
	}
	return ids, nil
}
