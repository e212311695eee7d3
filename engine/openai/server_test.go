package openai

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type object = map[string]any

// serve starts a server for an engine; the test ends both.
func serve(t *testing.T, cfg engine.Config) (*Server, *engine.Engine, string) {
	t.Helper()
	if cfg.Model == "" {
		cfg.Model = fixtures.Bundled()
	}
	e, err := engine.Open(t.Context(), cfg)
	require.NoError(t, err)
	s := New(Options{Name: "bundled"})
	_, err = s.SetModel(e)
	require.NoError(t, err)
	web := httptest.NewServer(s)
	t.Cleanup(func() {
		assert.NoError(t, e.Shutdown(context.Background()))
		web.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return s, e, web.URL
}

func post(t *testing.T, url, body string) (int, http.Header, object) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer resp.Body.Close()
	var v object
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&v))
	return resp.StatusCode, resp.Header, v
}

// events posts and reads a stream: its events, and whether it ended with [DONE].
func events(t *testing.T, url, body string) (list []object, done bool) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for n := 0; lines.Scan(); n++ {
		if n%2 == 1 {
			require.Empty(t, lines.Text(), "an empty line ends an event")
			continue
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		require.True(t, ok, lines.Text())
		require.False(t, done, "nothing follows [DONE]")
		if data == "[DONE]" {
			done = true
			continue
		}
		var v object
		require.NoError(t, json.Unmarshal([]byte(data), &v))
		list = append(list, v)
	}
	require.NoError(t, lines.Err())
	return list, done
}

// get follows a path of keys and indices.
func get(v any, path ...any) any {
	for _, k := range path {
		switch k := k.(type) {
		case string:
			m, _ := v.(object)
			v = m[k]
		case int:
			l, _ := v.([]any)
			if k >= len(l) {
				return nil
			}
			v = l[k]
		}
	}
	return v
}

func TestCompletion(t *testing.T) {
	_, _, url := serve(t, engine.Config{})
	status, _, v := post(t, url+"/v1/completions", `{"model": "bundled", "prompt": "2+3=", "temperature": 0, "logprobs": 2, "user": "me", "return_token_ids": true}`)
	require.Equal(t, http.StatusOK, status, v)
	assert.Equal(t, "text_completion", v["object"])
	assert.Equal(t, "bundled", v["model"])
	assert.Regexp(t, "^cmpl-", v["id"])
	assert.Equal(t, "5", get(v, "choices", 0, "text"))
	assert.Equal(t, "stop", get(v, "choices", 0, "finish_reason"))
	lp := get(v, "choices", 0, "logprobs")
	assert.Equal(t, "5", get(lp, "tokens", 0))
	assert.Less(t, get(lp, "token_logprobs", 0), 0.0)
	assert.Equal(t, get(lp, "token_logprobs", 0), get(lp, "top_logprobs", 0, "5"))
	assert.Len(t, get(lp, "top_logprobs", 0), 2)
	assert.Equal(t, []any{0.0, 1.0}, get(lp, "text_offset"))
	assert.Equal(t, []any{4.0, 2.0, 6.0}, []any{
		get(v, "usage", "prompt_tokens"), get(v, "usage", "completion_tokens"),
		get(v, "usage", "total_tokens"),
	})
	assert.Len(t, get(v, "choices", 0, "token_ids"), 2, "the token and EOS")
}

func TestPromptForms(t *testing.T) {
	_, e, url := serve(t, engine.Config{})
	a, err := e.Encode("2+3=")
	require.NoError(t, err)
	b, err := e.Encode("6*7=")
	require.NoError(t, err)
	ids := func(v any) string { s, _ := json.Marshal(v); return string(s) }
	for _, prompt := range []string{`["2+3=", "6*7="]`, ids([][]int32{a, b})} {
		_, _, v := post(t, url+"/v1/completions", `{"temperature": 0, "prompt": `+prompt+`}`)
		assert.Equal(t, []any{"5", 0.0, "42", 1.0}, []any{
			get(v, "choices", 0, "text"), get(v, "choices", 0, "index"), get(v, "choices", 1, "text"),
			get(v, "choices", 1, "index"),
		}, prompt)
	}
	_, _, v := post(t, url+"/v1/completions", `{"temperature": 0, "prompt": `+ids(a)+`}`)
	assert.Equal(t, "5", get(v, "choices", 0, "text"))
}

