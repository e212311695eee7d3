package server_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

var (
	_ harness.Engine              = (*server.Server)(nil)
	_ harness.Streamer            = (*server.Server)(nil)
	_ harness.Chatter             = (*server.Server)(nil)
	_ harness.Embedder            = (*server.Server)(nil)
	_ harness.Classifier          = (*server.Server)(nil)
	_ harness.Scorer              = (*server.Server)(nil)
	_ harness.Sleeper             = (*server.Server)(nil)
	_ harness.PrefixCacheResetter = (*server.Server)(nil)
	_ harness.ActivityReporter    = (*server.Server)(nil)
	_ harness.ProcessLister       = (*server.Server)(nil)
	_ harness.ShutdownReporter    = (*server.Server)(nil)
)

func TestFixture(t *testing.T) {
	r := harness.Start(t, stubServer(), harness.WithoutDeviceMemory("the stub uses no GPU"))
	outs := r.Generate(llm.Request{Prompt: "abc"})
	require.Equal(t, "ABC", outs[0].Completions[0].Text)
	report := r.Stop()
	require.NoError(t, report.Err())
	t.Logf("\n%s", report)
}

func TestFixtureNamesWhatIsLeft(t *testing.T) {
	f, err := harness.Open(within(t), stubServer("-spawn", "setsid sleep 300"),
		harness.WithoutDeviceMemory("the stub uses no GPU"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(f.Engine().(*server.Server).PIDs()) > 1 }, long, time.Millisecond)
	err = f.Close(within(t)).Err()
	require.ErrorContains(t, err, "outlived the command")
	require.ErrorContains(t, err, "sleep 300")
}

func TestFixtureOfADeadServer(t *testing.T) {
	_, err := harness.Open(within(t), stubServer("-die=7"), harness.WithoutDeviceMemory("the stub uses no GPU"))
	var exit *server.ExitError
	require.ErrorAs(t, err, &exit)
	require.ErrorContains(t, err, "no such model: m.gguf")
	require.NotContains(t, err.Error(), "is still there", "nothing is left of it")
}

// A pooled server is reset between its tests, and one that has died is not leased again.
func TestPool(t *testing.T) {
	var pool harness.Pool
	open := stubServer("-crash-on", "poison").With(server.Speaks(server.ProtocolVLLM))
	noGPU := harness.WithoutDeviceMemory("the stub uses no GPU")
	lease := func(tb harness.TB) *server.Server {
		return harness.Lease(tb, &pool, "stub", open, noGPU).Engine().(*server.Server)
	}
	var first int
	t.Run("one", func(t *testing.T) {
		s := lease(t)
		first = s.PIDs()[0]
		require.Equal(t, "A", ask(t, s, "a"))
	})
	t.Run("two", func(t *testing.T) {
		s := lease(t)
		require.Equal(t, first, s.PIDs()[0], "the same server")
		require.Eventually(t, func() bool {
			return slices.ContainsFunc(s.Log(), func(l server.Line) bool { return l.Text == "prefix cache reset" })
		}, long, time.Millisecond, "it was reset in between")
	})
	poisoned := &fakeTB{TB: t}
	_, err := lease(poisoned).Generate(within(t), llm.Request{Prompt: "poison"})
	require.ErrorContains(t, err, "exited with code 3")
	poisoned.cleanup()
	require.Contains(t, poisoned.failure, "cannot be leased again")
	require.Contains(t, poisoned.failure, "exited with code 3")
	t.Run("after the death", func(t *testing.T) { require.NotEqual(t, first, lease(t).PIDs()[0]) })
	require.NoError(t, pool.Close(within(t)))
}

// fakeTB is a test that fails without failing the one that it is a part of.
type fakeTB struct {
	harness.TB
	cleanups []func()
	failure  string
}

func (f *fakeTB) Cleanup(c func())                  { f.cleanups = append(f.cleanups, c) }
func (f *fakeTB) Errorf(format string, args ...any) { f.failure += fmt.Sprintf(format, args...) }

func (f *fakeTB) cleanup() {
	for len(f.cleanups) > 0 {
		last := f.cleanups[len(f.cleanups)-1]
		f.cleanups = f.cleanups[:len(f.cleanups)-1]
		last()
	}
}
