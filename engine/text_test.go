package engine

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/engine/internal/scheduler/fakerunner"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// says is a runner whose output is a text, and then token 1 for ever.
func says(t *testing.T, text string) *fakerunner.Runner {
	tokens := gpt2(t).Encode(text, false)
	return &fakerunner.Runner{Pick: func(_ []int32, st *sample.State) int32 {
		if st != nil && len(st.Output) < len(tokens) {
			return tokens[len(st.Output)]
		}
		return 1
	}}
}

func TestStopStrings(t *testing.T) {
	const text = "Hello, world! The lighthouse. The end."
	for _, tc := range []struct {
		name   string
		p      SamplingParams
		want   string
		reason llm.FinishReason
		stop   string
	}{
		{"none", SamplingParams{}, text, llm.FinishLength, ""},
		{"in the middle", SamplingParams{Stop: []string{"light"}}, "Hello, world! The ", llm.FinishStop, "light"},
		{
			"kept on demand",
			SamplingParams{Stop: []string{"light"}, IncludeStopInOutput: true},
			"Hello, world! The light", llm.FinishStop, "light",
		},
		{
			"the earliest in the text wins, not the first in the list",
			SamplingParams{Stop: []string{"end", "world", "The"}},
			"Hello, ", llm.FinishStop, "world",
		},
		{"across tokens", SamplingParams{Stop: []string{"o, w"}}, "Hell", llm.FinishStop, "o, w"},
		{"at the start", SamplingParams{Stop: []string{"Hello"}}, "", llm.FinishStop, "Hello"},
		{"never comes", SamplingParams{Stop: []string{"zebra"}}, text, llm.FinishLength, ""},
		{
			"not before MinTokens",
			SamplingParams{Stop: []string{"The"}, MinTokens: 8},
			"Hello, world! The lighthouse. ",
			llm.FinishStop, "The",
		},
		{
			"at the last token",
			SamplingParams{Stop: []string{"end."}},
			"Hello, world! The lighthouse. The ", llm.FinishStop,
			"end.",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := openFake(t, Config{Model: "fake"}, says(t, text), true)
			tokens, err := e.Encode(text)
			require.NoError(t, err)
			if tc.p.MinTokens > 0 { // from after the first "The" on
				head, err := e.Encode("Hello, world! The")
				require.NoError(t, err)
				tc.p.MinTokens = len(head)
			}
			tc.p.MaxTokens = len(tokens)
			outs, err := e.Generate(t.Context(), Request{Prompt: "Once", Sampling: tc.p})
			require.NoError(t, err)
			c := outs[0].Completions[0]
			assert.Equal(t, tc.want, c.Text)
			assert.Equal(t, tc.reason, c.FinishReason)
			assert.Equal(t, tc.stop, c.StopReason)
			assert.Equal(t, tokens[:len(c.TokenIDs)], c.TokenIDs)
			assert.Zero(t, e.Stats().KVBlocksUsed)

			var streamed strings.Builder
			var last llm.Delta
			var streamedIDs []int32
			for d, err := range e.Stream(t.Context(), Request{Prompt: "Once", Sampling: tc.p}) {
				require.NoError(t, err)
				streamed.WriteString(d.Text)
				streamedIDs = append(streamedIDs, d.TokenIDs...)
				last = d
			}
			assert.Equal(t, tc.want, streamed.String(), "nothing is sent that a stop string takes away")
			assert.Equal(t, c.TokenIDs, streamedIDs)
			assert.Equal(t, tc.reason, last.FinishReason)
			assert.Equal(t, tc.stop, last.StopReason)
		})
	}
}

// Several stop strings in one token: the first in the text counts.
func TestStopStringsInOneToken(t *testing.T) {
	tok := gpt2(t)
	id, ok := tok.ID("The")
	require.True(t, ok)
	for want, r := range map[string]rules{
		"":    {stop: []string{"e", "he", "Th", "T"}},
		"T":   {stop: []string{"e", "he"}},
		"The": {stop: []string{"x", "he"}, includeStop: true},
	} {
		text := newText(tok, r, nil)
		stop, ok := text.add(id, true)
		assert.True(t, ok)
		assert.Contains(t, []string{"Th", "he"}, stop)
		assert.Equal(t, want, text.String())
	}
}