// TestStreamIsCompletion: the parts of a stream add up to the answer without one, for each choice,
// logprobs and usage included.
func TestStreamIsCompletion(t *testing.T) {
	_, _, url := serve(t, engine.Config{})
	const ask = `"prompt": ["The lighthouse", "Once upon a time"], "n": 2, "seed": 7, "max_tokens": 24, "logprobs": 1, "temperature": 0.9`
	_, _, whole := post(t, url+"/v1/completions", "{"+ask+"}")
	list, done := events(t, url+"/v1/completions",
		"{"+ask+`, "stream": true, "stream_options": {"include_usage": true}}`)
	require.True(t, done)
	last := list[len(list)-1]
	assert.Empty(t, last["choices"])
	for _, k := range []string{"prompt_tokens", "completion_tokens"} {
		assert.Equal(t, get(whole, "usage", k), get(last, "usage", k))
	}
	assert.Contains(t, last["usage"], "prompt_tokens_details")
	for i := range 4 {
		var text, reason string
		var tokens, offsets []any
		for _, e := range list[:len(list)-1] {
			assert.Contains(t, e, "usage")
			assert.Nil(t, e["usage"])
			c := get(e, "choices", 0)
			if get(c, "index") != float64(i) {
				continue
			}
			text += get(c, "text").(string)
			if r, ok := get(c, "finish_reason").(string); ok {
				reason = r
			}
			if l, ok := get(c, "logprobs", "tokens").([]any); ok {
				tokens = append(tokens, l...)
				offsets = append(offsets, get(c, "logprobs", "text_offset").([]any)...)
			}
		}
		c := get(whole, "choices", i)
		assert.Equal(t, get(c, "text"), text)
		assert.Equal(t, get(c, "finish_reason"), reason)
		assert.Equal(t, get(c, "logprobs", "tokens"), any(tokens))
		assert.Equal(t, get(c, "logprobs", "text_offset"), any(offsets))
	}
}

func TestChat(t *testing.T) {
	_, _, url := serve(t, engine.Config{})
	for _, content := range []string{`"What is 12+30?"`, `[{"type": "text", "text": "What is 12+30?"}]`} {
		ask := `{"messages": [{"role": "user", "content": ` + content +
			`}], "temperature": 0, "logprobs": true, "top_logprobs": 2, "max_completion_tokens": 8`
		status, _, v := post(t, url+"/v1/chat/completions", ask+"}")
		require.Equal(t, http.StatusOK, status, v)
		assert.Equal(t, "chat.completion", v["object"])
		assert.Equal(t, object{"role": "assistant", "content": " 42", "refusal": nil}, get(v, "choices", 0, "message"))
		lp := get(v, "choices", 0, "logprobs", "content", 0)
		assert.Equal(t, get(lp, "token"), get(lp, "top_logprobs", 0, "token"), "greedy takes the likeliest")
		assert.Equal(t, get(lp, "logprob"), get(lp, "top_logprobs", 0, "logprob"))
		assert.Len(t, get(lp, "top_logprobs"), 2)
		assert.Equal(t, []any{32.0}, get(lp, "bytes").([]any)[:1], "a space")

		list, done := events(t, url+"/v1/chat/completions", ask+`, "stream": true}`)
		require.True(t, done)
		assert.Equal(t, "chat.completion.chunk", list[0]["object"])
		assert.Equal(t, "assistant", get(list[0], "choices", 0, "delta", "role"))
		text := ""
		for _, e := range list {
			s, _ := get(e, "choices", 0, "delta", "content").(string)
			text += s
		}
		assert.Equal(t, " 42", text)
		assert.Equal(t, "stop", get(list[len(list)-1], "choices", 0, "finish_reason"))
	}
}

