package engine

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rowsOf are a tensor of the golden file, a row of the vocabulary's size per position.
func rowsOf(t *testing.T, f *checkpoint.File, name string) (rows [][]float64) {
	t.Helper()
	x, ok := f.Tensor(name)
	require.True(t, ok, name)
	for i := range x.Shape[0] {
		row := make([]float64, x.Shape[1])
		for j := range row {
			row[j] = float64(math.Float32frombits(binary.LittleEndian.Uint32(x.Data[4*(i*x.Shape[1]+j):])))
		}
		rows = append(rows, row)
	}
	return rows
}

// valuesOf orders the values of a position by token; the whole vocabulary must be there.
func valuesOf(t *testing.T, lps []llm.Logprob, vocab int) []float64 {
	t.Helper()
	require.Len(t, lps, vocab)
	out := make([]float64, vocab)
	for _, lp := range lps {
		out[lp.TokenID] = float64(lp.Logprob)
	}
	return out
}

// near compares rows; masked values must be at the same places.
func near(t *testing.T, want, got []float64) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if math.IsInf(want[i], -1) != math.IsInf(got[i], -1) || math.Abs(want[i]-got[i]) > 1e-4 {
			require.Failf(t, "differs", "token %d: %v, want %v", i, got[i], want[i])
		}
	}
}

// normalized is the log-softmax of a row.
func normalized(row []float64) []float64 {
	top, sum := slices.Max(row), 0.0
	for _, x := range row {
		sum += math.Exp(x - top)
	}
	out := make([]float64, len(row))
	for i, x := range row {
		out[i] = x - top - math.Log(sum)
	}
	return out
}

// everywhere runs a check in an engine of each kind: alone, in chunks, on two devices, and in a
// child core.
func everywhere(t *testing.T, each func(t *testing.T, e *Engine)) {
	t.Helper()
	for name, cfg := range map[string]Config{
		"one device":          {},
		"chunks of 7 tokens":  {MaxNumBatchedTokens: 7},
		"two devices":         {TensorParallel: 2, Device: "cpu"},
		"child":               {Core: ChildProcess},
		"child, two devices":  {Core: ChildProcess, TensorParallel: 2, Device: "cpu"},
		"one sequence a step": {MaxNumSeqs: 1},
		"speculative":         {Speculative: Speculative{NumTokens: 3, PromptLookupMin: 1}},
	} {
		if cfg.Core == ChildProcess && runtime.GOOS != "linux" {
			continue
		}
		t.Run(name, func(t *testing.T) { each(t, openTiny(t, cfg)) })
	}
}

