package openai

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/llm"
)

// TestDisconnectAborts: a client that goes away, with and without a stream, leaves no request and
// no KV blocks behind.
func TestDisconnectAborts(t *testing.T) {
	for _, stream := range []bool{true, false} {
		_, e, url := serve(t, engine.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		body := fmt.Sprintf(`{"prompt": ["The lighthouse", "Once"], "max_tokens": 1000, "ignore_eos": true, "stream": %v}`, stream)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
		require.Eventually(t, func() bool {
			st := e.Stats()
			return st.OutputTokens > 4 && st.Running == 2
		}, time.Minute, time.Millisecond)
		cancel()
		<-gone
		require.Eventually(t, func() bool {
			st := e.Stats()
			return st.Aborted == 2 && st.Running == 0 && st.KVBlocksUsed == 0
		}, time.Minute, time.Millisecond)
		assert.Less(t, e.Stats().OutputTokens, int64(1900))
	}
}

// TestEngineFails: requests that run and requests that come later are told of the cause, in the
// stream too.
func TestEngineFails(t *testing.T) {
	e, err := engine.Open(t.Context(), engine.Config{
		Model: fixtures.Bundled(), Faults: []llm.Fault{{
			Point: llm.FaultForward, After: 5,
			Action: llm.ActError, Text: "as planned",
		}},
	})
	require.NoError(t, err)
	s := New(Options{Name: "bundled"})
	_, err = s.SetModel(e)
	require.NoError(t, err)
	web := httptest.NewServer(s)
	defer web.Close()
	list, done := events(t, web.URL+"/v1/completions",
		`{"prompt": "The lighthouse", "stream": true, "max_tokens": 100}`)
	assert.False(t, done, "a stream that failed has no [DONE]")
	assert.Equal(t, "engine_dead", get(list[len(list)-1], "error", "code"))
	assert.Contains(t, get(list[len(list)-1], "error", "message"), "as planned")
	<-e.Done()
	status, _, v := post(t, web.URL+"/v1/completions", `{"prompt": "a"}`)
	assert.Equal(t, 503, status)
	assert.Contains(t, get(v, "error", "message"), "as planned")
	status, _ = getText(t, web.URL+"/health")
	assert.Equal(t, 503, status)
	assert.NoError(t, e.Shutdown(context.Background()))
	http.DefaultClient.CloseIdleConnections()
}
