package engine

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/scheduler/fakerunner"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var long = SamplingParams{MaxTokens: 900, IgnoreEOS: true}

// idle waits until the loop has done what was posted, and checks that nothing runs or holds a
// block.
func idle(t *testing.T, e *Engine) Stats {
	t.Helper()
	require.NoError(t, e.ResetPrefixCache(t.Context()), "no block is in use")
	s := e.Stats()
	assert.Zero(t, s.Running+s.Waiting+s.KVBlocksUsed)
	return s
}

func TestCancelFreesBlocks(t *testing.T) {
	for name, cfg := range map[string]Config{
		"while it decodes":           {Model: "fake"},
		"in the middle of a prompt":  {Model: "fake", MaxNumBatchedTokens: 1},
		"while it waits for another": {Model: "fake", MaxNumSeqs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := openFake(t, cfg, slowRunner(5*time.Millisecond), false)
			ctx := endsWhen(t, func() bool {
				s := e.Stats()
				return s.Running+s.Waiting == 2 && s.Steps > 3
			})
			reqs := []Request{
				{PromptTokenIDs: ids(200, 0), Sampling: long},
				{PromptTokenIDs: ids(200, 7), Sampling: long},
			}
			outs, err := e.Generate(ctx, reqs...)
			assert.Nil(t, outs)
			assert.ErrorIs(t, err, context.Canceled)
			assert.Regexp(t, `^engine: 2 of 2 requests aborted after [\d.]+m?s, the first of them [\w-]+: context canceled$`, err.Error())
			assert.Equal(t, 2, idle(t, e).Aborted)
		})
	}
}

func TestStreamThatIsLeft(t *testing.T) {
	e := openFake(t, Config{Model: "fake"}, slowRunner(5*time.Millisecond), false)
	n := 0
	for d, err := range e.Stream(t.Context(), Request{PromptTokenIDs: ids(20, 0), Sampling: long}) {
		require.NoError(t, err)
		n += len(d.TokenIDs)
		if n >= 3 {
			break
		}
	}
	assert.Equal(t, 1, idle(t, e).Aborted)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range e.Stream(ctx, Request{PromptTokenIDs: ids(20, 0), Sampling: long}) {
		cancel()
		last = err
	}
	assert.ErrorIs(t, last, context.Canceled)
	assert.Equal(t, 2, idle(t, e).Aborted)
}

// A stream's loop body that panics aborts the request too.
func TestStreamBodyThatPanics(t *testing.T) {
	e := openFake(t, Config{Model: "fake"}, slowRunner(5*time.Millisecond), false)
	assert.Panics(t, func() {
		for range e.Stream(t.Context(), Request{PromptTokenIDs: ids(20, 0), Sampling: long}) {
			panic("in the loop body")
		}
	})
	assert.Equal(t, 1, idle(t, e).Aborted)
}

func TestAbort(t *testing.T) {
	e := openFake(t, Config{Model: "fake"}, slowRunner(5*time.Millisecond), false)
	go func() {
		for e.Stats().OutputTokens < 5 {
			time.Sleep(100 * time.Microsecond)
		}
		assert.True(t, e.Abort("mine"))
	}()
	outs, err := e.Generate(t.Context(), Request{ID: "mine", PromptTokenIDs: ids(20, 0), Sampling: long},
		Request{PromptTokenIDs: ids(20, 5)})
	require.NoError(t, err)
	assert.Equal(t, "mine", outs[0].RequestID)
	assert.Equal(t, llm.FinishAbort, outs[0].Completions[0].FinishReason)
	assert.NotEmpty(t, outs[0].Completions[0].TokenIDs)
	assert.Equal(t, llm.FinishLength, outs[1].Completions[0].FinishReason)
	assert.Equal(t, "request-2", outs[1].RequestID)
	assert.False(t, e.Abort("mine"), "it is over")
	idle(t, e)
}

