package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/llm"
)

// A nil context is its caller's mistake: the engine serves the others on.
func TestNilContext(t *testing.T) {
	var none context.Context
	_, err := Open(none, Config{Model: fixtures.Bundled()})
	assert.EqualError(t, err, "engine: ctx is <nil>, must be a context, context.Background() at least")
	for _, core := range []Core{InProcess, ChildProcess} {
		e, err := Open(t.Context(), Config{Model: fixtures.Bundled(), Core: core})
		require.NoError(t, err)
		for name, call := range map[string]func() error{
			"Generate": func() error { _, err := e.Generate(none, Request{Prompt: "x"}); return err },
			"Stream": func() error {
				for _, err := range e.Stream(none, Request{Prompt: "x"}) {
					return err
				}
				return nil
			},
			"ResetPrefixCache": func() error { return e.ResetPrefixCache(none) },
			"Sleep":            func() error { return e.Sleep(none, 1) },
			"Wake":             func() error { return e.Wake(none) },
			"Drain":            func() error { return e.Drain(none) },
			"Shutdown":         func() error { return e.Shutdown(none) },
		} {
			var bad *llm.ParamError
			require.ErrorAs(t, call(), &bad, "%s, %s", name, core)
			assert.Equal(t, "ctx", bad.Field)
		}
		_, err = e.Generate(t.Context(), Request{Prompt: "x"})
		assert.NoError(t, err, core)
		assert.NoError(t, e.Shutdown(t.Context()))
	}
}

func TestAContextThatEndsOpenIsNamedOnce(t *testing.T) {
	_, err := Open(t.Context(), Config{Model: "m", StartTimeout: time.Nanosecond})
	assert.EqualError(t, err,
		"opening m: the engine has not started within Config.StartTimeout (1ns): context deadline exceeded")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Open(ctx, Config{Model: "m"})
	assert.EqualError(t, err, "opening m: context canceled")
}

func TestTheCauseOfAContextsEndIsTold(t *testing.T) {
	for _, core := range []Core{InProcess, ChildProcess} {
		e, err := Open(t.Context(), Config{Model: fixtures.Bundled(), Core: core})
		require.NoError(t, err)
		ctx, cancel := context.WithCancelCause(t.Context())
		context.AfterFunc(endsWhen(t, func() bool { s := e.Stats(); return s.Running+s.Waiting == 4 }),
			func() { cancel(errors.New("the lamp went out")) })
		long := Request{Prompt: "The lighthouse", Sampling: SamplingParams{MaxTokens: 1000, IgnoreEOS: true}}
		_, err = e.Generate(ctx, long, long, long, long)
		assert.ErrorIs(t, err, context.Canceled)
		assert.ErrorContains(t, err, "4 of 4 requests aborted")
		assert.ErrorContains(t, err, ": context canceled: the lamp went out")
		_, err = e.Generate(ctx, long)
		assert.EqualError(t, err, "engine: not started: context canceled: the lamp went out")
		require.NoError(t, e.Shutdown(t.Context()))
	}
}
