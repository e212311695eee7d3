package server_test

import (
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
	f, err := harness.Open(within(t), stubServer("-spawn", "setsid sleep 300"), harness.WithoutDeviceMemory("the stub uses no GPU"))
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
