package openai

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
)

// askFault posts a completion with a fault header; the response's body is the caller's to close.
func askFault(t *testing.T, ctx context.Context, url, fault, more string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions",
		strings.NewReader(`{"prompt": "2+3=", "temperature": 0, "max_tokens": 6, "ignore_eos": true`+more+`}`))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(FaultHeader, fault)
	return http.DefaultClient.Do(req)
}

func TestFaults(t *testing.T) {
	e, url := serveWith(t, engine.Config{}, Options{Name: "bundled", Faults: true})
	for fault, want := range map[string]int{
		"status=503": 503, "status=429": 429, "status=500": 500, "status=200": 400, "hang=-1s": 400, "hang=x": 400,
		"cut": 400, "cut=-1": 400, "stall=x": 400, "burn": 400,
	} {
		resp, err := askFault(t, t.Context(), url, fault, "")
		require.NoError(t, err, fault)
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		require.NoError(t, err)
		assert.Equal(t, want, resp.StatusCode, fault)
		if want == 400 {
			assert.Contains(t, string(text), `"code":"invalid_value"`, fault)
			continue
		}
		assert.Contains(t, string(text), `"code":"injected_fault"`, fault)
		assert.Equal(t, want != 500, resp.Header.Get("Retry-After") != "", fault)
	}
	assert.Zero(t, e.Stats().PromptTokens, "nothing reached the engine")

	const stream = `, "stream": true`
	for _, n := range []int{0, 1, 3} {
		resp, err := askFault(t, t.Context(), url, "cut="+string(rune('0'+n)), stream)
		var text []byte
		if err == nil { // a cut before the first event is a cut before the headers
			text, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		assert.Error(t, err, "it does not look whole")
		assert.Equal(t, n, strings.Count(string(text), "data: "))
		assert.NotContains(t, string(text), "[DONE]")
	}
	resp, err := askFault(t, t.Context(), url, "cut=0", "")
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	assert.Error(t, err, "half an answer does not look whole")

	resp, err = askFault(t, t.Context(), url, "hang=50ms", "")
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, 200, resp.StatusCode, "it goes on behind the pause")
}

// A hang and a stall last until the client leaves, or until the engine ends.
func TestFaultsThatHang(t *testing.T) {
	e, url := serveWith(t, engine.Config{}, Options{Name: "bundled", Faults: true})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := askFault(t, ctx, url, "hang", "") //nolint:bodyclose // there is no answer
	assert.ErrorIs(t, err, context.DeadlineExceeded)

	resp, err := askFault(t, t.Context(), url, "stall=2", `, "stream": true`) //nolint:bodyclose // it is, below
	require.NoError(t, err)
	defer resp.Body.Close()
	got := make([]byte, 0, 1<<16)
	for strings.Count(string(got), "\n\n") < 2 {
		n, err := resp.Body.Read(got[len(got):cap(got)])
		require.NoError(t, err)
		got = got[:len(got)+n]
	}
	rest := make(chan error)
	go func() {
		_, err := io.ReadAll(resp.Body)
		rest <- err
	}()
	select {
	case err := <-rest:
		assert.Fail(t, "the stream did not stall", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	assert.NoError(t, e.Shutdown(context.Background()))
	err = <-rest
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func TestFaultsAreOff(t *testing.T) {
	_, url := serveWith(t, engine.Config{}, Options{Name: "bundled"})
	resp, err := askFault(t, t.Context(), url, "status=503", "")
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, 400, resp.StatusCode)
	assert.Contains(t, string(text), "faults_disabled")
}
