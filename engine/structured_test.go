package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

const personSchema = `{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer",
	"minimum": 1, "maximum": 120}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}}, "required": ["name", "age"]}`

// structuredKinds are one of each, with what every whole output must match.
var structuredKinds = []struct {
	name string
	with llm.StructuredOutputs
	want *regexp.Regexp
}{
	{
		"choice",
		llm.StructuredOutputs{Choice: []string{"yes", "no", "perhaps not"}},
		regexp.MustCompile(`^(yes|no|perhaps not)$`),
	},
	{
		"regex",
		llm.StructuredOutputs{Regex: `[a-f]{3,6}-\d+(\.\d{2})?!`},
		regexp.MustCompile(`^[a-f]{3,6}-\d+(\.\d{2})?!$`),
	},
	{
		"schema",
		llm.StructuredOutputs{JSON: personSchema},
		regexp.MustCompile(`(?s)^\{\s*"name": ?".*", *\s*"age": ?\d+.*\}$`),
	},
	{
		"grammar",
		llm.StructuredOutputs{Grammar: "root ::= \"(\" (root | [a-z]{1,3}) \")\""},
		regexp.MustCompile(`^\(+[a-z]{1,3}\)+$`),
	},
}

func structuredRequests(kind *llm.StructuredOutputs, n int) (reqs []Request) {
	for i := range n {
		seed := int64(i)
		reqs = append(reqs, Request{
			Prompt: fmt.Sprintf("The lighthouse %d", i),
			Sampling: SamplingParams{
				StructuredOutputs: kind, MaxTokens: 200, Temperature: 0.9, TopP: 0.95,
				Seed: &seed,
			},
		})
	}
	return reqs
}

// Whole outputs are in the language, in-process, in a child and on devices that share the model;
// streams are the same; other requests of the batch have the tokens that they have alone.
func TestStructuredOutputs(t *testing.T) {
	for _, c := range []struct {
		core Core
		tp   int
	}{{InProcess, 1}, {ChildProcess, 1}, {InProcess, 2}} {
		t.Run(fmt.Sprintf("%s/%d", c.core, c.tp), func(t *testing.T) {
			e, err := Open(t.Context(), Config{
				Model: fixtures.Bundled(), Device: "cpu", Core: c.core,
				TensorParallel: c.tp,
			})
			require.NoError(t, err)
			plain := structuredRequests(nil, 4)
			alone, err := e.Generate(t.Context(), plain...)
			require.NoError(t, err)
			for _, kind := range structuredKinds {
				reqs := structuredRequests(&kind.with, 4)
				outs, err := e.Generate(t.Context(), slices.Concat(reqs, plain)...)
				require.NoError(t, err)
				ended := 0
				for i, out := range outs[:4] {
					got := out.Completions[0]
					if got.FinishReason == llm.FinishStop {
						ended++
						assert.Regexp(t, kind.want, got.Text, kind.name)
					}
					if kind.name == "schema" && got.FinishReason == llm.FinishStop {
						assert.True(t, json.Valid([]byte(got.Text)), got.Text)
					}
					text := ""
					for d, err := range e.Stream(t.Context(), reqs[i]) {
						require.NoError(t, err)
						text += d.Text
					}
					assert.Equal(t, got.Text, text)
				}
				assert.Positive(t, ended, kind.name)
				for i, out := range outs[4:] {
					assert.Equal(t, alone[i].Completions, out.Completions, "a neighbour beside %s", kind.name)
				}
			}
			owners := ledger.ByOwner(e.Holdings())
			if c.core == InProcess {
				assert.Positive(t, owners["grammars"])
				assert.Contains(t, e.Parts(), "grammars")
			}
			require.NoError(t, e.Shutdown(context.Background()))
			assert.Empty(t, e.Holdings())
			assert.Empty(t, e.Parts())
		})
	}
}

