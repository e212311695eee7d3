//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var cores = []Core{InProcess, ChildProcess}

// Whatever is asked, a core in a child answers what one in this process does.
func TestChildGivesTheSame(t *testing.T) {
	text := func(prompt string, p SamplingParams) []Request { return []Request{{Prompt: prompt, Sampling: p}} }
	nan := []Request{{PromptTokenIDs: ids(3, 0)}, {PromptTokenIDs: ids(3, 0), Sampling: SamplingParams{TopP: 7}}}
	for _, row := range []struct {
		name string
		reqs []Request
	}{
		{"text", text("The lighthouse", SamplingParams{MaxTokens: 20})},
		{"several, by id and by text", []Request{
			{ID: "a", PromptTokenIDs: ids(5, 0)},
			{ID: "b", Prompt: "2+3="},
			{PromptTokenIDs: ids(50, 3)},
		}},
		{"three outputs with a seed of zero", text("Once",
			SamplingParams{N: 3, Temperature: 1, Seed: ptr(int64(0)), MaxTokens: 12})},
		{"drawn without a seed", text("Once", SamplingParams{Temperature: 1, MaxTokens: 12})},
		{
			"no logprobs but the sampled one: a pointer to zero",
			text("2+3=", SamplingParams{Logprobs: ptr(0), PromptLogprobs: ptr(0)}),
		},
		{"all logprobs", text("2+3=", SamplingParams{Logprobs: ptr(-1), PromptLogprobs: ptr(2), MaxTokens: 3})},
		{"a stop string", text("The lighthouse", SamplingParams{
			Stop: []string{" the"}, MaxTokens: 60,
			IncludeStopInOutput: true,
		})},
		{"special tokens kept", text("2+3=", SamplingParams{SkipSpecialTokens: ptr(false)})},
		{"bias, bad words, penalties", text("The", SamplingParams{
			LogitBias: map[int32]float64{5: 2, 6: -3}, BadWords: []string{"the"}, RepetitionPenalty: 1.2,
			StopTokenIDs: []int32{9},
		})},
		{"an empty text", text("", SamplingParams{})},
		{"bytes that are no text", text("a\xff\xfe", SamplingParams{MaxTokens: 3})},
		{"no tokens", []Request{{PromptTokenIDs: []int32{}}}},
		{"a bad token", []Request{{PromptTokenIDs: []int32{1, -7}}}},
		{"the second is bad", nan},
		{"nothing allowed", text("x", SamplingParams{AllowedTokenIDs: []int32{}})},
		{"a temperature that is no number", text("x", SamplingParams{Temperature: nanValue()})},
		{"N out of range", text("x", SamplingParams{N: 1 << 40, Temperature: 1})},
		{"too long", []Request{{PromptTokenIDs: ids(5000, 0)}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var outs [2][]Output
			var errs [2]error
			var streams [2]string
			for i, core := range cores {
				e := openTiny(t, Config{Model: fixtures.Bundled(), Core: core})
				outs[i], errs[i] = e.Generate(t.Context(), row.reqs...)
				text := map[int]string{}
				for d, err := range e.Stream(t.Context(), row.reqs[0]) {
					text[d.Index] += fmt.Sprint(d.Text, d.TokenIDs, d.Logprobs, d.FinishReason, d.StopReason)
					if err != nil {
						text[-1] = err.Error()
					}
				}
				streams[i] = fmt.Sprint(text)
				want, err := e.Encode("The lighthouse")
				require.NoError(t, err)
				back, err := e.Decode(want)
				require.NoError(t, err)
				assert.Equal(t, "The lighthouse", strings.TrimSpace(back))
			}
			assert.Equal(t, outs[0], outs[1])
			assert.Equal(t, streams[0], streams[1])
			if errs[0] == nil {
				assert.NoError(t, errs[1])
				return
			}
			require.Error(t, errs[1])
			assert.Equal(t, errs[0].Error(), errs[1].Error())
			var p, q *llm.ParamError
			assert.Equal(t, errors.As(errs[0], &p), errors.As(errs[1], &q))
			if p != nil {
				// NaN is not equal to itself
				assert.Equal(t, fmt.Sprintf("%T %v", p.Value, p), fmt.Sprintf("%T %v", q.Value, q))
			}
			assert.Equal(t, errors.Is(errs[0], llm.ErrPromptTooBig), errors.Is(errs[1], llm.ErrPromptTooBig))
		})
	}
}

func nanValue() float64 { z := 0.0; return z / z }

