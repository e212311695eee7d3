package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/llm"
)

// many is a request of n sequences that goes on for long.
func many(client string, n int) Request {
	return Request{
		Client: client, PromptTokenIDs: ids(5, 0),
		Sampling: SamplingParams{N: n, Temperature: 1, MaxTokens: 500, IgnoreEOS: true},
	}
}

// start starts a request that runs until stop.
func start(t *testing.T, e *Engine, q Request) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	rs, err := e.b.start(ctx, []Request{q}, false)
	require.NoError(t, err)
	return func() {
		cancel()
		e.b.abort(rs...)
		<-rs[0].done
	}
}

func heldBy(e *Engine) load {
	c := e.b.(*core)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.loop.reqs.held.total
}

// A client gets at most as much as it leaves free, and a newcomer always finds something.
func TestAdmissionLeavesRoom(t *testing.T) {
	e := openTiny(t, Config{MaxWaitingSeqs: 100})
	_, err := e.Generate(t.Context(), many("greedy", 51))
	var limit *llm.LimitError
	require.ErrorAs(t, err, &limit)
	assert.Equal(t, llm.LimitError{Limit: "MaxWaitingSeqs", Unit: "sequences", Want: 51, Held: 0, Free: 100, Most: 100},
		*limit)
	assert.True(t, limit.Never())
	assert.EqualError(t, err, "engine: MaxWaitingSeqs is 100 sequences: the requests need 51, their client holds 0, 100 are free, and a client leaves as many free as it holds; split them, or raise it")

	stop := start(t, e, many("greedy", 30))
	stop2 := start(t, e, many("greedy", 20))
	_, err = e.Generate(t.Context(), many("greedy", 1))
	require.ErrorAs(t, err, &limit)
	assert.False(t, limit.Never())
	assert.Equal(t, llm.LimitError{Limit: "MaxWaitingSeqs", Unit: "sequences", Want: 1, Held: 50, Free: 50, Most: 100},
		*limit)
	stop3 := start(t, e, many("another", 25))
	_, err = e.Generate(t.Context(), many("", 13))
	require.ErrorAs(t, err, &limit, "a call without a name is a client, too")
	stop4 := start(t, e, many("", 12))
	outs, err := e.Generate(t.Context(), Request{PromptTokenIDs: ids(5, 0)})
	require.NoError(t, err)
	assert.Equal(t, llm.FinishLength, outs[0].Completions[0].FinishReason)

	for _, stop := range []func(){stop, stop2, stop3, stop4} {
		stop()
	}
	assert.Zero(t, heldBy(e), "everything has been counted off")
	stop = start(t, e, many("greedy", 50))
	stop()
	assert.Zero(t, heldBy(e))
}

// Requests that fail between their reservation and their start hold nothing.
func TestRefusedHoldsNothing(t *testing.T) {
	e := openTiny(t, Config{MaxWaitingSeqs: 100})
	for _, reqs := range [][]Request{
		{many("a", 2), {ID: "x", PromptTokenIDs: ids(5, 0)}, {ID: "x", PromptTokenIDs: ids(5, 0)}},
		{many("a", 2), {PromptTokenIDs: []int32{-1}}},
		{many("a", 2), many("b", 60)},
	} {
		_, err := e.Generate(t.Context(), reqs...)
		require.Error(t, err)
		assert.Zero(t, heldBy(e))
	}
}

// The bytes of a request are estimated from its parameters.
func TestAdmissionCountsBytes(t *testing.T) {
	e := openTiny(t, Config{MaxWaitingBytes: 100 << 10})
	_, err := e.Generate(t.Context(), many("", 16384))
	var limit *llm.LimitError
	require.ErrorAs(t, err, &limit)
	assert.Equal(t, "MaxWaitingBytes", limit.Limit)
	assert.True(t, limit.Never())
	outs, err := e.Generate(t.Context(), many("", 4))
	require.NoError(t, err)
	assert.Len(t, outs[0].Completions, 4)
}

// A request of as many sequences as there can be ends with its context, and another client's
// request is answered while it runs.
func TestHugeRequestIsNoBarrier(t *testing.T) {
	e := openTiny(t, Config{})
	stop := start(t, e, many("", 16384))
	for i := range 3 {
		outs, err := e.Generate(t.Context(), Request{PromptTokenIDs: ids(5, i)})
		require.NoError(t, err)
		assert.Equal(t, llm.FinishLength, outs[0].Completions[0].FinishReason)
	}
	assert.Less(t, e.Stats().OutputTokens, int64(16384*500/10), "the huge one has not been served first")
	stop()
	assert.Zero(t, heldBy(e))
	assert.Zero(t, e.Stats().Waiting+e.Stats().Running)
}

// A prompt is refused for its length before it is tokenized, and its context ends the tokenizing.
func TestPromptTooLongForItsBytes(t *testing.T) {
	e, err := Open(t.Context(), Config{Model: fixtures.Bundled()})
	require.NoError(t, err)
	defer func() { assert.NoError(t, e.Shutdown(context.Background())) }()
	_, err = e.Generate(t.Context(), Request{Prompt: strings.Repeat("The lighthouse keeper. ", 1<<19)})
	require.ErrorIs(t, err, llm.ErrPromptTooBig)
	assert.ErrorContains(t, err, "at least ")
	_, err = e.Generate(t.Context(), Request{
		Prompt:   "a",
		Sampling: SamplingParams{BadWords: []string{strings.Repeat("lighthouse", 1<<16)}},
	})
	var p *llm.ParamError
	require.ErrorAs(t, err, &p)
	assert.Equal(t, "BadWords[0]", p.Field)
	_, err = e.Generate(t.Context(), Request{
		Prompt:   "a",
		Sampling: SamplingParams{AllowedTokenIDs: make([]int32, 1<<20)},
	})
	require.ErrorAs(t, err, &p)
	assert.Equal(t, "AllowedTokenIDs", p.Field)
}

// The refusal of a core in a child process is the same value.
func TestLimitErrorCrosses(t *testing.T) {
	want := &llm.LimitError{Limit: "MaxWaitingSeqs", Unit: "sequences", Want: 51, Free: 100, Most: 100}
	got := pack(fmt.Errorf("x: %w", want)).unpack()
	var limit *llm.LimitError
	require.ErrorAs(t, got, &limit)
	assert.Equal(t, want, limit)
}