// The other parameters hold as well: EOS and stop ids end an output only where the grammar lets it
// end, stop texts cut it, allowed ids and MinTokens restrict it further.
func TestStructuredParameters(t *testing.T) {
	e, err := Open(t.Context(), Config{Model: fixtures.Bundled(), Device: "cpu"})
	require.NoError(t, err)
	defer func() { assert.NoError(t, e.Shutdown(context.Background())) }()
	generate := func(p SamplingParams) (llm.Completion, error) {
		t.Helper()
		outs, err := e.Generate(t.Context(), Request{Prompt: "2+3=", Sampling: p})
		if len(outs) == 0 {
			return llm.Completion{}, err
		}
		return outs[0].Completions[0], err
	}
	digits := &llm.StructuredOutputs{Regex: `\d{8}`}
	got, err := generate(SamplingParams{StructuredOutputs: digits})
	require.NoError(t, err)
	assert.Regexp(t, `^\d{8}$`, got.Text)
	assert.Equal(t, e.EOSTokenIDs()[0], got.TokenIDs[len(got.TokenIDs)-1])
	assert.Equal(t, llm.FinishStop, got.FinishReason)

	got, err = generate(SamplingParams{StructuredOutputs: digits, IgnoreEOS: true})
	require.NoError(t, err)
	assert.Regexp(t, `^\d{8}$`, got.Text, "it ends where nothing can follow")
	assert.Equal(t, llm.FinishStop, got.FinishReason)

	got, err = generate(SamplingParams{StructuredOutputs: digits, MaxTokens: 3})
	require.NoError(t, err)
	assert.Equal(t, llm.FinishLength, got.FinishReason)

	got, err = generate(SamplingParams{
		StructuredOutputs: &llm.StructuredOutputs{Regex: `[ab]{2,}x[ab]{9}`},
		Stop:              []string{"x"}, MaxTokens: 100,
	})
	require.NoError(t, err)
	assert.Regexp(t, `^[ab]{2,}$`, got.Text)

	bias := map[int32]float64{e.EOSTokenIDs()[0]: 100}
	got, err = generate(SamplingParams{
		StructuredOutputs: &llm.StructuredOutputs{Regex: `(ab){2,9}`}, LogitBias: bias,
		MinTokens: 5, MaxTokens: 50,
	})
	require.NoError(t, err)
	assert.Regexp(t, `^(ab){2,9}$`, got.Text)
	assert.GreaterOrEqual(t, len(got.TokenIDs), 6)

	_, err = generate(SamplingParams{StructuredOutputs: &llm.StructuredOutputs{Choice: []string{"a"}}, MinTokens: 9})
	assert.ErrorContains(t, err, "structured_outputs masked")
	assert.ErrorContains(t, err, "min_tokens masked 1")

	n := 3
	got, err = generate(SamplingParams{StructuredOutputs: digits, Logprobs: &n, Temperature: 1})
	require.NoError(t, err)
	plain, err := generate(SamplingParams{Logprobs: &n})
	require.NoError(t, err)
	assert.Equal(t, plain.Logprobs[0][0], got.Logprobs[0][0], "log-probabilities are the model's")
}

func TestStructuredRefusals(t *testing.T) {
	for _, core := range []Core{InProcess, ChildProcess} {
		e, err := Open(t.Context(), Config{Model: fixtures.Bundled(), Device: "cpu", Core: core})
		require.NoError(t, err)
		for _, c := range []struct {
			with        llm.StructuredOutputs
			unsupported bool
			want        string
		}{
			{llm.StructuredOutputs{}, false, "engine: StructuredOutputs is empty, must be exactly one of"},
			{llm.StructuredOutputs{Regex: "a", JSONObject: true}, false, "is Regex and JSONObject"},
			{
				llm.StructuredOutputs{Regex: strings.Repeat("a", 1<<18)},
				false,
				"engine: StructuredOutputs.Regex is 2621",
			},
			{llm.StructuredOutputs{JSON: "{"}, false, "engine: StructuredOutputs: JSON schema: not JSON"},
			{
				llm.StructuredOutputs{JSON: `{"not": {}}`},
				true,
				"not supported; supported: $ref, additionalProperties, ",
			},
			{llm.StructuredOutputs{Grammar: "root ::= x"}, false, `EBNF: line 1: rule "x" is not defined`},
			{llm.StructuredOutputs{Choice: []string{}}, false, "choice: no text"},
		} {
			_, err := e.Generate(t.Context(), structuredRequests(&c.with, 1)...)
			require.ErrorContains(t, err, c.want)
			var refused *llm.GrammarError
			var param *llm.ParamError
			if strings.Contains(c.want, "is ") && !strings.Contains(c.want, "EBNF") {
				assert.ErrorAs(t, err, &param)
			} else {
				require.ErrorAs(t, err, &refused)
				assert.Equal(t, c.unsupported, refused.Unsupported)
			}
		}
		require.NoError(t, e.Shutdown(context.Background()))
	}
	e, err := Open(t.Context(), Config{Model: fixtures.Bundled(), Device: "cpu", SkipTokenizer: true})
	require.NoError(t, err)
	_, err = e.Generate(t.Context(), Request{
		PromptTokenIDs: []int32{1},
		Sampling:       structuredRequests(&structuredKinds[0].with, 1)[0].Sampling,
	})
	assert.ErrorIs(t, err, llm.ErrNoTokenizer)
	require.NoError(t, e.Shutdown(context.Background()))
}

