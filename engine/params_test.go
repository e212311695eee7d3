package engine

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParamsOutOfRange(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	tok := gpt2(t)
	for _, tc := range []struct {
		field, bound string
		p            SamplingParams
	}{
		{"MaxTokens", "at least 1 (0 is 16)", SamplingParams{MaxTokens: -1}},
		{"MinTokens", "in [0, MaxTokens (16)]", SamplingParams{MinTokens: -1}},
		{"MinTokens", "in [0, MaxTokens (5)]", SamplingParams{MinTokens: 6, MaxTokens: 5}},
		{"N", "in [1, 16384] (0 is 1)", SamplingParams{N: -1}},
		{"N", "in [1, 16384] (0 is 1)", SamplingParams{N: 16385, Temperature: 1}},
		{"N", "1 with greedy sampling (Temperature 0): all outputs would be equal", SamplingParams{N: 2}},
		{"Temperature", "in [0, 2]", SamplingParams{Temperature: -0.1}},
		{"Temperature", "in [0, 2]", SamplingParams{Temperature: 2.1}},
		{"Temperature", "in [0, 2]", SamplingParams{Temperature: nan}},
		{"Temperature", "in [0, 2]", SamplingParams{Temperature: inf}},
		{"TopK", "at least -1 (0 and -1 are off)", SamplingParams{TopK: -2}},
		{"TopP", "in (0, 1] (0 is off)", SamplingParams{TopP: -0.5}},
		{"TopP", "in (0, 1] (0 is off)", SamplingParams{TopP: 1.01}},
		{"TopP", "in (0, 1] (0 is off)", SamplingParams{TopP: nan}},
		{"MinP", "in [0, 1]", SamplingParams{MinP: 1.5}},
		{"MinP", "in [0, 1]", SamplingParams{MinP: nan}},
		{"TypicalP", "in (0, 1] (0 is off)", SamplingParams{TypicalP: 2}},
		{"EpsilonCutoff", "in [0, 1)", SamplingParams{EpsilonCutoff: 1}},
		{"RepetitionPenalty", "finite and > 0 (0 is off)", SamplingParams{RepetitionPenalty: -1}},
		{"RepetitionPenalty", "finite and > 0 (0 is off)", SamplingParams{RepetitionPenalty: inf}},
		{"PresencePenalty", "in [-2, 2]", SamplingParams{PresencePenalty: 2.5}},
		{"FrequencyPenalty", "in [-2, 2]", SamplingParams{FrequencyPenalty: -inf}},
		{"NoRepeatNGramSize", "at least 1 (0 is off)", SamplingParams{NoRepeatNGramSize: -3}},
		{"LogitBias[3]", "finite (it is clamped to ±100)", SamplingParams{LogitBias: map[int32]float64{3: nan}}},
		{"LogitBias[3]", "finite (it is clamped to ±100)", SamplingParams{LogitBias: map[int32]float64{3: inf}}},
		{"LogitBias' token id", "a token id in [0, 512)", SamplingParams{LogitBias: map[int32]float64{512: 1}}},
		{"AllowedTokenIDs", "left out, or at least one id", SamplingParams{AllowedTokenIDs: []int32{}}},
		{"AllowedTokenIDs[1]", "a token id in [0, 512)", SamplingParams{AllowedTokenIDs: []int32{1, -1}}},
		{"AllowedTokenIDs[0]", "a token id in [0, 512)", SamplingParams{AllowedTokenIDs: []int32{10_000_000}}},
		{"StopTokenIDs[0]", "a token id in [0, 512)", SamplingParams{StopTokenIDs: []int32{512}}},
		{"Stop[1]", "a text", SamplingParams{Stop: []string{"a", ""}}},
		{"Stop[0]", "UTF-8", SamplingParams{Stop: []string{"a\xef"}}},
		{"BadWords[0]", "a text that is not blank", SamplingParams{BadWords: []string{"  "}}},
		{"Logprobs", "in [0, 512], or -1 for the whole vocabulary", SamplingParams{Logprobs: ptr(-2)}},
		{"PromptLogprobs", "in [0, 512], or -1 for the whole vocabulary", SamplingParams{PromptLogprobs: ptr(513)}},
	} {
		_, _, err := resolveParams(t.Context(), tc.p, limits{vocab: 512, tok: tok, maxLen: 64})
		var p *llm.ParamError
		if assert.ErrorAs(t, err, &p, "%+v", tc.p) {
			assert.Equal(t, tc.field, p.Field)
			assert.Equal(t, tc.bound, p.Bound)
		}
	}
	for _, p := range []SamplingParams{{Stop: []string{"x"}}, {BadWords: []string{"x"}}} {
		_, _, err := resolveParams(t.Context(), p, limits{vocab: 512})
		assert.ErrorIs(t, err, llm.ErrNoTokenizer)
	}
}

func gpt2(t *testing.T) *tokenizer.Tokenizer {
	tok, err := tokenizer.Load("internal/tokenizer/testdata/gpt2/tokenizer.json")
	require.NoError(t, err)
	return tok
}

// off is a sampler that does nothing.
var off = sample.Params{TopP: 1, TypicalP: 1, RepetitionPenalty: 1, Logprobs: -1}

