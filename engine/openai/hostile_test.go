package openai

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
)

// serveWith serves the bundled checkpoint with options; the test ends it.
func serveWith(t *testing.T, cfg engine.Config, o Options) (*engine.Engine, string) {
	t.Helper()
	cfg.Model = fixtures.Bundled()
	e, err := engine.Open(t.Context(), cfg)
	require.NoError(t, err)
	web := httptest.NewServer(Handler(e, o))
	t.Cleanup(func() {
		assert.NoError(t, e.Shutdown(context.Background()))
		web.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return e, web.URL
}

// counted counts what is read of a body.
type counted struct {
	io.Reader
	n int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

func quoted(n int) string { return `"` + strings.Repeat("a", n) + `"` }

// TestTooMuch: a request that asks for too much is refused by the bound that it exceeds, after a
// part of its body and before any work of the engine.
func TestTooMuch(t *testing.T) {
	e, err := engine.Open(t.Context(), engine.Config{Model: fixtures.Bundled()})
	require.NoError(t, err)
	defer func() { assert.NoError(t, e.Shutdown(t.Context())) }()
	s := Handler(e, Options{MaxPrompts: 30, MaxSeqs: 2000, MaxStop: 4, MaxBadWords: 5})
	s.pause = 0
	const text, talk = "/v1/completions", "/v1/chat/completions"
	list := func(item string, n int) string { return "[" + strings.Repeat(item+",", n-1) + item + "]" }
	for _, c := range []struct {
		name, path, body string
		status           int
		code, message    string
		read             int // bytes at most; 0: all of it
	}{
		{
			"20 × 16384 sequences", text, `{"prompt": ` + list("[5]", 20) + `, "n": 16384, "max_tokens": 4}`, 400,
			"too_many", "20 prompts times 16384 is more than 2000 sequences (MaxSeqs)", 0,
		},
		{
			"a million prompts", text, `{"prompt": ` + list("[5]", 1e6) + `}`, 400, "too_many",
			"more than 30 prompts (MaxPrompts)", 100_000,
		},
		{
			"a million stop strings", text, `{"prompt": "a", "stop": ` + list(`"a"`, 1e6) + `}`, 400, "too_many",
			"more than 4 stop strings (MaxStop)", 100_000,
		},
		{
			"a million bad words", text, `{"prompt": "a", "bad_words": ` + list(`"a"`, 1e6) + `}`, 400, "too_many",
			"more than 5 bad words (MaxBadWords)", 100_000,
		},
		{
			"one prompt of 15.9 MB", text, `{"prompt": ` + quoted(15_900_000) + `}`, 400, "context_length_exceeded",
			"more text than the model's context can hold", 2 << 20,
		},
		{
			"a list of one", text, `{"prompt": [` + quoted(15_900_000) + `]}`, 400, "context_length_exceeded",
			"more text than the model's context can hold", 2 << 20,
		},
		{
			"5 million tokens", text, `{"prompt": ` + list("5", 5e6) + `}`, 400, "context_length_exceeded",
			"at least 1024 tokens", 100_000,
		},
		{
			"a message of 15.9 MB", talk, `{"messages": [{"role": "user", "content": ` + quoted(15_900_000) + `}]}`, 400,
			"context_length_exceeded", "more text than the model's context can hold", 4 << 20,
		},
		{
			"a million messages", talk, `{"messages": ` + list(`{"role":"","content":""}`, 6e5) + `}`, 400,
			"context_length_exceeded", "messages", 4 << 20,
		},
		{
			"another field of 15.9 MB", talk, `{"messages": [], "chat_template_kwargs": ` + quoted(15_900_000) + `}`, 400,
			"value_too_large", "more than 1048576 bytes", 4 << 20,
		},
		{
			"a field's name of 15.9 MB", text, `{` + quoted(15_900_000) + `: 1}`, 400, "invalid_json", "a field's name",
			4 << 20,
		},
		{
			"a million allowed tokens", text, `{"prompt": "a", "allowed_token_ids": ` + list("5", 1e5) + `}`, 400,
			"invalid_value", "at most as long as the vocabulary", 0,
		},
		{
			"a long bad word", text, `{"prompt": "a", "bad_words": [` + quoted(16_000) + `]}`, 400, "invalid_value",
			"at most MaxModelLen (1024) tokens", 0,
		},
		{
			"more tokens than the context has", text, `{"prompt": [1, 2, 3], "max_tokens": 1022}`, 400,
			"context_length_exceeded", "is 1022, must be at most 1021 behind a prompt of 3 tokens", 0,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := &counted{Reader: strings.NewReader(c.body)}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, c.path, body)
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			assert.Equal(t, c.status, w.Code)
			assert.Contains(t, w.Body.String(), `"code":"`+c.code+`"`)
			assert.Contains(t, w.Body.String(), c.message)
			if c.read > 0 {
				assert.Less(t, body.n, c.read, "bytes that were read of the body")
			}
		})
	}
	assert.Zero(t, e.Stats().PromptTokens, "the engine has not begun any of it")
	assert.Zero(t, s.bodies.Load())
	assert.Empty(t, s.large)
}

// TestBusy: what the engine may hold is shared by clients, and what it has no room for now is 429.
func TestBusy(t *testing.T) {
	e, url := serveWith(t, engine.Config{MaxWaitingSeqs: 16}, Options{ClientOf: func(r *http.Request) string {
		return r.Header.Get("Client")
	}})
	status, _, v := post(t, url+"/v1/completions", `{"prompt": "a", "n": 9}`)
	assert.Equal(t, 400, status)
	assert.Contains(t, get(v, "error", "message"), "MaxWaitingSeqs is 16 sequences")
	ask := func(client string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(`{"prompt": "The lighthouse", "n": 8, "max_tokens": 1000, "ignore_eos": true, "stream": true}`))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Client", client)
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		return resp
	}
	first := ask("greedy")
	require.Equal(t, 200, first.StatusCode)
	again := ask("greedy")
	again.Body.Close()
	assert.Equal(t, 429, again.StatusCode)
	assert.Equal(t, "1", again.Header.Get("Retry-After"))
	status, _, v = post(t, url+"/v1/completions", `{"prompt": "2+3=", "temperature": 0}`)
	assert.Equal(t, 200, status, "another client finds room: %v", v)
	first.Body.Close()
	require.Eventually(t, func() bool { return e.Stats().Aborted > 0 }, time.Minute, time.Millisecond)
}