// The cache is bounded, counted in the ledger, emptied by Sleep, and no grammar is compiled twice.
func TestGrammarCache(t *testing.T) {
	e, err := Open(t.Context(), Config{Model: fixtures.Bundled(), Device: "cpu"})
	require.NoError(t, err)
	defer func() { assert.NoError(t, e.Shutdown(context.Background())) }()
	g := e.b.(*core).inputProcessor.grammars
	ask := func(n int) {
		t.Helper()
		with := &llm.StructuredOutputs{Choice: []string{fmt.Sprint(n)}}
		outs, err := e.Generate(t.Context(), Request{Prompt: "a", Sampling: SamplingParams{StructuredOutputs: with}})
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprint(n), outs[0].Completions[0].Text)
	}
	ask(0)
	first := g.part().entries[grammarKey(&llm.StructuredOutputs{Choice: []string{"0"}})].grammar
	for n := range maxGrammars + 10 {
		ask(0)
		ask(n)
	}
	assert.Len(t, g.part().entries, maxGrammars)
	assert.Same(t, first, g.part().entries[grammarKey(&llm.StructuredOutputs{Choice: []string{"0"}})].grammar,
		"it was used last")
	assert.Positive(t, ledger.ByOwner(e.Holdings())["grammars"])
	require.NoError(t, e.Sleep(t.Context(), 1))
	assert.Nil(t, g.part())
	assert.NotContains(t, ledger.ByOwner(e.Holdings()), "grammars")
	require.NoError(t, e.Wake(t.Context()))
	ask(1)
	assert.Len(t, g.part().entries, 1)
}

// A grammar cache that no one drops is what Shutdown's error names.
func TestForgottenGrammarsAreNamed(t *testing.T) {
	e, err := Open(t.Context(), Config{Model: fixtures.Bundled(), Device: "cpu"})
	require.NoError(t, err)
	_, err = e.Generate(t.Context(), structuredRequests(&structuredKinds[0].with, 1)...)
	require.NoError(t, err)
	c := e.b.(*core)
	c.inputProcessor.grammars = &grammars{ledger: c.ledger} // Shutdown drops this one instead
	var leak *LeakError
	require.ErrorAs(t, e.Shutdown(context.Background()), &leak)
	require.Len(t, leak.Holdings, 1)
	assert.Equal(t, "grammars", leak.Holdings[0].Owner)
}

// BenchmarkStructured compares steps of 32 requests that a schema restricts with steps of as many
// that none does, all greedy, in turns. ratio is the time of a token of the first over one of the
// second.
func BenchmarkStructured(b *testing.B) {
	e, err := Open(b.Context(), Config{Model: fixtures.Bundled(), Device: "cpu"})
	require.NoError(b, err)
	defer func() { require.NoError(b, e.Shutdown(context.Background())) }()
	const endless = `{"type": "object", "properties": {"text": {"type": "string", "minLength": 5000}}, "required": ["text"]}`
	round := func(with *llm.StructuredOutputs) float64 {
		reqs := structuredRequests(with, 32)
		for i := range reqs {
			reqs[i].Sampling = SamplingParams{StructuredOutputs: with, IgnoreEOS: true, MaxTokens: 64}
		}
		began, before := time.Now(), e.Stats().OutputTokens
		_, err := e.Generate(b.Context(), reqs...)
		require.NoError(b, err)
		return time.Since(began).Seconds() / float64(e.Stats().OutputTokens-before)
	}
	with := &llm.StructuredOutputs{JSON: endless}
	round(with)
	round(nil)
	var ratios []float64
	for b.Loop() {
		ratios = append(ratios, round(with)/round(nil))
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
}
