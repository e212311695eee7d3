package engine_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/llm"
)

// StreamAll is Generate step by step: the same tokens, also of requests without a seed, whose draws
// follow from their number.
func TestStreamAll(t *testing.T) {
	for _, core := range []engine.Core{engine.InProcess, engine.ChildProcess} {
		t.Run(core.String(), func(t *testing.T) {
			open := func() *engine.Engine {
				e, err := engine.Open(t.Context(), engine.Config{Model: fixtures.Bundled(), Device: "cpu", Core: core})
				require.NoError(t, err)
				t.Cleanup(func() { assert.NoError(t, e.Shutdown(context.Background())) })
				return e
			}
			var reqs []engine.Request
			for _, prompt := range []string{"The lighthouse", "Once upon a time", "2+3="} {
				reqs = append(reqs, engine.Request{
					Prompt: prompt, Sampling: engine.SamplingParams{N: 2, MaxTokens: 12, Temperature: 1},
				})
			}
			outs, err := open().Generate(t.Context(), reqs...)
			require.NoError(t, err)
			e := open()
			type key struct{ request, choice int }
			tokens, ended := map[key][]int32{}, map[key]llm.FinishReason{}
			for d, err := range e.StreamAll(t.Context(), reqs...) {
				require.NoError(t, err)
				k := key{d.Request, d.Index}
				tokens[k] = append(tokens[k], d.TokenIDs...)
				ended[k] += d.FinishReason
			}
			for i, out := range outs {
				for _, c := range out.Completions {
					assert.Equal(t, c.TokenIDs, tokens[key{i, c.Index}])
					assert.Equal(t, c.FinishReason, ended[key{i, c.Index}])
				}
			}

			reqs[2].Sampling.TopP = 2
			for _, err := range e.StreamAll(t.Context(), reqs...) {
				assert.ErrorContains(t, err, "request 3 of 3: engine: TopP is 2")
			}
			assert.Equal(t, 3, e.Stats().Finished, "none was started")
			for range e.StreamAll(t.Context()) {
				assert.Fail(t, "no request has a step")
			}

			reqs[2].Sampling = engine.SamplingParams{MaxTokens: 900, IgnoreEOS: true}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for _, err := range e.StreamAll(ctx, reqs[2], reqs[2]) {
				cancel()
				if err != nil {
					assert.ErrorIs(t, err, context.Canceled)
				}
			}
			for range e.StreamAll(t.Context(), reqs[2], reqs[2]) {
				break
			}
			require.NoError(t, e.Drain(t.Context()))
			st := e.Stats()
			assert.Equal(t, []int{0, 0, 0}, []int{st.Running, st.Waiting, st.KVBlocksUsed})
		})
	}
}