// Abort, cancelled contexts, streams that are left, drains and resets do in a child what they do
// here.
func TestChildEndsRequests(t *testing.T) {
	e := openTiny(t, Config{Model: fixtures.Bundled(), Core: ChildProcess})
	req := Request{ID: "x", PromptTokenIDs: ids(5, 0), Sampling: SamplingParams{MaxTokens: e.Config().MaxModelLen - 5, IgnoreEOS: true}}

	got := make(chan []Output)
	go func() { outs, err := e.Generate(context.Background(), req); assert.NoError(t, err); got <- outs }()
	require.Eventually(t, func() bool { return e.Stats().Running == 1 }, time.Minute, time.Millisecond)
	assert.ErrorIs(t, e.ResetPrefixCache(t.Context()), llm.ErrBlocksInUse)
	_, err := e.Generate(t.Context(), req)
	assert.ErrorContains(t, err, `ID is "x", must be unique`)
	assert.True(t, e.Abort("x"))
	assert.False(t, e.Abort("nobody"))
	assert.Equal(t, llm.FinishAbort, (<-got)[0].Completions[0].FinishReason)

	for range e.Stream(t.Context(), req) {
		break
	}
	require.Eventually(t, func() bool { return e.Stats().Running == 0 }, time.Minute, time.Millisecond)
	_, err = e.Generate(endsWhen(t, func() bool { return e.Stats().Running == 1 }), req)
	assert.ErrorIs(t, err, context.Canceled)
	require.Eventually(t, func() bool { return e.ResetPrefixCache(t.Context()) == nil }, time.Minute, time.Millisecond)
	assert.Equal(t, 3, e.Stats().Aborted)

	go func() { outs, _ := e.Generate(context.Background(), req); got <- outs }()
	require.Eventually(t, func() bool { return e.Stats().Running == 1 }, time.Minute, time.Millisecond)
	why := errors.New("enough")
	ctx, end := context.WithCancelCause(t.Context())
	drained := make(chan error)
	go func() { drained <- e.Drain(ctx) }()
	require.Eventually(t, func() bool { return e.State() == Draining }, time.Minute, time.Millisecond)
	_, err = e.Generate(t.Context(), req)
	assert.ErrorIs(t, err, llm.ErrDraining)
	end(why)
	err = <-drained
	assert.ErrorIs(t, err, why)
	assert.ErrorContains(t, err, "1 of 1 requests aborted")
	assert.Equal(t, llm.FinishAbort, (<-got)[0].Completions[0].FinishReason)
	assert.Equal(t, err, e.Drain(t.Context()))
	require.NoError(t, e.Shutdown(t.Context()))
	assert.Equal(t, []string{"drain", "abort", "release", "exit", "reap"}, names(e.ShutdownReport()))
}

func TestChildShutdown(t *testing.T) {
	e := openTiny(t, Config{Core: ChildProcess})
	require.Len(t, e.PIDs(), 1)
	require.NotEmpty(t, e.Holdings())
	req := Request{PromptTokenIDs: ids(5, 0), Sampling: SamplingParams{MaxTokens: 1000, IgnoreEOS: true}}
	got := make(chan error)
	go func() {
		outs, err := e.Generate(context.Background(), req)
		assert.Len(t, outs, 1)
		assert.Equal(t, llm.FinishAbort, outs[0].Completions[0].FinishReason)
		assert.NotEmpty(t, outs[0].Completions[0].TokenIDs)
		got <- err
	}()
	require.Eventually(t, func() bool { return e.Stats().OutputTokens > 3 }, time.Minute, time.Millisecond)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { assert.NoError(t, e.Shutdown(context.Background())) })
	}
	wg.Wait()
	assert.ErrorIs(t, <-got, llm.ErrStopped)
	assert.Empty(t, e.PIDs())
	assert.Empty(t, e.Holdings())
	assert.Equal(t, 1, e.Stats().Aborted)
	assert.ErrorIs(t, e.Err(), llm.ErrStopped)
	_, err := e.Generate(t.Context(), req)
	assert.ErrorIs(t, err, llm.ErrStopped)
	_, err = e.Encode("x")
	assert.ErrorIs(t, err, llm.ErrStopped)
	assert.ErrorIs(t, e.ResetPrefixCache(t.Context()), llm.ErrStopped)
	assert.False(t, e.Abort("x"))
}

func TestChildSleeps(t *testing.T) {
	e := openTiny(t, Config{Device: "cpu", Core: ChildProcess})
	var p *llm.ParamError
	assert.ErrorAs(t, e.Sleep(t.Context(), 9), &p)
	before := one(t, e, ids(5, 0), SamplingParams{MaxTokens: 8})
	for level := 1; level <= 2; level++ {
		held := ledger.ByOwner(e.Holdings())
		require.NoError(t, e.Sleep(t.Context(), level))
		assert.Equal(t, Sleeping, e.State())
		assert.Zero(t, ledger.ByOwner(e.Holdings())["kv_cache"])
		_, err := e.Generate(t.Context(), Request{PromptTokenIDs: ids(5, 0)})
		assert.ErrorIs(t, err, llm.ErrSleeping)
		require.NoError(t, e.Wake(t.Context()))
		assert.Equal(t, held, ledger.ByOwner(e.Holdings()))
		assert.Equal(t, before, one(t, e, ids(5, 0), SamplingParams{MaxTokens: 8}))
	}
	require.NoError(t, e.Sleep(t.Context(), 1))
	assert.NoError(t, e.Shutdown(t.Context()), "from its sleep")
}

// Lives of child cores leave no descriptor, no goroutine (TestMain looks) and no process.
func TestChildCyclesLeaveNothing(t *testing.T) {
	cycle := func() {
		e, err := Open(t.Context(), Config{Model: tinyLlama, Logger: quiet, Core: ChildProcess})
		require.NoError(t, err)
		one(t, e, []int32{306}, SamplingParams{MaxTokens: 1})
		require.NoError(t, e.Shutdown(t.Context()))
	}
	cycle()
	files := fds(t)
	for range 10 {
		cycle()
	}
	assert.LessOrEqual(t, fds(t), files)
	var status syscall.WaitStatus
	_, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
	assert.ErrorIs(t, err, syscall.ECHILD)
}
