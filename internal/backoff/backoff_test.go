package backoff

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestPausesDoubleUpToTheLongest(t *testing.T) {
	b := New(time.Millisecond, 5*time.Millisecond)
	for _, want := range []time.Duration{1, 2, 4, 5, 5} {
		assert.Equal(t, want*time.Millisecond, b.Next())
	}
	b.Shorten(3 * time.Millisecond)
	assert.Equal(t, 3*time.Millisecond, b.Next())
	assert.Equal(t, 5*time.Millisecond, b.Next())
	b.Shorten(time.Second)
	assert.Equal(t, 5*time.Millisecond, b.Next(), "never longer")
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, start := New(time.Second, time.Minute), time.Now()
		assert.NoError(t, b.Wait(t.Context()))
		assert.Equal(t, time.Second, time.Since(start))
		assert.NoError(t, b.WaitAtMost(t.Context(), time.Millisecond))
		assert.Equal(t, time.Second+time.Millisecond, time.Since(start))
		assert.NoError(t, b.WaitAtMost(t.Context(), -1), "a patience that has ended")
		assert.Equal(t, time.Second+time.Millisecond, time.Since(start))

		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(stop) })
		assert.ErrorIs(t, b.Wait(ctx), stop)
		assert.Equal(t, 2*time.Second+time.Millisecond, time.Since(start))
	})
}
