package leakcheck

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A check waits as long as it was told to, however many collections that takes.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		holder = newEngine("slow")
		ref := Track("engine", holder, Patience(15*time.Second), WithoutPaths())
		time.AfterFunc(12*time.Second, func() { holder = nil })
		require.NoError(t, ref.Released(ctx))
	})
}