// Raw logits of prompts and outputs are those of transformers, and raw log-probabilities follow
// from them, in a batch of all golden prompts, in every kind of engine.
func TestRawLogitsEqualTransformers(t *testing.T) {
	g := loadGolden(t)
	f, err := checkpoint.OpenFile(filepath.Join(tinyLlama, "golden.safetensors"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	everywhere(t, func(t *testing.T, e *Engine) {
		var reqs []Request
		for _, mode := range []llm.LogprobsMode{llm.RawLogits, llm.ProcessedLogprobs} {
			for _, r := range g.requests() {
				r.Sampling.MaxTokens = 3
				r.Sampling.Logprobs, r.Sampling.PromptLogprobs, r.Sampling.LogprobsMode = ptr(-1), ptr(-1), mode
				reqs = append(reqs, r)
			}
		}
		outs, err := e.Generate(t.Context(), reqs...)
		require.NoError(t, err)
		for i, o := range outs {
			n, mode := i%len(g.Prompts), reqs[i].Sampling.LogprobsMode
			prompt, greedy := rowsOf(t, f, fmt.Sprintf("p%d.logits", n)), rowsOf(t, f, fmt.Sprintf("p%d.greedy_logits", n))
			c := o.Completions[0]
			require.Equal(t, g.Prompts[n].Greedy[:3], c.TokenIDs)
			want := func(row []float64) []float64 {
				if mode.Logits() {
					return row
				}
				return normalized(row)
			}
			for at, lps := range c.Logprobs {
				near(t, want(greedy[at]), valuesOf(t, lps, len(greedy[at])))
			}
			require.Len(t, o.PromptLogprobs, len(prompt))
			for at, lps := range o.PromptLogprobs[1:] {
				near(t, want(prompt[at]), valuesOf(t, lps, len(prompt[at])))
			}
			assert.Equal(t, mode.Logits(), c.CumulativeLogprob == 0, "a sum of logits means nothing")
		}
	})
}

// Processed values are what parameters make of the raw ones, worked out here in float64: penalties,
// a bias, allowed tokens, a minimum of tokens, temperature, top-k and top-p.
func TestProcessedValues(t *testing.T) {
	g := loadGolden(t)
	p := SamplingParams{
		MaxTokens: 6, Temperature: 0.8, TopK: 9, TopP: 0.9, Seed: ptr(int64(3)), PresencePenalty: 0.5,
		FrequencyPenalty: 0.25, RepetitionPenalty: 1.2, LogitBias: map[int32]float64{7: 3, 100: -2},
		MinTokens: 6, StopTokenIDs: []int32{5, 9}, Logprobs: ptr(-1),
	}
	for id := range int32(400) {
		p.AllowedTokenIDs = append(p.AllowedTokenIDs, id)
	}
	prompt := g.Prompts[4].IDs
	processed := func(raw []float64, output []int32) []float64 {
		z := slices.Clone(raw)
		for id := range z {
			if id >= 400 || id == 5 || id == 9 {
				z[id] = math.Inf(-1)
				continue
			}
			z[id] += p.LogitBias[int32(id)]
			n := 0
			for _, o := range output {
				if o == int32(id) {
					n++
				}
			}
			if n > 0 || slices.Contains(prompt, int32(id)) {
				if z[id] > 0 {
					z[id] /= p.RepetitionPenalty
				} else {
					z[id] *= p.RepetitionPenalty
				}
			}
			if n > 0 {
				z[id] -= p.FrequencyPenalty*float64(n) + p.PresencePenalty
			}
		}
		order := make([]int, len(z))
		for id := range z {
			z[id] /= p.Temperature
			order[id] = id
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(z[b], z[a]) })
		sum, before := 0.0, 0.0
		for _, id := range order[:p.TopK] {
			sum += math.Exp(z[id])
		}
		for rank, id := range order {
			mass := math.Exp(z[id]) / sum
			if rank >= p.TopK || before >= p.TopP {
				z[id] = math.Inf(-1)
			}
			before += mass
		}
		return z
	}
	everywhere(t, func(t *testing.T, e *Engine) {
		var reqs []Request
		modes := []llm.LogprobsMode{llm.RawLogits, llm.RawLogprobs, llm.ProcessedLogits, llm.ProcessedLogprobs}
		for _, mode := range modes {
			p.LogprobsMode = mode
			reqs = append(reqs, Request{PromptTokenIDs: prompt, Sampling: p})
		}
		outs, err := e.Generate(t.Context(), append(reqs, g.requests()...)...)
		require.NoError(t, err)
		tokens := outs[0].Completions[0].TokenIDs
		for i := range modes {
			require.Equal(t, tokens, outs[i].Completions[0].TokenIDs, "the mode changes no token")
		}
		for at := range tokens {
			value := func(i int) []float64 { return valuesOf(t, outs[i].Completions[0].Logprobs[at], 512) }
			raw := value(0)
			want := processed(raw, tokens[:at])
			near(t, normalized(raw), value(1))
			near(t, want, value(2))
			near(t, normalized(want), value(3))
		}
		for i := range g.Prompts { // the neighbours
			require.Equal(t, g.Prompts[i].Greedy, outs[len(modes)+i].Completions[0].TokenIDs)
		}
		sum := 0.0
		for at, lps := range outs[3].Completions[0].Logprobs {
			sum += valuesOf(t, lps, 512)[tokens[at]]
		}
		assert.InDelta(t, sum, outs[3].Completions[0].CumulativeLogprob, 1e-9)
	})
}