// TestBodiesInFlight: large bodies share a bound while they are read; small ones always get in.
func TestBodiesInFlight(t *testing.T) {
	e, err := engine.Open(t.Context(), engine.Config{Model: fixtures.Bundled()})
	require.NoError(t, err)
	defer func() { assert.NoError(t, e.Shutdown(t.Context())) }()
	s := Handler(e, Options{MaxBodies: 200 << 10})
	do := func(body io.Reader) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", body)
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w
	}
	large := `{"user": ` + quoted(250<<10) + `, "prompt": "2+3=", "temperature": 0}`
	held, hold := io.Pipe()
	over := make(chan int)
	go func() { over <- do(held).Code }()
	_, err = io.WriteString(hold, large[:200<<10])
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return s.bodies.Load() == 200<<10-freeBody
	}, time.Minute, time.Millisecond, "all of it has been counted")
	w := do(strings.NewReader(large))
	assert.Equal(t, 429, w.Code)
	assert.Contains(t, w.Body.String(), "MaxBodies")
	assert.Equal(t, 200, do(strings.NewReader(`{"prompt": "2+3=", "temperature": 0}`)).Code)
	_, err = io.WriteString(hold, large[200<<10:])
	require.NoError(t, err)
	require.NoError(t, hold.Close())
	assert.Equal(t, 200, <-over)
	assert.Equal(t, 200, do(strings.NewReader(large)).Code)
	assert.Zero(t, s.bodies.Load())
}

// dial sends bytes as they are and returns the connection.
func dial(t *testing.T, url, request string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = io.WriteString(c, strings.ReplaceAll(request, "\n", "\r\n"))
	require.NoError(t, err)
	return c.(*net.TCPConn)
}

