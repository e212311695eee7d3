package engine

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inParity lets only even or only odd tokens out, by turns, and prefers those that came.
func inParity(prompt, output []int32, logits []float32) ([]float32, error) {
	for id := range logits {
		if id%2 != (len(prompt)+len(output))%2 {
			logits[id] = float32(math.Inf(-1))
		}
	}
	for _, id := range output {
		logits[id] += 0.25
	}
	return logits, nil
}

// A processor's tokens are those of the same computation over raw logits, in float64, alone and
// among neighbours whose tokens it does not change, on one device and on two, with drafts and in
// chunks.
func TestLogitsProcessors(t *testing.T) {
	g := loadGolden(t)
	for name, cfg := range map[string]Config{
		"one device":         {},
		"chunks of 7 tokens": {MaxNumBatchedTokens: 7},
		"two devices":        {TensorParallel: 2, Device: "cpu"},
		"speculative":        {Speculative: Speculative{NumTokens: 3, PromptLookupMin: 1}},
		"preemption":         {MaxModelLen: 160, KVCacheBytes: 20 * 16 * 1024},
	} {
		t.Run(name, func(t *testing.T) {
			e := openTiny(t, cfg)
			q := Request{PromptTokenIDs: g.Prompts[5].IDs, Sampling: SamplingParams{
				MaxTokens: 20, IgnoreEOS: true, Logprobs: ptr(-1), LogprobsMode: llm.RawLogits,
				LogitsProcessors: []llm.LogitsProcessor{inParity},
			}}
			alone, err := e.Generate(t.Context(), q)
			require.NoError(t, err)
			c := alone[0].Completions[0]
			for at, lps := range c.Logprobs {
				raw := valuesOf(t, lps, 512)
				for _, id := range c.TokenIDs[:at] {
					raw[id] += 0.25
				}
				best := -1
				for id, x := range raw {
					if id%2 == (len(q.PromptTokenIDs)+at)%2 && (best < 0 || x > raw[best]) {
						best = id
					}
				}
				require.Equal(t, int32(best), c.TokenIDs[at])
			}
			outs, err := e.Generate(t.Context(), append(g.requests(), q, q)...)
			require.NoError(t, err)
			for i, p := range g.Prompts {
				assert.Equal(t, p.Greedy, outs[i].Completions[0].TokenIDs, "a neighbour")
			}
			for _, o := range outs[len(g.Prompts):] {
				assert.Equal(t, c.TokenIDs, o.Completions[0].TokenIDs, "in a batch")
			}
		})
	}
}

// A processor that fails ends its request alone, with a typed error; neighbours get their tokens,
// and the engine serves on.
func TestLogitsProcessorsThatFail(t *testing.T) {
	g := loadGolden(t)
	cause := errors.New("of its own")
	for name, bad := range map[string]llm.LogitsProcessor{
		"an error":           func(_, _ []int32, l []float32) ([]float32, error) { return l, cause },
		"a panic":            func(_, _ []int32, _ []float32) ([]float32, error) { panic("boom") },
		"a wrong shape":      func(_, _ []int32, l []float32) ([]float32, error) { return l[:3], nil },
		"an ended goroutine": func(_, _ []int32, l []float32) ([]float32, error) { runtime.Goexit(); return l, nil },
	} {
		for _, devices := range []int{1, 2} {
			t.Run(name, func(t *testing.T) {
				e := openTiny(t, Config{TensorParallel: devices, Device: "cpu"})
				late := func(prompt, output []int32, logits []float32) ([]float32, error) {
					if len(output) == 5 {
						return bad(prompt, output, logits)
					}
					return logits, nil
				}
				reqs := g.requests()
				reqs[3].ID, reqs[3].Sampling.LogitsProcessors = "bad", []llm.LogitsProcessor{late}
				outs, err := e.Generate(t.Context(), reqs...)
				var failed *llm.ProcessorError
				require.ErrorAs(t, err, &failed)
				assert.Equal(t, []int{0, 5}, []int{failed.Index, failed.Token})
				assert.ErrorContains(t, err, "request bad: LogitsProcessors[0] at token 5 of the output: ")
				assert.NotErrorIs(t, err, llm.ErrEngineDead)
				for i, p := range g.Prompts {
					c := outs[i].Completions[0]
					if i == 3 {
						assert.Equal(t, llm.FinishError, c.FinishReason)
						assert.Equal(t, p.Greedy[:5], c.TokenIDs)
						continue
					}
					assert.Equal(t, p.Greedy, c.TokenIDs, "a neighbour")
				}
				g.check(t, e)
			})
		}
	}
}