func TestAllAreCheckedBeforeAnyStarts(t *testing.T) {
	e := openFake(t, Config{Model: "fake"}, &fakerunner.Runner{}, false)
	ok := Request{PromptTokenIDs: ids(3, 0)}
	for _, tc := range []struct {
		name string
		req  Request
		is   error
		want string
	}{
		{
			"a parameter",
			Request{PromptTokenIDs: ids(3, 0), Sampling: SamplingParams{TopP: 7}},
			nil,
			"request 2 of 2: engine: TopP is 7, must be in (0, 1] (0 is off)",
		},
		{
			"a request with a name",
			Request{ID: "b", PromptTokenIDs: ids(3, 0), Sampling: SamplingParams{TopP: 7}},
			nil,
			"request b: engine: TopP is 7, must be in (0, 1] (0 is off)",
		},
		{
			"an id outside the vocabulary",
			Request{PromptTokenIDs: []int32{1, 64}},
			nil,
			"request 2 of 2: engine: PromptTokenIDs[1] is 64, must be a token id in [0, 64)",
		},
		{
			"an empty prompt",
			Request{PromptTokenIDs: []int32{}},
			nil,
			"request 2 of 2: engine: the prompt is empty, must be at least one token",
		},
		{"a prompt that is too long", Request{PromptTokenIDs: ids(1024, 0)}, llm.ErrPromptTooBig, "request 2 of 2: engine: prompt does not fit: 1024 tokens, at most 1023 with MaxModelLen 1024 and one token of output"},
		{"a text without a tokenizer", Request{Prompt: "x"}, llm.ErrNoTokenizer, "request 2 of 2: engine: no tokenizer: fake has no tokenizer.json; a text prompt needs one, PromptTokenIDs do not"},
		{
			"an ID twice",
			Request{ID: "a", PromptTokenIDs: ids(3, 0)},
			nil,
			`engine: ID is "a", must be unique among the requests that have not finished`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ok.ID = "a"
			_, err := e.Generate(t.Context(), ok, tc.req)
			assert.EqualError(t, err, tc.want)
			if tc.is != nil {
				assert.ErrorIs(t, err, tc.is)
			} else {
				var p *llm.ParamError
				assert.ErrorAs(t, err, &p)
			}
		})
	}
	assert.Zero(t, e.Stats().Steps)
	outs, err := e.Generate(t.Context())
	assert.NoError(t, err)
	assert.Empty(t, outs)
	assert.Len(t, one(t, e, ids(1023, 0), long).TokenIDs, 1, "MaxModelLen ends it")
	assert.Len(t, one(t, e, ids(1000, 0), SamplingParams{MaxTokens: math.MaxInt, IgnoreEOS: true}).TokenIDs, 24)
}

func TestEOS(t *testing.T) {
	const eos = 2
	e := openFake(t, Config{Model: "fake"}, &fakerunner.Runner{Vocab: 4}, false) // EOS is one of four tokens
	c := one(t, e, []int32{1}, SamplingParams{MaxTokens: 200})
	assert.Equal(t, llm.FinishStop, c.FinishReason)
	assert.Empty(t, c.StopReason)
	assert.Equal(t, int32(eos), c.TokenIDs[len(c.TokenIDs)-1])
	assert.NotContains(t, c.TokenIDs[:len(c.TokenIDs)-1], int32(eos))

	c = one(t, e, []int32{1}, SamplingParams{MaxTokens: 200, MinTokens: 50})
	assert.Equal(t, llm.FinishStop, c.FinishReason)
	assert.Greater(t, len(c.TokenIDs), 50)

	c = one(t, e, []int32{1}, SamplingParams{MaxTokens: 200, IgnoreEOS: true})
	assert.Len(t, c.TokenIDs, 200)
	assert.Contains(t, c.TokenIDs, int32(eos))
	assert.Equal(t, llm.FinishLength, c.FinishReason)
}

func TestResetPrefixCache(t *testing.T) {
	e := openFake(t, Config{Model: "fake"}, slowRunner(5*time.Millisecond), false)
	for range e.Stream(t.Context(), Request{PromptTokenIDs: ids(40, 0), Sampling: long}) {
		err := e.ResetPrefixCache(t.Context())
		assert.ErrorIs(t, err, llm.ErrBlocksInUse)
		assert.ErrorContains(t, err, "engine: prefix cache not reset: kvcache: ")
		assert.ErrorContains(t, err, " of 512 blocks are in use")
		break
	}
	require.NoError(t, e.ResetPrefixCache(t.Context()), "leaving the stream has aborted the request first")
	first := one(t, e, ids(40, 0), SamplingParams{MaxTokens: 1})
	hit, err := e.Generate(t.Context(), Request{PromptTokenIDs: ids(40, 0), Sampling: SamplingParams{MaxTokens: 1}})
	require.NoError(t, err)
	assert.Equal(t, 32, hit[0].CachedTokens)
	assert.Equal(t, first.TokenIDs, hit[0].Completions[0].TokenIDs)
	require.NoError(t, e.ResetPrefixCache(t.Context()))
	miss, err := e.Generate(t.Context(), Request{PromptTokenIDs: ids(40, 0), Sampling: SamplingParams{MaxTokens: 1}})
	require.NoError(t, err)
	assert.Zero(t, miss[0].CachedTokens)
}

