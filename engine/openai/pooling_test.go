package openai

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/llm"
)

// vectorOf reads a list of numbers.
func vectorOf(t *testing.T, v any) (out []float32) {
	t.Helper()
	list, ok := v.([]any)
	require.True(t, ok, v)
	for _, x := range list {
		out = append(out, float32(x.(float64)))
	}
	return out
}

func TestEmbeddings(t *testing.T) {
	_, e, url := serve(t, engine.Config{Device: "cpu", Task: llm.TaskEmbed})
	want, err := e.Embed(t.Context(), "The lighthouse", "2+3=")
	require.NoError(t, err)
	ids, err := e.Encode("The lighthouse")
	require.NoError(t, err)

	status, _, v := post(t, url+"/v1/embeddings", `{"input": ["The lighthouse", "2+3="], "model": "bundled"}`)
	require.Equal(t, 200, status, v)
	assert.Equal(t, "list", v["object"])
	for i := range want {
		assert.Equal(t, "embedding", get(v, "data", i, "object"))
		assert.InDelta(t, i, get(v, "data", i, "index"), 0)
		assert.InDeltaSlice(t, want[i], vectorOf(t, get(v, "data", i, "embedding")), 1e-6)
	}
	assert.Equal(t, get(v, "usage", "prompt_tokens"), get(v, "usage", "total_tokens"))

	status, _, v = post(t, url+"/v1/embeddings", fmt.Sprintf(`{"input": %s}`, strings.ReplaceAll(fmt.Sprint(ids), " ", ",")))
	require.Equal(t, 200, status, v)
	assert.InDeltaSlice(t, want[0], vectorOf(t, get(v, "data", 0, "embedding")), 1e-5, "token ids are an input, too")
	assert.InDelta(t, len(ids), get(v, "usage", "prompt_tokens"), 0)

	status, _, v = post(t, url+"/v1/embeddings", `{"input": "The lighthouse", "encoding_format": "base64", "dimensions": 8}`)
	require.Equal(t, 200, status, v)
	raw, err := base64.StdEncoding.DecodeString(get(v, "data", 0, "embedding").(string))
	require.NoError(t, err)
	require.Len(t, raw, 4*8)
	var length float64
	for i := range 8 {
		x := float64(math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:])))
		length += x * x
	}
	assert.InDelta(t, 1, length, 1e-5, "a cut embedding has length 1 again")
}

func TestClassifyScoreRerank(t *testing.T) {
	dir := fixtures.Checkpoint(t, fixtures.Spec{Architecture: fixtures.Qwen2Classifier, Tokenizer: true, Labels: 3})
	_, e, url := serve(t, engine.Config{Model: dir, Device: "cpu"})
	want, err := e.Classify(t.Context(), "The lighthouse", "2+3=")
	require.NoError(t, err)
	status, _, v := post(t, url+"/classify", `{"input": ["The lighthouse", "2+3="]}`)
	require.Equal(t, 200, status, v)
	for i := range want {
		probs := vectorOf(t, get(v, "data", i, "probs"))
		assert.InDeltaSlice(t, want[i], probs, 1e-6)
		best := 0
		for k, p := range probs {
			if p > probs[best] {
				best = k
			}
		}
		assert.Equal(t, fmt.Sprintf("LABEL_%d", best), get(v, "data", i, "label"))
		assert.InDelta(t, 3, get(v, "data", i, "num_classes"), 0)
	}
	status, _, v = post(t, url+"/score", `{"text_1": "a", "text_2": "b"}`)
	assert.Equal(t, 400, status)
	assert.Equal(t, "unsupported_task", get(v, "error", "code"))
	assert.Contains(t, get(v, "error", "message"), "it has 3 classes")

	dir = fixtures.Checkpoint(t, fixtures.Spec{Architecture: fixtures.Qwen2Classifier, Tokenizer: true, Labels: 1})
	_, e, url = serve(t, engine.Config{Model: dir, Device: "cpu"})
	scores, err := e.Score(t.Context(), "light", "The lighthouse", "2+3=", "A storm.")
	require.NoError(t, err)
	const texts = `["The lighthouse", "2+3=", "A storm."]`
	for _, path := range []string{"/score", "/v1/score"} {
		status, _, v = post(t, url+path, `{"text_1": "light", "text_2": `+texts+`}`)
		require.Equal(t, 200, status, v)
		for i, s := range scores {
			assert.InDelta(t, s, get(v, "data", i, "score"), 1e-6)
		}
	}
	status, _, v = post(t, url+"/score", `{"text_1": ["light", "sum", "light"], "text_2": `+texts+`}`)
	require.Equal(t, 200, status, v)
	assert.InDelta(t, scores[2], get(v, "data", 2, "score"), 1e-6)

	for _, path := range []string{"/rerank", "/v1/rerank", "/v2/rerank"} {
		status, _, v = post(t, url+path, `{"query": "light", "documents": `+texts+`, "top_n": 2}`)
		require.Equal(t, 200, status, v)
		results := get(v, "results").([]any)
		require.Len(t, results, 2)
		first, second := results[0].(object), results[1].(object)
		assert.GreaterOrEqual(t, first["relevance_score"], second["relevance_score"])
		at := int(first["index"].(float64))
		assert.InDelta(t, scores[at], first["relevance_score"], 1e-6)
		assert.Contains(t, []string{"The lighthouse", "2+3=", "A storm."}, first["document"].(object)["text"])
		assert.Positive(t, get(v, "usage", "total_tokens"))
	}
}

