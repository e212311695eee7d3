package openai

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
)

// sample returns a metric's value, by the begin of its line.
func sample(t *testing.T, url, begin string) float64 {
	t.Helper()
	_, text := getText(t, url+"/metrics")
	for line := range strings.SplitSeq(text, "\n") {
		if value, ok := strings.CutPrefix(line, begin+" "); ok {
			v, err := strconv.ParseFloat(value, 64)
			require.NoError(t, err)
			return v
		}
	}
	require.Fail(t, "no such metric", "%s\n%s", begin, text)
	return 0
}

const labels = `engine="0",model_name="bundled"`

// Whole answers and streams are measured alike, in vLLM's names, labels and buckets.
func TestLatencyMetrics(t *testing.T) {
	for _, core := range []engine.Core{engine.InProcess, engine.ChildProcess} {
		_, url := serveWith(t, engine.Config{Core: core}, Options{Name: "bundled"})
		const ask = `{"prompt": ["The lighthouse", "Once upon"], "n": 2, "max_tokens": 5, "ignore_eos": true, "temperature": 1, "stream": `
		status, _, v := post(t, url+"/v1/completions", ask+"false}")
		require.Equal(t, 200, status, v)
		_, done := events(t, url+"/v1/completions", ask+"true}")
		require.True(t, done)
		post(t, url+"/v1/completions", `{"prompt": "2+3=", "temperature": 0}`)

		for name, want := range map[string]float64{
			`vllm:time_to_first_token_seconds_count{` + labels + `}`:              9,
			`vllm:time_to_first_token_seconds_bucket{` + labels + `,le="+Inf"}`:   9,
			`vllm:inter_token_latency_seconds_count{` + labels + `}`:              8*4 + 1,
			`vllm:request_time_per_output_token_seconds_count{` + labels + `}`:    9,
			`vllm:e2e_request_latency_seconds_count{` + labels + `}`:              9,
			`vllm:request_generation_tokens_sum{` + labels + `}`:                  42,
			`vllm:request_generation_tokens_bucket{` + labels + `,le="2.0"}`:      1,
			`vllm:request_generation_tokens_bucket{` + labels + `,le="5.0"}`:      9,
			`vllm:request_params_n_sum{` + labels + `}`:                           9,
			`vllm:request_params_max_tokens_sum{` + labels + `}`:                  36,
			`vllm:request_success_total{` + labels + `,finished_reason="length"}`: 8,
			`vllm:request_success_total{` + labels + `,finished_reason="stop"}`:   1,
			`vllm:request_success_total{` + labels + `,finished_reason="abort"}`:  0,
			`vllm:generation_tokens_total{` + labels + `}`:                        42,
			`vllm:num_requests_running{` + labels + `}`:                           0,
			`vllm:num_requests_waiting{` + labels + `}`:                           0,
			`vllm:kv_cache_usage_perc{` + labels + `}`:                            0,
			`vllm:engine_sleep_state{` + labels + `,sleep_state="awake"}`:         1,
			`vllm:cache_config_info{` + labels + `,block_size="16",enable_prefix_caching="True"` + //
				`,gpu_memory_utilization="0",num_gpu_blocks="512"}`: 1,
		} {
			assert.InDelta(t, want, sample(t, url, name), 0, name)
		}
		assert.Positive(t, sample(t, url, `vllm:prefix_cache_queries_total{`+labels+`}`))
		assert.Positive(t, sample(t, url, `vllm:e2e_request_latency_seconds_sum{`+labels+`}`))
		assertHistograms(t, url)
	}
}

// assertHistograms: in every histogram, buckets only grow, and the last one is the count.
func assertHistograms(t *testing.T, url string) {
	t.Helper()
	_, text := getText(t, url+"/metrics")
	bucket := regexp.MustCompile(`^(\S+)_bucket\{.*le="(.*)"\} (\d+)$`)
	last, found := map[string]int{}, 0
	for line := range strings.SplitSeq(text, "\n") {
		m := bucket.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		n, err := strconv.Atoi(m[3])
		require.NoError(t, err)
		assert.GreaterOrEqual(t, n, last[m[1]], line)
		last[m[1]] = n
		if m[2] == "+Inf" {
			found++
			assert.Contains(t, text, m[1]+`_count{`+labels+`} `+m[3]+"\n")
		}
	}
	assert.Equal(t, 8, found)
}

