package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/llm"
	"github.com/enginetest/enginetest/server"
)

// recorder is a remote that answers everything with one text, and remembers what it was asked.
type recorder struct {
	*httptest.Server
	answer string
	asked  []string // "POST /path body"
}

func record(t *testing.T) *recorder {
	r := &recorder{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		if req.Method == http.MethodPost {
			r.asked = append(r.asked, req.Method+" "+req.URL.RequestURI()+" "+canonical(b))
		}
		fmt.Fprint(w, r.answer)
	}))
	t.Cleanup(r.Close)
	return r
}

// canonical sorts the keys of an object.
func canonical(b []byte) string {
	var v any
	if json.Unmarshal(b, &v) != nil {
		return string(b)
	}
	out, _ := json.Marshal(v)
	return string(out)
}

// What each protocol sends, and what it makes of the answer: vLLM's, SGLang's and Ollama's have no
// real server here.
func TestWire(t *testing.T) {
	seed, k := int64(7), 2
	full := llm.Request{Prompt: "a", Sampling: llm.SamplingParams{
		MaxTokens: 5, TopK: 3, Seed: &seed, Stop: []string{"x"}, RepetitionPenalty: 1.5, MinTokens: 2, IgnoreEOS: true, PromptLogprobs: &k, Logprobs: &k,
	}}
	const vLLMAnswer = `{"id":"r1","choices":[{"index":0,"text":"bc","token_ids":[5,6],"prompt_token_ids":[1,2],"finish_reason":"stop","stop_reason":9,
		"logprobs":{"tokens":["b","c"],"token_logprobs":[-0.5,-1],"top_logprobs":[{"b":-0.5,"d":-2},{"c":-1,"b":-1.5}]},
		"prompt_logprobs":[null,{"2":{"logprob":-3,"rank":2,"decoded_token":"y"},"4":{"logprob":-1,"rank":1,"decoded_token":"z"}}]}],
		"usage":{"prompt_tokens_details":{"cached_tokens":1}}}`
	t.Run("vllm", func(t *testing.T) {
		r, s := attached(t, server.ProtocolVLLM)
		r.answer = vLLMAnswer
		outs, err := s.Generate(within(t), full)
		require.NoError(t, err)
		require.Equal(t, []string{`POST /v1/completions {"ignore_eos":true,"logprobs":2,"max_tokens":5,"min_tokens":2,"model":"m","prompt":"a","prompt_logprobs":2,` +
			`"repetition_penalty":1.5,"return_token_ids":true,"seed":7,"stop":["x"],"temperature":0,"top_k":3}`}, r.asked)
		require.Equal(t, llm.Output{
			RequestID: "r1", Prompt: "a", PromptTokenIDs: []int32{1, 2}, CachedTokens: 1,
			PromptLogprobs: [][]llm.Logprob{nil, {
				{TokenID: 4, Logprob: -1, Rank: 1, Token: "z"},
				{TokenID: 2, Logprob: -3, Rank: 2, Token: "y"},
			}},
			Completions: []llm.Completion{{
				TokenIDs: []int32{
					5,
					6,
				}, Text: "bc", FinishReason: llm.FinishStop, StopReason: "9", CumulativeLogprob: -1.5,
				Logprobs: [][]llm.Logprob{
					{{TokenID: 5, Logprob: -0.5, Rank: 1, Token: "b"}, {TokenID: -1, Logprob: -2, Rank: 2, Token: "d"}},
					{{TokenID: 6, Logprob: -1, Rank: 1, Token: "c"}, {TokenID: -1, Logprob: -1.5, Rank: 2, Token: "b"}},
				},
			}},
		}, outs[0])
		for _, c := range []struct {
			answer, want string
			call         func() (any, error)
			result       any
		}{
			{"", "POST /sleep?level=2 ", func() (any, error) { return nil, s.Sleep(within(t), 2) }, nil},
			{"", "POST /wake_up?tags=weights&tags=kv_cache ", func() (any, error) {
				return nil, s.Wake(within(t), "weights", "kv_cache")
			}, nil},
			{"", "POST /reset_prefix_cache ", func() (any, error) { return nil, s.ResetPrefixCache(within(t)) }, nil},
			{
				`{"tokens":[3,4]}`, `POST /tokenize {"add_special_tokens":false,"model":"m","prompt":"ab"}`,
				func() (any, error) { return s.Tokenize(within(t), "ab") },
				[]int32{3, 4},
			},
			{
				`{"prompt":"ab"}`, `POST /detokenize {"model":"m","tokens":[3,4]}`,
				func() (any, error) { return s.Detokenize(within(t), []int32{3, 4}) }, "ab",
			},
			{
				`{"data":[{"index":1,"embedding":[2]},{"index":0,"embedding":[1]}]}`, `POST /v1/embeddings {"input":["a","b"],"model":"m"}`,
				func() (any, error) { return s.Embed(within(t), "a", "b") },
				[][]float32{{1}, {2}},
			},
			{
				`{"data":[{"index":0,"probs":[0.25,0.75]}]}`, `POST /classify {"input":["a"],"model":"m"}`,
				func() (any, error) { return s.Classify(within(t), "a") },
				[][]float32{{0.25, 0.75}},
			},
			{
				`{"data":[{"index":1,"score":0.5},{"index":0,"score":1}]}`, `POST /score {"model":"m","text_1":"q","text_2":["a","b"]}`,
				func() (any, error) { return s.Score(within(t), "q", "a", "b") },
				[]float32{1, 0.5},
			},
		} {
			r.answer, r.asked = c.answer, nil
			got, err := c.call()
			require.NoError(t, err)
			require.Equal(t, []string{c.want}, r.asked)
			require.Equal(t, c.result, got)
		}
	})
	t.Run("sglang", func(t *testing.T) {
		r, s := attached(t, server.ProtocolSGLang)
		require.NoError(t, s.Sleep(within(t), 1))
		require.NoError(t, s.Wake(within(t), "weights"))
		require.NoError(t, s.ResetPrefixCache(within(t)))
		require.Equal(t, []string{
			"POST /release_memory_occupation {}", `POST /resume_memory_occupation {"tags":["weights"]}`, "POST /flush_cache ",
		}, r.asked)
		_, err := s.Generate(within(t), full)
		require.ErrorContains(t, err, "sglang has no parameter PromptLogprobs")
		r.answer = "sglang:num_running_reqs{a=\"}\"} 3\nsglang:num_queue_reqs 4\nsglang:token_usage 0.5\n"
		st, err := s.Stats(within(t))
		require.NoError(t, err)
		require.Equal(t, []any{3, 4, 0.5}, []any{st.Running, st.Waiting, st.KVUsage})
	})
	t.Run("ollama", func(t *testing.T) {
		r, s := attached(t, server.ProtocolOllama)
		r.answer = `{"response":"b","done":true,"done_reason":"length"}`
		outs, err := s.Generate(within(t), llm.Request{
			Prompt:   "a",
			Sampling: llm.SamplingParams{MaxTokens: 5, Seed: &seed, TopK: 3, Stop: []string{"x"}},
		})
		require.NoError(t, err)
		require.Equal(t, []string{`POST /api/generate {"model":"m","options":{"min_p":0,"num_predict":5,"repeat_last_n":131072,"repeat_penalty":1,"seed":7,"stop":["x"],` +
			`"temperature":0,"top_k":3,"top_p":1,"typical_p":1},"prompt":"a","raw":true,"stream":false}`}, r.asked)
		require.Equal(t, llm.Completion{Text: "b", FinishReason: llm.FinishLength}, outs[0].Completions[0])
		_, err = s.Generate(within(t), llm.Request{PromptTokenIDs: []int32{1}})
		require.ErrorContains(t, err, "ollama has no prompt of token ids")
		r.answer = `{"models":[{"name":"n:latest","size":10,"size_vram":4}]}`
		st, err := s.Stats(within(t))
		require.NoError(t, err)
		require.Equal(t, []server.LoadedModel{{Name: "n:latest", Bytes: 10, DeviceBytes: 4}}, st.Loaded)
		require.NoError(t, s.Unload(within(t)), "n:latest is another model")
	})
}

func attached(t *testing.T, p server.Protocol) (*recorder, *server.Server) {
	t.Helper()
	r := record(t)
	r.answer = "{}"
	if p == server.ProtocolSGLang || p == server.ProtocolVLLM {
		r.answer = "x 1\n"
	}
	s, err := server.Attach(r.URL).With(server.Speaks(p), server.Model("m")).Start(within(t))
	require.NoError(t, err)
	return r, s
}