func TestPoolingRefusals(t *testing.T) {
	_, _, generator := serve(t, engine.Config{Device: "cpu"})
	_, _, embedder := serve(t, engine.Config{Device: "cpu", Task: llm.TaskEmbed, MaxModelLen: 16})
	const text, talk = "/v1/completions", "/v1/chat/completions"
	for _, c := range []struct {
		url, path, body string
		status          int
		param, code     string
	}{
		{generator, "/v1/embeddings", `{"input": "a"}`, 400, "", "unsupported_task"},
		{generator, "/score", `{"text_1": "a", "text_2": "b"}`, 400, "", "unsupported_task"},
		{embedder, text, `{"prompt": "a"}`, 400, "", "unsupported_task"},
		{embedder, talk, `{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}`, 400, "", "unsupported_task"},
		{embedder, "/classify", `{"input": "a"}`, 400, "", "unsupported_task"},
		{embedder, "/v1/embeddings", `{}`, 400, "input", "missing_required_parameter"},
		{embedder, "/v1/embeddings", `{"input": []}`, 400, "input", "invalid_value"},
		{embedder, "/v1/embeddings", `{"input": [[]]}`, 400, "input", "invalid_value"},
		{embedder, "/v1/embeddings", `{"input": [5, 99999]}`, 400, "input", "invalid_value"},
		{embedder, "/v1/embeddings", `{"input": {"a": 1}}`, 400, "input", "invalid_type"},
		{embedder, "/v1/embeddings", `{"input": "a", "dimensions": 0}`, 400, "dimensions", "invalid_value"},
		{embedder, "/v1/embeddings", `{"input": "a", "dimensions": 100000}`, 400, "dimensions", "invalid_value"},
		{embedder, "/v1/embeddings", `{"input": "a", "encoding_format": "hex"}`, 400, "encoding_format", "invalid_value"},
		{embedder, "/v1/embeddings", `{"input": "a", "truncate_prompt_tokens": 3}`, 400, "truncate_prompt_tokens", "unsupported_parameter"},
		{embedder, "/v1/embeddings", `{"input": "a", "size": 3}`, 400, "size", "unknown_parameter"},
		{embedder, "/v1/embeddings", `{"input": "` + strings.Repeat("The lighthouse. ", 20) + `"}`, 400, "", "context_length_exceeded"},
		{embedder, "/v1/embeddings", `{"input": [` + strings.Repeat("5,", 20) + `5]}`, 400, "", "context_length_exceeded"},
		{embedder, "/v1/embeddings", `{"input": "a", "model": "other"}`, 404, "model", "model_not_found"},
		{embedder, "/score", `{"text_2": "b"}`, 400, "text_1", "missing_required_parameter"},
		{embedder, "/score", `{"text_1": "b"}`, 400, "text_2", "missing_required_parameter"},
		{embedder, "/score", `{"text_1": ["a", "b"], "text_2": ["c"]}`, 400, "text_1", "invalid_value"},
		{embedder, "/rerank", `{"documents": ["a"]}`, 400, "query", "missing_required_parameter"},
		{embedder, "/rerank", `{"query": "a"}`, 400, "documents", "missing_required_parameter"},
		{embedder, "/rerank", `{"query": "a", "documents": ["a"], "top_n": -1}`, 400, "top_n", "invalid_value"},
		{embedder, "/rerank", `{"query": "a", "documents": [{"text": "a"}]}`, 400, "documents", "invalid_type"},
	} {
		t.Run(fmt.Sprintf("%.80s", c.path+c.body), func(t *testing.T) {
			status, _, v := post(t, c.url+c.path, c.body)
			assert.Equal(t, c.status, status, v)
			want := func(s string) any {
				if s == "" {
					return nil
				}
				return s
			}
			assert.Equal(t, want(c.param), get(v, "error", "param"), v)
			assert.Equal(t, want(c.code), get(v, "error", "code"), v)
		})
	}
}

// TestPoolingNeedsTheKey checks that the paths outside /v1 are not open to everyone.
func TestPoolingNeedsTheKey(t *testing.T) {
	web := httptest.NewServer(New(Options{APIKey: "secret"}))
	defer web.Close()
	for path := range New(Options{}).poolingRoutes() {
		resp, err := http.Post(web.URL+path, "application/json", strings.NewReader(`{}`))
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, http.StatusUnauthorized, resp.StatusCode, path)
	}
	http.DefaultClient.CloseIdleConnections()
}