// answer reads a response.
func answer(t *testing.T, c net.Conn) (int, string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

// TestBrokenConnections: what arrives broken is answered with an error in the API's shape, never
// with an empty success.
func TestBrokenConnections(t *testing.T) {
	e, url := serveWith(t, engine.Config{}, Options{})
	const head = "POST /v1/completions HTTP/1.1\nHost: localhost\nContent-Type: application/json\n"

	code, text := answer(t, dial(t, url, head+"Transfer-Encoding: chunked\n\nzz\n{}\n0\n\n"))
	assert.Equal(t, 400, code, "a malformed chunk")
	assert.Contains(t, text, `"code":"invalid_body"`)

	impatient := httptest.NewServer(Handler(e, Options{ReadTimeout: 100 * time.Millisecond}))
	defer impatient.Close()
	code, text = answer(t, dial(t, impatient.URL, head+"Content-Length: 100\n\n{\"prompt\""))
	assert.Equal(t, 408, code, "a body that does not come")
	assert.Contains(t, text, "within 100ms (ReadTimeout)")

	c := dial(t, url, head+"Content-Length: 100\n\n{\"prompt\"")
	require.NoError(t, c.CloseWrite())
	code, text = answer(t, c)
	assert.Equal(t, 400, code, "a body that ends early")
	assert.Contains(t, text, `"error"`)

	for _, stream := range []bool{false, true} {
		body := fmt.Sprintf(`{"prompt": "The lighthouse", "max_tokens": 1000, "ignore_eos": true, "stream": %v}`,
			stream)
		aborted := e.Stats().Aborted
		c = dial(t, url, fmt.Sprintf("%sContent-Length: %d\n\n%s", head, len(body), body))
		require.Eventually(t, func() bool { return e.Stats().Running == 1 }, time.Minute, time.Millisecond)
		require.NoError(t, c.CloseWrite())
		code, text = answer(t, c)
		assert.Contains(t, text, `"code":"client_closed_request"`, "a client that half-closes")
		assert.NotContains(t, text, "[DONE]")
		if !stream {
			assert.Equal(t, statusGone, code)
		}
		require.Eventually(t, func() bool { return e.Stats().Aborted == aborted+1 }, time.Minute, time.Millisecond)
	}
}

// TestUnreadAnswer: a client that does not read its answer does not hold the handler.
func TestUnreadAnswer(t *testing.T) {
	s := New(Options{WriteTimeout: 50 * time.Millisecond})
	over := make(chan struct{})
	s.routes["/large"] = route{http.MethodGet, func(w http.ResponseWriter, _ *http.Request) error {
		defer close(over)
		_, err := w.Write(make([]byte, 32<<20))
		return err
	}}
	web := httptest.NewServer(s)
	defer web.Close()
	dial(t, web.URL, "GET /large HTTP/1.1\nHost: localhost\n\n")
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Fatal("the handler still writes")
	}
}

// TestPanic: a panic is a 500 in the API's shape, and a response that has begun is cut off.
func TestPanic(t *testing.T) {
	s := New(Options{})
	s.routes["/panic"] = route{http.MethodGet, func(http.ResponseWriter, *http.Request) error { panic("planted") }}
	s.routes["/late"] = route{http.MethodGet, func(w http.ResponseWriter, _ *http.Request) error {
		_, _ = io.WriteString(w, "half")
		panic("planted")
	}}
	web := httptest.NewServer(s)
	defer web.Close()
	defer http.DefaultClient.CloseIdleConnections()
	code, text := getText(t, web.URL+"/panic")
	assert.Equal(t, 500, code)
	assert.JSONEq(t, `{"error": {"message": "panic in the server: planted", "type": "server_error", "param": null, "code": "internal_error"}}`, text)
	resp, err := http.Get(web.URL + "/late")
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	assert.Error(t, err, "it does not look whole")
}