func TestLogitsProcessorsAreRefused(t *testing.T) {
	same := func(_, _ []int32, l []float32) ([]float32, error) { return l, nil }
	q := Request{PromptTokenIDs: ids(3, 0), Sampling: SamplingParams{LogitsProcessors: []llm.LogitsProcessor{same, nil}}}
	_, err := openTiny(t, Config{}).Generate(t.Context(), q)
	var param *llm.ParamError
	require.ErrorAs(t, err, &param)
	assert.Equal(t, "LogitsProcessors[1]", param.Field)
	if runtime.GOOS != "linux" {
		return // no child core
	}
	q.Sampling.LogitsProcessors = []llm.LogitsProcessor{same}
	e := openTiny(t, Config{Core: ChildProcess})
	_, err = e.Generate(t.Context(), Request{PromptTokenIDs: ids(3, 0)}, q)
	var not *llm.UnsupportedError
	require.ErrorAs(t, err, &not)
	assert.Equal(t, "LogitsProcessors", not.Field)
	assert.ErrorIs(t, err, llm.ErrUnsupported)
	assert.ErrorContains(t, err, "request 2 of 2: ")
	for _, err := range e.Stream(t.Context(), q) {
		assert.ErrorIs(t, err, llm.ErrUnsupported)
	}
	loadGolden(t).check(t, e)
}

// A processor is not kept: neither by an engine that goes on after its request, however it ended,
// nor by one that was shut down.
func TestLogitsProcessorsAreNotKept(t *testing.T) {
	for name, use := range map[string]func(t *testing.T, e *Engine, q Request){
		"answered": func(t *testing.T, e *Engine, q Request) {
			_, err := e.Generate(t.Context(), q)
			require.NoError(t, err)
		},
		"aborted": func(t *testing.T, e *Engine, q Request) {
			q.Sampling.MaxTokens = 2000
			for _, err := range e.Stream(t.Context(), q) {
				require.NoError(t, err)
				break
			}
		},
		"failed": func(t *testing.T, e *Engine, q Request) {
			bad := func(_, _ []int32, _ []float32) ([]float32, error) { panic("boom") }
			q.Sampling.LogitsProcessors = append(slices.Clone(q.Sampling.LogitsProcessors), bad)
			_, err := e.Generate(t.Context(), q)
			require.Error(t, err)
		},
		"shut down": func(t *testing.T, e *Engine, q Request) {
			_, err := e.Generate(t.Context(), q)
			require.NoError(t, err)
			require.NoError(t, e.Shutdown(t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := openTiny(t, Config{})
			run := func() *leakcheck.Ref {
				calls := make([]int, 0, 100)
				count := func(_, output []int32, l []float32) ([]float32, error) {
					calls = append(calls, len(output))
					return l, nil
				}
				use(t, e, Request{PromptTokenIDs: ids(20, 0), Sampling: SamplingParams{
					MaxTokens: 4, IgnoreEOS: true, LogitsProcessors: []llm.LogitsProcessor{count},
				}})
				return leakcheck.Track("processor", count)
			}
			ref := run()
			require.Eventually(t, func() bool { return ref.Released(t.Context()) == nil },
				time.Minute, time.Millisecond)
			runtime.KeepAlive(e)
		})
	}
}