func TestHistogramBounds(t *testing.T) {
	h := newHistogram("h", "help", []float64{1, 2.5})
	for _, v := range []float64{0.5, 1, 2, 2.5, 3} {
		h.observe(v)
	}
	var b strings.Builder
	h.write(&b, `a="b"`)
	assert.Equal(t, `# HELP h help
# TYPE h histogram
h_bucket{a="b",le="1.0"} 2
h_bucket{a="b",le="2.5"} 4
h_bucket{a="b",le="+Inf"} 5
h_count{a="b"} 5
h_sum{a="b"} 9
`, b.String(), "a bound is in its bucket")
	assert.Equal(t, []float64{1, 2, 5, 10, 20}, tokenBuckets(49))
}

// A client that leaves is counted as an abort, and nothing stays active.
func TestAbortIsCounted(t *testing.T) {
	_, url := serveWith(t, engine.Config{}, Options{
		Name: "bundled", LoRA: []string{"adapter"},
		Latency: Latency{InterToken: time.Second}, // it is active when the metrics are read
	})
	const info = `vllm:lora_requests_info{max_lora="1",running_lora_adapters="%",waiting_lora_adapters=""}`
	ctx, cancel := context.WithCancel(t.Context())
	body := `{"model": "adapter", "prompt": "The lighthouse", "max_tokens": 1000, "ignore_eos": true, "stream": true}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	_, err = bufio.NewReader(resp.Body).ReadString('\n')
	require.NoError(t, err)
	assert.Positive(t, sample(t, url, strings.ReplaceAll(info, "%", "adapter")), "a request has the name")
	cancel()
	resp.Body.Close()
	require.Eventually(t, func() bool {
		return sample(t, url, `vllm:request_success_total{`+labels+`,finished_reason="abort"}`) == 1
	}, time.Minute, time.Millisecond)
	assert.Positive(t, sample(t, url, strings.ReplaceAll(info, "%", "")))
}

func TestLoRANames(t *testing.T) {
	_, url := serveWith(t, engine.Config{}, Options{Name: "bundled", LoRA: []string{"sql", "chat=/adapters/chat"}})
	for _, model := range []string{"bundled", "sql", "chat"} {
		status, _, v := post(t, url+"/v1/completions", `{"model": "`+model+`", "prompt": "2+3=", "temperature": 0}`)
		assert.Equal(t, []any{200, model, "5"}, []any{status, v["model"], get(v, "choices", 0, "text")})
	}
	status, _, v := post(t, url+"/v1/completions", `{"model": "other", "prompt": "2+3="}`)
	assert.Equal(t, 404, status, v)
	_, text := getText(t, url+"/v1/models")
	var list object
	require.NoError(t, json.Unmarshal([]byte(text), &list))
	assert.Equal(t, []any{"bundled", nil}, []any{get(list, "data", 0, "id"), get(list, "data", 0, "parent")})
	assert.Equal(t, []any{"sql", "bundled", "sql"}, []any{
		get(list, "data", 1, "id"), get(list, "data", 1, "parent"), get(list, "data", 1, "root"),
	})
	assert.Equal(t, "/adapters/chat", get(list, "data", 2, "root"))
	_, text = getText(t, url+"/v1/models/sql")
	assert.Contains(t, text, `"parent":"bundled"`)

	assert.ErrorContains(t, Options{Name: "a", LoRA: []string{"b", "b"}}.Check(), `"b"`)
	assert.ErrorContains(t, Options{Name: "a", LoRA: []string{"a"}}.Check(), `"a"`)
}

func TestTokenize(t *testing.T) {
	e, url := serveWith(t, engine.Config{}, Options{Name: "bundled"})
	want, err := e.Encode("2+3=")
	require.NoError(t, err)
	status, _, v := post(t, url+"/tokenize", `{"model": "bundled", "prompt": "2+3=", "return_token_strs": true}`)
	require.Equal(t, 200, status, v)
	assert.Equal(t, []any{float64(len(want)), 1024.0}, []any{v["count"], v["max_model_len"]})
	require.Len(t, v["tokens"], len(want))
	ids := make([]string, len(want))
	for i, id := range want {
		assert.InDelta(t, id, get(v, "tokens", i), 0)
		ids[i] = strconv.Itoa(int(id))
	}
	assert.Len(t, v["token_strs"], len(want))
	_, _, back := post(t, url+"/detokenize", `{"model": "bundled", "tokens": [`+strings.Join(ids, ",")+`]}`)
	assert.Equal(t, "2+3=", back["prompt"])

	status, _, v = post(t, url+"/tokenize", `{"messages": [{"role": "user", "content": "Hi"}]}`)
	require.Equal(t, 200, status, v)
	assert.Nil(t, v["token_strs"])
	_, _, whole := post(t, url+"/v1/chat/completions", `{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}`)
	assert.Equal(t, get(whole, "usage", "prompt_tokens"), v["count"], "the prompt of a chat")

	for _, c := range []struct{ path, body, want string }{
		{"/tokenize", `{}`, "missing_required_parameter"},
		{"/tokenize", `{"prompt": "a", "messages": []}`, "invalid_value"},
		{"/tokenize", `{"prompt": "a", "model": "other"}`, "model_not_found"},
		{"/tokenize", `{"prompt": "` + strings.Repeat("xq ", 2000) + `"}`, "context_length_exceeded"},
		{"/detokenize", `{}`, "missing_required_parameter"},
		{"/detokenize", `{"tokens": [1, 99999999]}`, "invalid_value"},
		{"/detokenize", `{"tokens": ["a"]}`, "invalid_type"},
	} {
		status, _, v := post(t, url+c.path, c.body)
		assert.Contains(t, []int{400, 404}, status, v)
		assert.Equal(t, c.want, get(v, "error", "code"), "%s %s", c.path, c.body)
	}
}

// call sends a request without a body and returns the answer's.
func call(t *testing.T, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(data)
}

func TestControl(t *testing.T) {
	e, url := serveWith(t, engine.Config{}, Options{Name: "bundled", Version: "1.2.3"})
	expect := func(method, path string, status int, want string) {
		t.Helper()
		got, text := call(t, method, url+path)
		assert.Equal(t, status, got, "%s %s", path, text)
		assert.Contains(t, text, want, path)
	}
	expect("GET", "/version", 200, `{"version":"1.2.3"}`)
	expect("GET", "/ping", 200, "")
	expect("POST", "/ping", 200, "")
	expect("PUT", "/ping", 405, "method_not_allowed")
	expect("GET", "/is_sleeping", 200, `{"is_sleeping":false}`)

	post(t, url+"/v1/completions", `{"prompt": "`+strings.Repeat("The lighthouse ", 10)+`", "max_tokens": 1}`)
	assert.Positive(t, e.Stats().KVBlocksCached)
	expect("POST", "/reset_prefix_cache?reset_running_requests=true", 400, "unsupported_parameter")
	expect("POST", "/reset_prefix_cache", 200, "")
	assert.Zero(t, e.Stats().KVBlocksCached)

	for _, level := range []string{"1", "2"} {
		expect("POST", "/sleep?mode=abort&level="+level, 200, "")
		expect("GET", "/is_sleeping", 200, `{"is_sleeping":true}`)
		assert.InDelta(t, 0, sample(t, url, `vllm:engine_sleep_state{`+labels+`,sleep_state="awake"}`), 0)
		status, _, _ := post(t, url+"/v1/completions", `{"prompt": "a"}`)
		assert.Equal(t, 503, status)
		status, _, _ = post(t, url+"/tokenize", `{"prompt": "a"}`)
		assert.Equal(t, 200, status, "the tokenizer is on the host")
		expect("POST", "/wake_up?tags=weights", 200, "")
		expect("GET", "/is_sleeping", 200, `{"is_sleeping":true}`)
		expect("POST", "/wake_up?tags=kv_cache", 200, "")
		expect("GET", "/is_sleeping", 200, `{"is_sleeping":false}`)
	}
	expect("POST", "/sleep", 200, "")
	expect("POST", "/wake_up", 200, "")
	expect("POST", "/sleep?level=3", 400, "invalid_value")
	expect("POST", "/sleep?level=x", 400, "invalid_type")
	expect("POST", "/sleep?mode=keep", 400, "unsupported_parameter")
	expect("POST", "/wake_up?tags=lights", 400, "invalid_value")

	postEmpty := func(path, body string) {
		t.Helper()
		resp, err := http.Post(url+path, "application/json", strings.NewReader(body))
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, 200, resp.StatusCode, path)
	}
	expect("GET", "/health_generate", 200, "")
	expect("POST", "/flush_cache", 200, "")
	postEmpty("/release_memory_occupation", "{}")
	assert.Equal(t, engine.Sleeping, e.State())
	postEmpty("/resume_memory_occupation", `{"tags": ["weights", "kv_cache"]}`)
	assert.InDelta(t, 0, sample(t, url, `sglang:num_running_reqs{`+labels+`}`), 0)
	status, _, v := post(t, url+"/v1/completions", `{"prompt": "2+3=", "temperature": 0}`)
	assert.Equal(t, []any{200, "5"}, []any{status, get(v, "choices", 0, "text")})
}

// Blocks that a request holds keep the prefix cache: the caller is told.
func TestResetWhileBusy(t *testing.T) {
	_, url := serveWith(t, engine.Config{}, Options{Name: "bundled"})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions",
		strings.NewReader(`{"prompt": "a", "max_tokens": 1000, "ignore_eos": true, "stream": true}`))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	defer cancel()
	status, text := call(t, "POST", url+"/reset_prefix_cache")
	if status != 200 { // else the request was over
		assert.Equal(t, 409, status)
		assert.Contains(t, text, "blocks_in_use")
	}
}

// No token comes before it is due, whole answers included; the delays follow from the seed.
func TestLatencyProfile(t *testing.T) {
	profile := Latency{FirstToken: 80 * time.Millisecond, InterToken: 20 * time.Millisecond}
	_, url := serveWith(t, engine.Config{}, Options{Name: "bundled", Latency: profile})
	const ask = `{"prompt": "The lighthouse", "max_tokens": 4, "ignore_eos": true, "stream": `
	least := profile.FirstToken + 3*profile.InterToken
	for _, stream := range []string{"true}", "false}"} {
		began := time.Now()
		resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(ask+stream))
		require.NoError(t, err)
		first := make([]byte, 1)
		_, err = io.ReadFull(resp.Body, first)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, time.Since(began), profile.FirstToken)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		assert.GreaterOrEqual(t, time.Since(began), least)
	}
	assert.GreaterOrEqual(t, sample(t, url, `vllm:time_to_first_token_seconds_sum{`+labels+`}`), 0.16)
	assert.GreaterOrEqual(t, sample(t, url, `vllm:e2e_request_latency_seconds_sum{`+labels+`}`), 0.28)

	draws := func(seed uint64, requests int) (all []time.Duration) {
		jitter := Latency{FirstToken: time.Second, InterToken: time.Second, Jitter: 0.5, Seed: seed}
		s := &Server{options: Options{Latency: jitter}}
		for range requests {
			p := s.newPacer(time.Time{}, 2)
			for choice := range 2 {
				d := p.delay(choice)
				assert.InDelta(t, time.Second, d, float64(time.Second)/2)
				all = append(all, d)
			}
		}
		return all
	}
	first := draws(1, 3)
	assert.Equal(t, first, draws(1, 3))
	assert.NotEqual(t, draws(1, 3), draws(2, 3))
	for _, l := range []Latency{{FirstToken: -1}, {InterToken: -1}, {Jitter: 1.1}, {Jitter: -0.1}} {
		assert.Error(t, Options{Latency: l}.Check())
	}
}

// What the engine has finished but a profile holds back still runs, for the metrics and for Finish;
// a shutdown ends it.
func TestProfileHoldsBack(t *testing.T) {
	s, e, url := serve(t, engine.Config{})
	s.options.Latency = Latency{FirstToken: time.Hour}
	answer := make(chan object)
	go func() {
		resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt": "a", "max_tokens": 1}`))
		var v object
		if err == nil {
			err = errors.Join(json.NewDecoder(resp.Body).Decode(&v), resp.Body.Close())
		}
		assert.NoError(t, err)
		answer <- v
	}()
	require.Eventually(t, func() bool { return e.Stats().Finished == 1 }, time.Minute, time.Millisecond)
	assert.InDelta(t, 1, sample(t, url, `vllm:num_requests_running{`+labels+`}`), 0)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	assert.ErrorContains(t, s.Finish(ctx), "1 choices have not been sent")
	assert.NoError(t, e.Shutdown(context.Background()))
	assert.Equal(t, "draining", get(<-answer, "error", "code"))
	assert.NoError(t, s.Finish(t.Context()))
}