func TestSeedAndStop(t *testing.T) {
	_, _, url := serve(t, engine.Config{})
	ask := func(more string) string {
		_, _, v := post(t, url+"/v1/completions", `{"prompt": "The lighthouse", "max_tokens": 20`+more+`}`)
		s, _ := get(v, "choices", 0, "text").(string)
		require.NotEmpty(t, s, v)
		return s
	}
	first := ask(`, "seed": 3, "temperature": 1.5`)
	again := ask(`, "seed": 3, "temperature": 1.5`)
	assert.Equal(t, first, again)
	assert.NotEqual(t, first, ask(`, "seed": 4, "temperature": 1.5`))
	whole := ask(`, "temperature": 0`)
	before, _, found := strings.Cut(whole, "a")
	require.True(t, found)
	assert.Equal(t, before, ask(`, "temperature": 0, "stop": "a"`))
	assert.Equal(t, before+"a", ask(`, "temperature": 0, "stop": ["a", "zzz"], "include_stop_str_in_output": true`))
	assert.Equal(t, whole, ask(`, "temperature": 2, "top_k": 1`))
}

// TestRefusals: each with its status, its field and its code, in OpenAI's shape.
func TestRefusals(t *testing.T) {
	_, _, url := serve(t, engine.Config{MaxModelLen: 128})
	const text, talk = "/v1/completions", "/v1/chat/completions"
	user := `"messages": [{"role": "user", "content": "hi"}]`
	for _, c := range []struct {
		path, body  string
		status      int
		param, code string
	}{
		{text, `{`, 400, "", "invalid_json"},
		{text, `[]`, 400, "", "invalid_json"},
		{text, `{"prompt": "a"} {}`, 400, "", "invalid_json"},
		{text, `{}`, 400, "prompt", "missing_required_parameter"},
		{text, `{"prompt": []}`, 400, "prompt", "invalid_value"},
		{text, `{"prompt": {}}`, 400, "prompt", "invalid_type"},
		{text, `{"prompt": ["a", 1]}`, 400, "prompt", "invalid_type"},
		{text, `{"prompt": [1, null]}`, 400, "prompt", "invalid_type"}, // no token 0
		{text, `{"prompt": [[[1]]]}`, 400, "prompt", "invalid_type"},
		{text, `{"prompt": ["a", null]}`, 400, "prompt", "invalid_type"},
		{text, `{"prompt": ""}`, 400, "prompt", "invalid_value"},
		{text, `{"prompt": [99999]}`, 400, "prompt[0]", "invalid_value"},
		{text, `{"prompt": "a", "temprature": 1}`, 400, "temprature", "unknown_parameter"},
		{text, `{"prompt": "a", "temperature": "warm"}`, 400, "temperature", "invalid_type"},
		{text, `{"prompt": "a", "temperature": 3}`, 400, "temperature", "invalid_value"},
		{text, `{"prompt": "a", "max_tokens": 0}`, 400, "max_tokens", "invalid_value"},
		{text, `{"prompt": "a", "n": 0}`, 400, "n", "invalid_value"},
		{text, `{"prompt": "a", "n": 2, "temperature": 0}`, 400, "n", "invalid_value"},
		{text, `{"prompt": "a", "top_p": 0}`, 400, "top_p", "invalid_value"},
		{text, `{"prompt": "a", "presence_penalty": 3}`, 400, "presence_penalty", "invalid_value"},
		{text, `{"prompt": "a", "logprobs": 21}`, 400, "logprobs", "invalid_value"},
		{text, `{"prompt": "a", "logprobs": true}`, 400, "logprobs", "invalid_type"},
		{text, `{"prompt": "a", "logit_bias": {"x": 1}}`, 400, "logit_bias", "invalid_value"},
		{text, `{"prompt": "a", "logit_bias": {"99999": 1}}`, 400, "logit_bias", "invalid_value"},
		{text, `{"prompt": "a", "logit_bias": [1]}`, 400, "logit_bias", "invalid_type"},
		{text, `{"prompt": "a", "stop": 5}`, 400, "stop", "invalid_type"},
		{text, `{"prompt": "a", "stop_token_ids": [null]}`, 400, "stop_token_ids", "invalid_type"},
		{text, `{"prompt": "a", "stop_token_ids": [-1]}`, 400, "stop_token_ids[0]", "invalid_value"},
		{text, `{"prompt": "a", "stream_options": {"include_usage": true}}`, 400, "stream_options", "invalid_value"},
		{
			text, `{"prompt": "a", "stream": true, "stream_options": {"usage": true}}`, 400, "stream_options.usage",
			"unknown_parameter",
		},
		{text, `{"prompt": "a", "stream": true, "stream_options": 1}`, 400, "stream_options", "invalid_type"},
		{text, `{"prompt": "a", "echo": true}`, 400, "echo", "unsupported_parameter"},
		{text, `{"prompt": "a", "suffix": "b"}`, 400, "suffix", "unsupported_parameter"},
		{text, `{"prompt": "a", "best_of": 2}`, 400, "best_of", "unsupported_parameter"},
		{text, `{"prompt": "a", "model": "gpt-5"}`, 404, "model", "model_not_found"},
		{text, `{"prompt": "` + strings.Repeat("abc ", 500) + `"}`, 400, "", "context_length_exceeded"},
		{text, `{"prompt": "a", "stream": true, "min_p": 7}`, 400, "min_p", "invalid_value"},
		{talk, `{}`, 400, "messages", "missing_required_parameter"},
		{talk, `{"messages": []}`, 400, "messages", "invalid_type"},
		{talk, `{"messages": [1]}`, 400, "messages", "invalid_type"},
		// the bundled template renders nothing of it
		{talk, `{"messages": [{"role": "nobody", "content": "a"}]}`, 400, "messages", "invalid_value"},
		{talk, `{"messages": [{"content": "a"}]}`, 400, "messages", "invalid_value"},
		{talk, `{"messages": [{"role": "user"}]}`, 400, "messages", "invalid_value"},
		{talk, `{"messages": [{"role": "user", "content": 5}]}`, 400, "messages", "invalid_type"},
		{
			talk, `{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}`, 400,
			"messages", "unsupported_content",
		},
		{
			talk, `{"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}`, 400, "messages",
			"unsupported_content",
		},
		{talk, `{` + user + `, "tools": [{"type": "function"}]}`, 400, "tools", "unsupported_parameter"},
		{
			talk, `{` + user + `, "response_format": {"type": "json_schema"}}`, 400, "response_format",
			"invalid_value",
		},
		{talk, `{` + user + `, "top_logprobs": 1}`, 400, "top_logprobs", "invalid_value"},
		{talk, `{` + user + `, "logprobs": true, "top_logprobs": 21}`, 400, "top_logprobs", "invalid_value"},
		{talk, `{` + user + `, "max_completion_tokens": 0}`, 400, "max_completion_tokens", "invalid_value"},
		{talk, `{` + user + `, "chat_template_kwargs": 1}`, 400, "chat_template_kwargs", "invalid_type"},
		{"/v1/embeddings", `{"input": "a"}`, 400, "", "unsupported_task"},
		{"/v1/responses", `{"input": "a"}`, 501, "", "unsupported_endpoint"},
		{"/nowhere", `{}`, 404, "", "not_found"},
		{"/health", `{}`, 405, "", "method_not_allowed"},
	} {
		t.Run(fmt.Sprintf("%.80s", c.path+c.body), func(t *testing.T) {
			status, _, v := post(t, url+c.path, c.body)
			assert.Equal(t, c.status, status, v)
			want := func(s string) any {
				if s == "" {
					return nil
				}
				return s
			}
			assert.Equal(t, want(c.param), get(v, "error", "param"), v)
			assert.Equal(t, want(c.code), get(v, "error", "code"), v)
			assert.NotEmpty(t, get(v, "error", "message"))
			assert.NotRegexp(t, `\[\]\w|float64|int64|map\[|json:`, get(v, "error", "message"),
				"a client knows nothing of Go")
			assert.NotEmpty(t, get(v, "error", "type"))
		})
	}
	// values that ask for nothing are no reason to refuse
	status, _, v := post(t, url+talk, `{`+user+`, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "store": true, "stop": null}`)
	assert.Equal(t, 200, status, v)
	status, _, v = post(t, url+text, `{"prompt": "`+strings.Repeat("a", 16<<20)+`"}`)
	assert.Equal(t, http.StatusRequestEntityTooLarge, status, v)
	assert.Equal(t, "request_too_large", get(v, "error", "code"))
}