// n outputs share the prompt's computation, and are streamed side by side.
func TestManyOutputs(t *testing.T) {
	var prefill int
	r := &fakerunner.Runner{OnExecute: func(b *modelrunner.Batch) error {
		for _, s := range b.Seqs {
			if s.Len > 1 {
				prefill += s.Len
			}
		}
		return nil
	}}
	e := openFake(t, Config{Model: "fake"}, r, false)
	profile := prefill
	p := SamplingParams{MaxTokens: 10, N: 4, Temperature: 1, IgnoreEOS: true, Seed: ptr(int64(3))}
	outs, err := e.Generate(t.Context(), Request{PromptTokenIDs: ids(33, 0), Sampling: p})
	require.NoError(t, err)
	assert.Equal(t, 33, prefill-profile, "the prompt is computed once")
	var streamed [4][]int32
	for d, err := range e.Stream(t.Context(), Request{PromptTokenIDs: ids(33, 0), Sampling: p}) {
		require.NoError(t, err)
		streamed[d.Index] = append(streamed[d.Index], d.TokenIDs...)
	}
	for i, c := range outs[0].Completions {
		assert.Equal(t, i, c.Index)
		assert.Len(t, c.TokenIDs, 10)
		assert.Equal(t, c.TokenIDs, streamed[i])
	}
	assert.NotEqual(t, streamed[0], streamed[1])
}

// What a caller does to the slices that it gave or got changes nothing.
func TestCallersOwnTheirSlices(t *testing.T) {
	e := openFake(t, Config{Model: "fake"}, slowRunner(100*time.Microsecond), false)
	want := one(t, e, ids(20, 0), SamplingParams{MaxTokens: 50, IgnoreEOS: true}).TokenIDs
	require.NoError(t, e.ResetPrefixCache(t.Context()))
	prompt := ids(20, 0)
	var got []int32
	for d, err := range e.Stream(t.Context(), Request{
		PromptTokenIDs: prompt,
		Sampling:       SamplingParams{MaxTokens: 50, IgnoreEOS: true},
	}) {
		require.NoError(t, err)
		got = append(got, d.TokenIDs...)
		clear(prompt)
		clear(d.TokenIDs)
	}
	assert.Equal(t, want, got)

	outs, err := e.Generate(t.Context(), Request{
		PromptTokenIDs: append(ids(20, 0), got...),
		Sampling:       SamplingParams{MaxTokens: 1},
	})
	require.NoError(t, err)
	assert.Equal(t, 64, outs[0].CachedTokens, "the prefix cache knows the tokens as they were")

	prompt = ids(20, 0)
	outs, err = e.Generate(t.Context(), Request{PromptTokenIDs: prompt})
	require.NoError(t, err)
	clear(prompt)
	assert.Equal(t, ids(20, 0), outs[0].PromptTokenIDs)
}

// A runner that panics in Close is an error of the shutdown, and its memory a leak.
func TestCloseThatFails(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("the driver is gone") },
		"panic": func() error { panic("the driver is gone") },
	} {
		t.Run(name, func(t *testing.T) {
			e, err := open(t.Context(), Config{Model: "fake"}, fakeLoader(&fakerunner.Runner{OnClose: fail}, false))
			require.NoError(t, err)
			err = e.Shutdown(t.Context())
			assert.ErrorContains(t, err, "the driver is gone")
			var leak *LeakError
			require.ErrorAs(t, err, &leak)
			assert.Equal(t, "kv_cache", leak.Holdings[0].Owner)
			assert.ErrorContains(t, err, "set Config.RecordStacks")
			assert.Equal(t, Stopped, e.State())
		})
	}
}