// Every way to ask for structured outputs, those of OpenAI and of vLLM, old and new.
func TestStructured(t *testing.T) {
	_, url := serveWith(t, engine.Config{}, Options{Name: "bundled"})
	const schema = `{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false}`
	object, choice := regexp.MustCompile(`^\{\s*"ok": ?(true|false)\s*\}$`), regexp.MustCompile(`^(red|blue)$`)
	for field, want := range map[string]*regexp.Regexp{
		`"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": ` + schema + `}}`: object,
		`"structured_outputs": {"json": ` + schema + `}`:                                                                     object,
		`"structured_outputs": {"json": ` + strconv.Quote(schema) + `}`:                                                      object,
		`"structured_outputs": {"choice": ["red", "blue"]}`:                                                                  choice,
		`"structured_outputs": {"regex": "red|blue"}`:                                                                        choice,
		`"structured_outputs": {"grammar": "root ::= \"red\" | \"blue\""}`:                                                   choice,
		`"guided_json": ` + schema:                                                                                           object,
		`"guided_regex": "red|blue"`:                                                                                         choice,
		`"guided_choice": ["red", "blue"]`:                                                                                   choice,
		`"guided_grammar": "root ::= color\ncolor ::= \"red\" | \"blue\""`:                                                   choice,
		`"response_format": {"type": "text"}, "structured_outputs": {"choice": ["red"]}`:                                     choice,
	} {
		status, _, v := post(t, url+"/v1/completions", `{"prompt": "a", "max_tokens": 100, `+field+`}`)
		require.Equal(t, 200, status, v)
		assert.Regexp(t, want, get(v, "choices", 0, "text"), field)
		status, _, v = post(t, url+"/v1/chat/completions", `{"messages": [{"role": "user", "content": "a"}], `+field+`}`)
		require.Equal(t, 200, status, v)
		assert.Regexp(t, want, get(v, "choices", 0, "message", "content"), field)
	}
	for field, code := range map[string]string{
		`"response_format": {"type": "json_schema"}`:                                           "invalid_value",
		`"response_format": {"type": "xml"}`:                                                   "unsupported_parameter",
		`"guided_json": {}, "guided_regex": "a"`:                                               "invalid_value",
		`"structured_outputs": {}`:                                                             "invalid_value",
		`"structured_outputs": {"regex": "a", "choice": ["a"]}`:                                "invalid_value",
		`"structured_outputs": {"structural_tag": "a"}`:                                        "invalid_type",
		`"structured_outputs": {"json": {"not": {}}}`:                                          "unsupported_grammar",
		`"structured_outputs": {"grammar": "root ::= x"}`:                                      "invalid_value",
		`"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}`: "invalid_value",
	} {
		status, _, v := post(t, url+"/v1/completions", `{"prompt": "a", `+field+`}`)
		assert.Equal(t, []any{400, code}, []any{status, get(v, "error", "code")}, "%s: %v", field, v)
	}
}
