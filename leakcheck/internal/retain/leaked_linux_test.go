package retain

import (
	"bytes"
	"runtime/pprof"
	"testing"

	"github.com/enginetest/enginetest/leakcheck/internal/heapdump"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTakeBack: a heap dump after the goroutine leak profile has found something does not kill the
// process, and the goroutine is found again by the next profile.
func TestTakeBack(t *testing.T) {
	if pprof.Lookup("goroutineleak") == nil {
		t.Skip("no goroutine leak profile: Go before 1.27, built without GOEXPERIMENT=goroutineleakprofile")
	}
	for range 3 {
		go func() { <-make(chan bool) }()
	}
	for range 3 {
		require.True(t, LeakProfile(func() {
			assert.GreaterOrEqual(t, bytes.Count(stackText(), []byte("(leaked)")), 3)
		}))
		assert.NotContains(t, string(stackText()), "(leaked)")
		d, err := heapdump.Take()
		require.NoError(t, err)
		require.NoError(t, d.Close())
	}
}