func TestParamsResolved(t *testing.T) {
	with := func(change func(*sample.Params)) sample.Params {
		p := off
		change(&p)
		return p
	}
	for _, tc := range []struct {
		why  string
		p    SamplingParams
		want sample.Params
	}{
		{"the zero value is greedy, and only EOS stops", SamplingParams{}, with(func(p *sample.Params) {
			p.StopIDs = []int32{2}
		})},
		{"greedy ignores what narrows a draw", SamplingParams{
			Temperature: 1e-6, TopK: 5, TopP: 0.5, MinP: 0.1,
			TypicalP: 0.5, EpsilonCutoff: 0.1, IgnoreEOS: true,
		}, off},
		{"low temperatures are raised, as in vLLM", SamplingParams{Temperature: 1e-5, IgnoreEOS: true}, with(func(p *sample.Params) { p.Temperature = 0.01 })},
		{"-1 turns top-k off", SamplingParams{Temperature: 1, TopK: -1, IgnoreEOS: true}, with(func(p *sample.Params) {
			p.Temperature = 1
		})},
		{"stop ids are masked with EOS until MinTokens", SamplingParams{StopTokenIDs: []int32{7}, MinTokens: 3}, with(func(p *sample.Params) { p.StopIDs, p.MinTokens = []int32{2, 7}, 3 })},
		{"bias is clamped", SamplingParams{LogitBias: map[int32]float64{1: 1e9, 2: -1e9, 3: 2}, IgnoreEOS: true}, with(func(p *sample.Params) { p.LogitBias = map[int32]float32{1: 100, 2: -100, 3: 2} })},
		{"-1 logprobs are the whole vocabulary", SamplingParams{Logprobs: ptr(-1), IgnoreEOS: true}, with(func(p *sample.Params) { p.Logprobs = 512 })},
		{"a seed is a seed", SamplingParams{Seed: ptr(int64(-1)), IgnoreEOS: true}, with(func(p *sample.Params) {
			p.Seed = math.MaxUint64
		})},
	} {
		got, _, err := resolveParams(t.Context(), tc.p, limits{vocab: 512, eos: []int32{2}})
		require.NoError(t, err, tc.why)
		if len(got.StopIDs) == 0 {
			got.StopIDs = nil
		}
		assert.Equal(t, tc.want, got, tc.why)
	}
}

// The sequences of a bad word: as it stands, and as it stands after a space when that is another
// sequence, of whatever length.
func TestBadWords(t *testing.T) {
	tok := gpt2(t)
	got, _, err := resolveParams(t.Context(), SamplingParams{BadWords: []string{" the"}},
		limits{vocab: tok.VocabSize(), tok: tok, maxLen: 64})
	require.NoError(t, err)
	plain, spaced := tok.Encode("the", false), tok.Encode(" the", false)
	require.NotEqual(t, len(plain), len(spaced), "the case that vLLM leaves out")
	assert.Equal(t, [][]int32{plain, spaced}, got.BadWords)
}

// Whatever the parameters, a request is refused with a typed error, or fails alone, or ends well;
// the engine goes on.
func TestAnyParams(t *testing.T) {
	e := openTiny(t, Config{})
	float := rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 1),
		rapid.SampledFrom([]float64{0, 1, math.NaN(), math.Inf(1), math.Inf(-1)}))
	small := rapid.OneOf(rapid.IntRange(0, 20), rapid.SampledFrom([]int{0, 1, -1, math.MaxInt, math.MinInt}))
	id := rapid.OneOf(rapid.Int32Range(0, 511), rapid.SampledFrom([]int32{-1, 512, math.MaxInt32, math.MinInt32}))
	rare := func(t *rapid.T) bool { return rapid.IntRange(0, 8).Draw(t, "given") == 0 }
	refused, ran := 0, 0
	draw := func(t *rapid.T) {
		var p SamplingParams
		for _, f := range []*float64{
			&p.Temperature, &p.TopP, &p.MinP, &p.TypicalP, &p.EpsilonCutoff, &p.RepetitionPenalty, &p.PresencePenalty,
			&p.FrequencyPenalty,
		} {
			if rare(t) {
				*f = float.Draw(t, "float")
			}
		}
		for _, n := range []*int{&p.MinTokens, &p.N, &p.TopK, &p.NoRepeatNGramSize} {
			if rare(t) {
				*n = small.Draw(t, "int")
			}
		}
		p.MaxTokens = rapid.IntRange(0, 6).Draw(t, "max tokens")
		if rare(t) {
			p.AllowedTokenIDs = rapid.SliceOfN(id, 0, 3).Draw(t, "allowed")
		}
		if rare(t) {
			p.StopTokenIDs = rapid.SliceOfN(id, 0, 3).Draw(t, "stop")
		}
		if rare(t) {
			p.LogitBias = rapid.MapOfN(id, float, 0, 3).Draw(t, "bias")
		}
		if rare(t) {
			p.Logprobs = ptr(rapid.SampledFrom([]int{-2, -1, 0, 3, 512, 513}).Draw(t, "logprobs"))
			p.PromptLogprobs = p.Logprobs
		}
		outs, err := e.Generate(context.Background(), Request{PromptTokenIDs: rapid.SliceOfN(rapid.Int32Range(0, 511),
			0, 40).Draw(t, "prompt"), Sampling: p})
		var bad *llm.ParamError
		switch {
		case errors.As(err, &bad):
			refused++
		case err == nil || errors.Is(err, sample.ErrNoToken):
			ran++
			if len(outs) != 1 || len(outs[0].Completions) != max(p.N, 1) {
				t.Fatalf("%d outputs", len(outs))
			}
			for _, c := range outs[0].Completions {
				for _, id := range c.TokenIDs {
					if id < 0 || id >= 512 {
						t.Fatalf("token %d", id)
					}
				}
			}
		default:
			t.Fatalf("%v", err)
		}
		if e.Err() != nil {
			t.Fatalf("the engine died: %v", e.Err())
		}
	}
	for round := 0; refused == 0 || ran == 0; round++ { // 20 draws, as with -short, may lack one kind
		require.Less(t, round, 50)
		rapid.Check(t, draw)
	}
	t.Logf("%d refused, %d ran", refused, ran)
	assert.Zero(t, e.Stats().KVBlocksUsed)
}
