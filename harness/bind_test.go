package harness_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/internal/faketb"
	"github.com/enginetest/enginetest/llm"
)

// oddSleeper has Sleep with another signature.
type oddSleeper struct{ remote }

func (oddSleeper) Sleep(int) error { return nil }

func TestWithBindsVerbsToASubtest(t *testing.T) {
	var inner []string
	outer := faketb.Run(func(ft *faketb.T) {
		r := harness.Start(ft, openToy, noGPU...)
		inner = faketb.Run(func(sub *faketb.T) {
			sub.TestName = "TestPlanted/sub"
			r.With(sub).GenerateGreedy("", 1) // an empty prompt: the toy refuses it
		})
		assert.Equal(t, "still there", r.GenerateGreedy("still there", 4).Text)
	})
	require.Len(t, inner, 1)
	assert.Contains(t, inner[0], "empty prompt")
	assert.Empty(t, outer, "the owner goes on and passes")
}

// slow answers when its context ends.
type slow struct{ started chan struct{} }

func (s *slow) Generate(ctx context.Context, _ ...llm.Request) ([]llm.Output, error) {
	s.started <- struct{}{}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (*slow) Shutdown(context.Context) error { return nil }

func TestWithContextEndsVerbs(t *testing.T) {
	r := harness.Start(t, func(context.Context) (*slow, error) { return &slow{make(chan struct{}, 2)}, nil }, noGPU...)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-harness.EngineOf[*slow](r).started
		cancel()
	}()
	_, err := r.WithContext(ctx).TryGenerate(llm.Request{Prompt: "x"})
	require.ErrorIs(t, err, context.Canceled)

	past, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	assert.NoError(t, r.WithContext(past).Stop().Err(), "the teardown has time of its own")
}

func TestEngineOf(t *testing.T) {
	failures := faketb.Run(func(ft *faketb.T) {
		r := harness.Start(ft, openToy, noGPU...)
		assert.NotNil(t, harness.EngineOf[*toy](r).part)
		harness.EngineOf[remote](r)
	})
	assert.Equal(t, []string{"harness: EngineOf: the engine is a *harness_test.toy, not a harness_test.remote"},
		failures)
}
