package engine

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/scheduler/fakerunner"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const tinyLlama = "internal/modelrunner/testdata/tiny-llama"

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// openTiny opens the tiny Llama and makes sure that it ends with nothing left.
func openTiny(t *testing.T, cfg Config) *Engine {
	t.Helper()
	if cfg.Model == "" {
		cfg.Model = tinyLlama
	}
	cfg.Logger = quiet
	e, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	shutdownAfter(t, e)
	return e
}

// openFake opens an engine with a runner that has no model, 64 tokens and 1024 positions; with the
// GPT-2 style tokenizer when text is set.
func openFake(t *testing.T, cfg Config, r *fakerunner.Runner, text bool) *Engine {
	t.Helper()
	e, err := open(t.Context(), cfg, fakeLoader(r, text))
	require.NoError(t, err)
	shutdownAfter(t, e)
	return e
}

func fakeLoader(r *fakerunner.Runner, text bool) loader {
	return func(c *core) (m model, err error) {
		if c.cfg, err = c.cfg.resolveModel(1024); err != nil {
			return m, err
		}
		r.BlockSize, r.Ledger = c.cfg.BlockSize, c.ledger
		if r.Vocab == 0 {
			r.Vocab = 64
		}
		m = model{runner: r, maxPositions: 1024, limits: limits{vocab: int(r.Vocab), eos: []int32{2}}}
		if text {
			if m.tok, err = tokenizer.Load("internal/tokenizer/testdata/gpt2/tokenizer.json"); err != nil {
				return m, err
			}
			m.vocab = m.tok.VocabSize()
			r.Vocab = int32(m.vocab)
		}
		return m, nil
	}
}

func shutdownAfter(t *testing.T, e *Engine) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		assert.NoError(t, e.Shutdown(ctx))
		assert.Empty(t, e.Holdings())
		assert.Equal(t, Stopped, e.State())
	})
}

// endsWhen returns a context that is canceled as soon as cond holds.
func endsWhen(t *testing.T, cond func() bool) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for !cond() && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}()
	return ctx
}

func ids(n, first int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((first + i) % 60)
	}
	return out
}

func ptr[T any](v T) *T { return &v }

// one runs one request of token ids.
func one(tb testing.TB, e *Engine, prompt []int32, p SamplingParams) llm.Completion {
	tb.Helper()
	outs, err := e.Generate(tb.Context(), Request{PromptTokenIDs: prompt, Sampling: p})
	require.NoError(tb, err)
	require.Len(tb, outs, 1)
	return outs[0].Completions[0]
}

// golden is what Hugging Face transformers made of the tiny Llama
// (engine/internal/modelrunner/testdata).
type golden struct {
	Prompts []struct {
		IDs      []int32   `json:"ids"`
		Greedy   []int32   `json:"greedy"`
		Logprobs []float32 `json:"logprob_of_greedy"`
		Top5     []int32   `json:"top5_first_ids"`
	} `json:"prompts"`
	EOSStops []struct {
		Prompt int     `json:"prompt"`
		EOS    int32   `json:"eos"`
		Out    []int32 `json:"out"`
	} `json:"eos_stops"`
	Processors []struct {
		Prompt int `json:"prompt"`
		KW     struct {
			RepetitionPenalty float64 `json:"repetition_penalty"`
			NoRepeatNGram     int     `json:"no_repeat_ngram_size"`
			MinNewTokens      int     `json:"min_new_tokens"`
			EOS               *int32  `json:"eos_token_id"`
		} `json:"kw"`
		Out []int32 `json:"out"`
	} `json:"greedy_with_processors"`
}

func loadGolden(t *testing.T) golden {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(tinyLlama, "golden.json"))
	require.NoError(t, err)
	var g golden
	require.NoError(t, json.Unmarshal(data, &g))
	require.Len(t, g.Prompts, 8)
	require.NotEmpty(t, g.EOSStops)
	require.NotEmpty(t, g.Processors)
	return g
}

// requests makes a greedy request of every golden prompt.
func (g golden) requests() []Request {
	reqs := make([]Request, len(g.Prompts))
	for i, p := range g.Prompts {
		reqs[i] = Request{PromptTokenIDs: p.IDs, Sampling: SamplingParams{MaxTokens: len(p.Greedy), IgnoreEOS: true}}
	}
	return reqs
}

var _ modelrunner.Runner = (*fakerunner.Runner)(nil)