// TestWhoMayAsk: other sites' pages, other names of this machine, and clients without the key.
func TestWhoMayAsk(t *testing.T) {
	_, url := serveWith(t, engine.Config{}, Options{
		Name: "org/bundled", APIKey: "sesame",
		AllowedHosts: []string{"gateway.test"}, AllowedOrigins: []string{"https://app.test"},
	})
	const key = "Authorization: Bearer sesame"
	const body = `{"prompt": "2+3=", "temperature": 0}`
	for _, c := range []struct {
		name, method, path, body string
		headers                  string // separated by ;
		status                   int
		want                     string
	}{
		{
			"as it should be", "POST", "/v1/completions", body, "Content-Type: application/json; charset=utf-8|" + key,
			200, "",
		},
		{
			"a page of another site: text", "POST", "/v1/completions", body,
			"Content-Type: text/plain|Origin: https://evil.test|" + key, 415, "must be application/json",
		},
		{"a form", "POST", "/v1/completions", body, "Content-Type: application/x-www-form-urlencoded|" + key, 415, ""},
		{"no type", "POST", "/v1/completions", body, key, 415, ""},
		{
			"another site asks leave", "OPTIONS", "/v1/completions", "",
			"Origin: https://evil.test|Access-Control-Request-Method: POST|" + key, 405, "",
		},
		{
			"an allowed site asks leave", "OPTIONS", "/v1/completions", "",
			"Origin: https://app.test|Access-Control-Request-Method: POST", 204, "",
		},
		{"no key", "POST", "/v1/completions", body, "Content-Type: application/json", 401, "API key"},
		{"a wrong key", "GET", "/v1/models", "", "Authorization: Bearer sesam", 401, ""},
		{"health needs no key", "GET", "/health", "", "", 200, ""},
		{
			"a name that was pointed here", "GET", "/v1/models", "", "Host: evil.test:8000|" + key, 421,
			`the Host header is \"evil.test:8000\"`,
		},
		{"a name that is allowed", "GET", "/v1/models", "", "Host: gateway.test|" + key, 200, ""},
		{"localhost", "GET", "/v1/models", "", "Host: localhost:1234|" + key, 200, ""},
		{"loopback in IPv6", "GET", "/v1/models", "", "Host: [::1]:1234|" + key, 200, ""},
		{"a model", "GET", "/v1/models/org/bundled", "", key, 200, `"max_model_len":1024`},
		{"another model", "GET", "/v1/models/org/other", "", key, 404, "model_not_found"},
		{"sleep without the key", "POST", "/sleep", "", "", 401, "API key"},
		{
			"another site's page wants the server to sleep", "POST", "/sleep", "", "Origin: https://evil.test|" + key, 403,
			"origin_not_allowed",
		},
		{"an allowed site's page", "POST", "/wake_up", "", "Origin: https://app.test|" + key, 200, ""},
		{"asleep or not needs no key", "GET", "/is_sleeping", "", "", 200, `"is_sleeping":false`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), c.method, url+c.path, strings.NewReader(c.body))
			require.NoError(t, err)
			for h := range strings.SplitSeq(c.headers, "|") {
				if name, value, _ := strings.Cut(h, ": "); name == "Host" {
					r.Host = value
				} else if name != "" {
					r.Header.Set(name, value)
				}
			}
			resp, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			assert.Equal(t, c.status, resp.StatusCode, string(text))
			assert.Contains(t, string(text), c.want)
			wantOrigin := ""
			if strings.Contains(c.headers, "app.test") {
				wantOrigin = "https://app.test"
			}
			assert.Equal(t, wantOrigin, resp.Header.Get("Access-Control-Allow-Origin"))
		})
	}
}

// TestMessages: errors say in a client's words what is wrong.
func TestMessages(t *testing.T) {
	_, url := serveWith(t, engine.Config{}, Options{})
	for in, want := range map[string]string{
		`"temperature": 1e400`:            "temperature: 1e400 is out of range",
		`"max_tokens": 99999999999999999`: "max_tokens: is 99999999999999999, must be at most",
		`"n": 99999999999999999999`:       "n: 99999999999999999999 is out of range",
		`"n": 1.5`:                        "n: got 1.5, want integer",
		`"allowed_token_ids": []`:         "allowed_token_ids: is empty, must be left out, or at least one id",
		`"stream": true, "stream_options": {"INCLUDE_USAGE": true}`: "stream_options.INCLUDE_USAGE: unknown field",
	} {
		status, _, v := post(t, url+"/v1/completions", `{"prompt": "a", `+in+`}`)
		assert.Equal(t, 400, status, in)
		assert.Contains(t, get(v, "error", "message"), want)
	}
}