// With byte fallback the decoder keeps a run of bytes until it ends. A stop string in it, a line
// end for one, counts at its token all the same.
func TestStopStringsInByteTokens(t *testing.T) {
	tok, err := tokenizer.Load("internal/tokenizer/testdata/llama2/tokenizer.json")
	require.NoError(t, err)
	for _, tc := range []struct {
		why    string
		tokens []string
		r      rules
		at     int // the token that ends the text; -1: none
		want   string
	}{
		{"a line end", []string{"<0x41>", "<0x0A>", "<0x42>"}, rules{stop: []string{"\n"}}, 1, "A"},
		{"kept", []string{"<0x41>", "<0x0A>", "<0x42>"}, rules{stop: []string{"\n"}, includeStop: true}, 1, "A\n"},
		{"begins before the run", []string{"a", "<0x0A>", "<0x0A>"}, rules{stop: []string{"a\n\n"}}, 2, ""},
		{
			"an unfinished character is no text yet",
			[]string{"<0x0A>", "<0xC3>", "<0xA9>"},
			rules{stop: []string{"\uFFFD", "é"}},
			2, "\n",
		},
		{
			"a character that never ends spoils the run",
			[]string{"<0xC3>", "<0x0A>", "a"},
			rules{stop: []string{"\n"}},
			-1, "\uFFFD\uFFFDa",
		},
	} {
		text := newText(tok, tc.r, nil)
		ended := -1
		for i, token := range tc.tokens {
			id, ok := tok.ID(token)
			require.True(t, ok, token)
			if _, ok := text.add(id, true); ok {
				ended = i
				break
			}
		}
		text.flush()
		assert.Equal(t, tc.at, ended, tc.why)
		assert.Equal(t, tc.want, text.String(), tc.why)
	}
}

// Prompt and text together read as one: the space between them is not lost. After special tokens
// alone a text begins, without one.
func TestTextFollowsThePrompt(t *testing.T) {
	for _, name := range []string{"llama2", "metaspace"} {
		tok, err := tokenizer.Load("internal/tokenizer/testdata/" + name + "/tokenizer.json")
		require.NoError(t, err)
		var rest []int32
		for _, c := range "▁did▁a" {
			id, ok := tok.ID(string(c))
			require.True(t, ok, "%s: %c", name, c)
			rest = append(rest, id)
		}
		for prompt, want := range map[string]string{"a dog": " did a", "": "did a"} {
			text := newText(tok, rules{skipSpecial: true}, tok.Encode(prompt, true))
			for _, id := range rest {
				text.add(id, true)
			}
			text.flush()
			assert.Equal(t, want, text.String(), "%s after %q", name, prompt)
		}
	}
}

func TestTextOfSpecialAndStoppingTokens(t *testing.T) {
	tok := gpt2(t)
	require.NotEmpty(t, tok.Token(0))
	hello := tok.Encode("Hello", false)
	end := hello[len(hello)-1]
	e := openFake(t, Config{Model: "fake"}, says(t, "Hello"), true)
	text := func(p SamplingParams) string {
		outs, err := e.Generate(t.Context(), Request{Prompt: "Once", Sampling: p})
		require.NoError(t, err)
		assert.Equal(t, hello, outs[0].Completions[0].TokenIDs, "the ids have the token that stopped")
		assert.Equal(t, llm.FinishStop, outs[0].Completions[0].FinishReason)
		return outs[0].Completions[0].Text
	}
	assert.Equal(t, tok.Decode(hello[:len(hello)-1], true), text(SamplingParams{StopTokenIDs: []int32{end}}))
	assert.Equal(t, "Hello", text(SamplingParams{StopTokenIDs: []int32{end}, IncludeStopInOutput: true}))
}

// A character that takes several tokens comes out whole, streamed or not; one that was cut off is
// U+FFFD at the end.
func TestCharactersAreWhole(t *testing.T) {
	const text = "naïve 🦊 fox"
	e := openFake(t, Config{Model: "fake"}, says(t, text), true)
	n := len(gpt2(t).Encode(text, false))
	for k := 1; k <= n; k++ {
		var whole string
		for d, err := range e.Stream(t.Context(), Request{
			Prompt:   "a",
			Sampling: SamplingParams{MaxTokens: k, Stop: []string{"ééé"}},
		}) {
			require.NoError(t, err)
			assert.True(t, utf8.ValidString(d.Text))
			if d.FinishReason == "" {
				assert.NotContains(t, d.Text, "\uFFFD")
			}
			whole += d.Text
		}
		assert.True(t, strings.HasPrefix(text, strings.TrimRight(whole, "\uFFFD")), "%q", whole)
	}
}

func TestLogprobsHaveText(t *testing.T) {
	e := openFake(t, Config{Model: "fake"}, says(t, "Hello"), true)
	outs, err := e.Generate(t.Context(), Request{
		Prompt:   "a b",
		Sampling: SamplingParams{MaxTokens: 2, Logprobs: ptr(0), PromptLogprobs: ptr(0)},
	})
	require.NoError(t, err)
	c := outs[0].Completions[0]
	require.Len(t, c.Logprobs, 2)
	assert.Equal(t, gpt2(t).Decode(c.TokenIDs[:1], false), c.Logprobs[0][0].Token)
	assert.InDelta(t, -1.0, c.CumulativeLogprob, 1e-6)
	require.Len(t, outs[0].PromptLogprobs, len(outs[0].PromptTokenIDs))
	assert.NotEmpty(t, outs[0].PromptLogprobs[1][0].Token)
	round, err := e.Decode(outs[0].PromptTokenIDs)
	require.NoError(t, err)
	assert.Equal(t, "a b", round)
}
