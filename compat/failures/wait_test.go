package failures

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gotest.tools/v3/poll"
)

func eventually(t *testing.T) {
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, 0, 2, "requests that wait") },
		300*time.Millisecond, 20*time.Millisecond)
}

func pollOn(t *testing.T) {
	poll.WaitOn(t, func(poll.LogT) poll.Result { return poll.Continue("2 requests wait") },
		poll.WithTimeout(300*time.Millisecond), poll.WithDelay(20*time.Millisecond))
}
