package leakcheck

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// reporter runs a function while a verdict is put into words, before the heap is dumped.
type reporter struct{ f func() }

func (r *reporter) Holdings() []ledger.Holding { r.f(); return nil }

// An object that goes between the verdict and the dump is slow. Nothing can be blamed for it, least
// of all what took its place in memory.
func TestGoneBeforeTheDump(t *testing.T) {
	rep := &reporter{func() { holder = nil }}
	holder = newEngine("late")
	err := Track("engine", holder, brief, DeviceMemory(rep)).Released(ctx)
	runtime.KeepAlive(rep) // it is held weakly
	var found *Error
	require.ErrorAs(t, err, &found)
	require.Len(t, found.Findings, 1)
	assert.ErrorContains(t, err, "is still reachable after")
	assert.ErrorContains(t, err, "it went at most")
	assert.ErrorContains(t, err, "slow, not leaked")
	assert.Empty(t, found.Findings[0].Path, "%v", err)
}

// TestGoneLater: when an object goes at any moment after the verdict, the culprit is the one that
// kept it, or none.
func TestGoneLater(t *testing.T) {
	n, most := 8, 50*time.Millisecond
	if os.Getenv("ENGINETEST_LONG") != "" {
		n, most = 200, 2*time.Second
	}
	for i := range n {
		holder = newEngine("late")
		ref := Track("engine", holder, brief)
		released := make(chan bool)
		rep := &reporter{func() {
			time.AfterFunc(most*time.Duration(i)/time.Duration(n), func() {
				holder = nil
				close(released)
			})
		}}
		ref.cfg.memory = append(ref.cfg.memory, memoryOf{weakly(rep), nil})
		var found *Error
		require.ErrorAs(t, ref.Released(ctx), &found)
		runtime.KeepAlive(rep) // it is held weakly
		for _, f := range found.Findings {
			if len(f.Path) > 0 {
				assert.Contains(t, f.Path[0].Name, "leakcheck.holder", "%v", found)
			}
		}
		<-released
		require.NoError(t, ref.Released(ctx))
	}
}
