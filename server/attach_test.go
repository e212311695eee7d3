package server_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

func TestPullStalls(t *testing.T) {
	stub := started(t, stubServer())
	for stall := 200 * time.Millisecond; ; stall *= 2 { // more, when the first news took longer
		s, err := server.Attach(stub.URL()).With(server.Speaks(server.ProtocolOllama), server.Model("m"),
			server.StallTimeout(stall)).Start(within(t))
		require.NoError(t, err)
		err = s.Pull(within(t), "llama3")
		require.ErrorContains(t, err, "the download of llama3 has stalled")
		require.NoError(t, s.Stop(within(t)).Err())
		if strings.Contains(err.Error(), "pulling, 2 of 10 bytes") {
			break
		}
		require.Less(t, stall, long, err.Error())
	}
}

func TestAttach(t *testing.T) {
	s := started(t, stubServer())
	attach := func(t *testing.T) *server.Server {
		a, err := server.Attach(s.URL()).Start(within(t))
		require.NoError(t, err)
		require.Equal(t, server.ProtocolVLLM, a.Protocol(), "found by its metrics")
		return a
	}
	t.Run("clean", func(t *testing.T) {
		a := attach(t)
		require.Equal(t, "A", ask(t, a, "a"))
		st, err := a.Stats(within(t))
		require.NoError(t, err)
		require.InDelta(t, 0.25, st.KVUsage, 0)
		report := a.Stop(within(t))
		require.NoError(t, report.Err())
		t.Logf("\n%s", report)
	})
	t.Run("a request in flight", func(t *testing.T) {
		a := attach(t)
		done := make(chan error, 1)
		go func() {
			_, err := a.Generate(context.Background(), llm.Request{Prompt: "hang"})
			done <- err
		}()
		waitRunning(t, s.URL(), 1)
		err := a.Stop(within(t)).Err()
		require.ErrorContains(t, err, "1 requests of this test were in flight; they are cancelled")
		require.NotContains(t, err.Error(), "not back", "the server has dropped it")
		require.ErrorIs(t, <-done, llm.ErrStopped)
	})
	t.Run("a server that grew", func(t *testing.T) {
		ctx, giveUp := context.WithCancel(within(t))
		asked := 0
		remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if asked++; r.URL.Path != "/metrics" || asked < 3 {
				fmt.Fprint(w, "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n")
				return
			}
			fmt.Fprint(w, "vllm:num_requests_running 1\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n")
			if asked == 9 {
				giveUp()
			}
		}))
		defer remote.Close()
		a, err := server.Attach(remote.URL).With(server.Speaks(server.ProtocolVLLM), server.Model("m")).Start(within(t))
		require.NoError(t, err)
		require.ErrorContains(t, a.Stop(ctx).Err(),
			"1 requests are running, 0 were; 2 requests are waiting, 0 were; the KV cache is used to 50.0%, it was to 0.0%; another client's requests look the same")
	})
	t.Run("nothing there", func(t *testing.T) {
		_, err := server.Attach("http://127.0.0.1:1").Start(within(t))
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

// waitRunning waits until a stub computes n requests.
func waitRunning(t *testing.T, url string, n int) {
	t.Helper()
	a, err := server.Attach(url).With(server.Speaks(server.ProtocolVLLM), server.Model("m")).Start(within(t))
	require.NoError(t, err)
	for end := time.Now().Add(long); ; time.Sleep(time.Millisecond) {
		st, err := a.Stats(within(t))
		require.NoError(t, err)
		if st.Running == n {
			break
		}
		require.True(t, time.Now().Before(end), "running %d, want %d", st.Running, n)
	}
}
