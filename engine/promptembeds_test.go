package engine

import (
	"context"
	"math"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// embeddingsOf returns the rows of the tiny Llama's embedding table.
func embeddingsOf(t *testing.T) func(ids []int32) [][]float32 {
	t.Helper()
	f, err := checkpoint.OpenFile(filepath.Join(tinyLlama, "model.safetensors"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	table := rowsOf(t, f, "model.embed_tokens.weight")
	return func(ids []int32) (rows [][]float32) {
		for _, id := range ids {
			row := make([]float32, len(table[id]))
			for j, x := range table[id] {
				row[j] = float32(x)
			}
			rows = append(rows, row)
		}
		return rows
	}
}

// A prompt's embeddings are answered like its tokens, and so like transformers answers:
// in a batch with prompts of tokens, in chunks, after preemptions, on two devices, with drafts, in
// a child core; several drawn outputs too. Nothing of them is held afterwards.
func TestPromptEmbeds(t *testing.T) {
	g, embed := loadGolden(t), embeddingsOf(t)
	for name, cfg := range map[string]Config{
		"one device":         {},
		"no prefix cache":    {DisablePrefixCache: true},
		"chunks of 7 tokens": {MaxNumBatchedTokens: 7},
		"preemption":         {MaxModelLen: 160, KVCacheBytes: 20 * 16 * 1024},
		"two devices":        {TensorParallel: 2, Device: "cpu"},
		"speculative":        {Speculative: Speculative{NumTokens: 3, PromptLookupMin: 1}},
		"child":              {Core: ChildProcess},
	} {
		if cfg.Core == ChildProcess && runtime.GOOS != "linux" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			e := openTiny(t, cfg)
			reqs := g.requests()
			drawn := SamplingParams{MaxTokens: 12, IgnoreEOS: true, Temperature: 1, Seed: ptr(int64(5)), N: 2}
			reqs = append(reqs, Request{PromptTokenIDs: g.Prompts[6].IDs, Sampling: drawn})
			for _, q := range reqs {
				q.PromptTokenIDs, q.PromptEmbeds = nil, embed(q.PromptTokenIDs)
				reqs = append(reqs, q)
			}
			for range 2 { // the second finds prefixes
				outs, err := e.Generate(t.Context(), reqs...)
				require.NoError(t, err)
				for i, p := range g.Prompts {
					assert.Equal(t, p.Greedy, outs[i].Completions[0].TokenIDs)
				}
				half := len(reqs) / 2
				for i := range half {
					assert.Nil(t, outs[half+i].PromptTokenIDs)
					for j, c := range outs[i].Completions {
						assert.Equal(t, c.TokenIDs, outs[half+i].Completions[j].TokenIDs, "prompt %d", i)
					}
				}
				assert.NotContains(t, ledger.ByOwner(e.Holdings()), promptEmbedsOwner)
			}
			if name == "preemption" {
				assert.Positive(t, e.Stats().Preemptions)
			}
			// of the same length, and equal to the engine but for their embeddings
			other := append(embed(g.Prompts[5].IDs[1:]), embed([]int32{7})...)
			zeros := make([]int32, len(other))
			outs, err := e.Generate(t.Context(), Request{PromptEmbeds: other}, Request{PromptTokenIDs: zeros})
			require.NoError(t, err)
			want, err := e.Generate(t.Context(), Request{PromptTokenIDs: append(append([]int32(nil),
				g.Prompts[5].IDs[1:]...), 7)})
			require.NoError(t, err)
			assert.Equal(t, want[0].Completions[0].TokenIDs, outs[0].Completions[0].TokenIDs)
			assert.Zero(t, outs[1].CachedTokens, "tokens find no prefix of embeddings")
		})
	}
}

func TestPromptEmbedsAreChecked(t *testing.T) {
	e, row := openTiny(t, Config{MaxModelLen: 64}), func(n int) []float32 { return make([]float32, n) }
	nan := row(64)
	nan[9] = float32(math.NaN())
	inf := row(64)
	inf[0] = float32(math.Inf(-1))
	for want, q := range map[string]Request{
		"PromptEmbeds is empty, must be at least one row":                                            {PromptEmbeds: [][]float32{}},
		"PromptEmbeds[1] is a row of 63, must be one of 64 numbers, the model's hidden size":         {PromptEmbeds: [][]float32{row(64), row(63)}},
		"PromptEmbeds[0][9] is NaN, must be finite":                                                  {PromptEmbeds: [][]float32{nan}},
		"PromptEmbeds[0][0] is -Inf, must be finite":                                                 {PromptEmbeds: [][]float32{inf}},
		"PromptTokenIDs is a list of 3, must be left out with PromptEmbeds":                          {PromptEmbeds: [][]float32{row(64)}, PromptTokenIDs: ids(3, 0)},
		`Prompt is a text, must be "" with PromptEmbeds`:                                             {PromptEmbeds: [][]float32{row(64)}, Prompt: "a"},
		"PromptLogprobs is 1, must be left out with PromptEmbeds, which are no tokens":               {PromptEmbeds: [][]float32{row(64)}, Sampling: SamplingParams{PromptLogprobs: ptr(1)}},
		"prompt does not fit: 64 embeddings, at most 63 with MaxModelLen 64 and one token of output": {PromptEmbeds: make([][]float32, 64)},
	} {
		_, err := e.Generate(t.Context(), q)
		assert.EqualError(t, err, "engine: "+want)
	}
	assert.NotContains(t, ledger.ByOwner(e.Holdings()), promptEmbedsOwner)
	many := Request{PromptEmbeds: make([][]float32, 60)}
	for i := range many.PromptEmbeds {
		many.PromptEmbeds[i] = row(64)
	}
	small := openTiny(t, Config{MaxWaitingBytes: 8 << 10})
	_, err := small.Generate(t.Context(), many)
	var limit *llm.LimitError
	require.ErrorAs(t, err, &limit)
	assert.Equal(t, "MaxWaitingBytes", limit.Limit)
}

// A device that takes no embeddings refuses them with a typed error, before any work.
func TestPromptEmbedsAreRefused(t *testing.T) {
	e := openFake(t, Config{Model: "fake", Device: "cuda:0"}, slowRunner(time.Microsecond), false)
	_, err := e.Generate(t.Context(), Request{PromptEmbeds: [][]float32{make([]float32, 64)}})
	var not *llm.UnsupportedError
	require.ErrorAs(t, err, &not)
	assert.Equal(t, "PromptEmbeds", not.Field)
	assert.ErrorIs(t, err, llm.ErrUnsupported)
	assert.ErrorContains(t, err, "cuda:0")
}

// The engine's copy of embeddings has an owner while its request is live, however that ends.
func TestPromptEmbedsAreReleased(t *testing.T) {
	embed := embeddingsOf(t)
	q := Request{PromptEmbeds: embed(ids(40, 0)), Sampling: SamplingParams{MaxTokens: 3000, IgnoreEOS: true}}
	for name, end := range map[string]func(t *testing.T, e *Engine, stop func()){
		"abort": func(_ *testing.T, _ *Engine, stop func()) { stop() },
		"sleep": func(t *testing.T, e *Engine, _ func()) {
			require.NoError(t, e.Sleep(t.Context(), 1))
			assert.NotContains(t, ledger.ByOwner(e.Holdings()), promptEmbedsOwner)
			require.NoError(t, e.Wake(t.Context()))
		},
		"shutdown": func(t *testing.T, e *Engine, _ func()) { require.NoError(t, e.Shutdown(t.Context())) },
	} {
		t.Run(name, func(t *testing.T) {
			e := openTiny(t, Config{})
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			began, goOn, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
			held := q
			held.Sampling.LogitsProcessors = []llm.LogitsProcessor{
				func(_, output []int32, logits []float32) ([]float32, error) {
					if len(output) == 1 {
						close(began)
						<-goOn
					}
					return logits, nil
				},
			}
			go func() {
				defer close(over)
				_, _ = e.Generate(ctx, held)
			}()
			<-began
			assert.Equal(t, int64(4*40*64), ledger.ByOwner(e.Holdings())[promptEmbedsOwner])
			close(goOn)
			end(t, e, stop)
			<-over
			if name != "shutdown" {
				idle(t, e)
				q := q
				q.Sampling.MaxTokens = 3
				_, err := e.Generate(t.Context(), q)
				require.NoError(t, err)
			}
			assert.NotContains(t, ledger.ByOwner(e.Holdings()), promptEmbedsOwner)
		})
	}
	e, err := Open(t.Context(), Config{
		Model: tinyLlama, Logger: quiet, Faults: []llm.Fault{{Point: llm.FaultForward, Action: llm.ActPanic, After: 4}},
	})
	require.NoError(t, err)
	_, err = e.Generate(t.Context(), q)
	require.ErrorIs(t, err, llm.ErrEngineDead)
	assert.NotContains(t, ledger.ByOwner(e.Holdings()), promptEmbedsOwner)
	require.NoError(t, e.Shutdown(t.Context()))
}

// Embeddings that no one releases are what Shutdown's error names.
func TestForgottenPromptEmbedsAreNamed(t *testing.T) {
	e, err := Open(t.Context(), Config{Model: tinyLlama, Logger: quiet})
	require.NoError(t, err)
	copyEmbeds(embeddingsOf(t)(ids(3, 0)), 64).enter(e.b.(*core).ledger)
	var leak *LeakError
	require.ErrorAs(t, e.Shutdown(context.Background()), &leak)
	require.Len(t, leak.Holdings, 1)
	assert.Equal(t, promptEmbedsOwner, leak.Holdings[0].Owner)
}