func getText(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(data)
}

func TestHealthModelsMetrics(t *testing.T) {
	loading := httptest.NewServer(New(Options{Name: "bundled"}))
	defer loading.Close()
	status, text := getText(t, loading.URL+"/health")
	assert.Equal(t, 503, status)
	assert.Contains(t, text, `"code":"loading"`)
	_, text = getText(t, loading.URL+"/metrics")
	assert.Contains(t, text, `enginetest:state{engine="0",model_name="bundled",state="starting"} 1`)

	s, _, url := serve(t, engine.Config{})
	status, _ = getText(t, url+"/health")
	assert.Equal(t, 200, status)
	_, text = getText(t, url+"/v1/models")
	assert.Contains(t, text, `"id":"bundled"`)
	assert.Contains(t, text, `"max_model_len":1024`)
	post(t, url+"/v1/completions", `{"prompt": "2+3=", "temperature": 0}`)
	_, text = getText(t, url+"/metrics")
	for _, want := range []string{
		"# TYPE vllm:generation_tokens_total counter\n", `vllm:generation_tokens_total{engine="0",model_name="bundled"} 2` + "\n",
		`vllm:prompt_tokens_total{engine="0",model_name="bundled"} 4` + "\n",
		`enginetest:requests_finished_total{engine="0",model_name="bundled"} 1` + "\n",
		`enginetest:state{engine="0",model_name="bundled",state="running"} 1` + "\n",
	} {
		assert.Contains(t, text, want)
	}
	s.Drain()
	status, _ = getText(t, url+"/health")
	assert.Equal(t, 503, status)
	status, header, v := post(t, url+"/v1/completions", `{"prompt": "a"}`)
	assert.Equal(t, 503, status)
	assert.Equal(t, "1", header.Get("Retry-After"))
	assert.Equal(t, "draining", get(v, "error", "code"))
}

// read reads a request without a model.
func read(data string, into any) error {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(data))
	r.Header.Set("Content-Type", "application/json")
	done, err := New(Options{}).readRequest(httptest.NewRecorder(), r, nil, into)
	if err == nil {
		done()
	}
	return err
}

// FuzzBody: whatever a body holds, it is read into a request or refused with a status below 500.
func FuzzBody(f *testing.F) {
	f.Add([]byte(`{"prompt": ["a", [1]], "stop": ["b"], "logit_bias": {"3": 1}, "stream": true, "stream_options": {"include_usage": true}}`))
	f.Add([]byte(`{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "tools": [], "chat_template_kwargs": {}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, into := range []any{&completionRequest{}, &chatRequest{}} {
			err := read(string(data), into)
			if q, ok := into.(*completionRequest); ok && err == nil {
				_, err = q.params(16)
			}
			if err != nil && asAPIError(err).status >= 500 {
				t.Fatalf("%v", err)
			}
		}
	})
}
