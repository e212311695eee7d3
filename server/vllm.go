package server

import (
	"context"
	"net/url"
	"strconv"

	"github.com/enginetest/enginetest/llm"
)

// vLLM is vLLM's server: OpenAI's API with more parameters, token ids, and verbs of its own.
var vLLM = register(vLLMLike(ProtocolVLLM, vLLMNames))

func vLLMLike(p Protocol, n names) *api {
	a := openAILike(p, n, true)
	a.anyHealth = false
	a.classify = vLLMClassify
	a.score = vLLMScore
	a.tokenize = func(ctx context.Context, s *Server, text string) ([]int32, error) {
		var res struct{ Tokens []int32 }
		err := s.client.post(ctx, "/tokenize", map[string]any{
			"model": s.model, "prompt": text,
			"add_special_tokens": false,
		}, &res)
		return res.Tokens, err
	}
	a.detokenize = func(ctx context.Context, s *Server, ids []int32) (string, error) {
		var res struct{ Prompt string }
		err := s.client.post(ctx, "/detokenize", map[string]any{"model": s.model, "tokens": ids}, &res)
		return res.Prompt, err
	}
	a.sleep = func(ctx context.Context, s *Server, level int) error {
		return s.client.post(ctx, "/sleep?level="+strconv.Itoa(level), nil, nil)
	}
	a.wake = func(ctx context.Context, s *Server, tags []string) error {
		path := "/wake_up"
		if len(tags) > 0 {
			path += "?" + url.Values{"tags": tags}.Encode()
		}
		return s.client.post(ctx, path, nil, nil)
	}
	a.resetPrefixCache = func(ctx context.Context, s *Server) error {
		return s.client.post(ctx, "/reset_prefix_cache", nil, nil)
	}
	a.stats = prometheus("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
	return a
}

func vLLMClassify(ctx context.Context, s *Server, texts []string) ([][]float32, error) {
	var res struct {
		Data []struct {
			Index int
			Probs []float32
		}
	}
	if err := s.client.post(ctx, "/classify", map[string]any{"model": s.model, "input": texts}, &res); err != nil {
		return nil, err
	}
	out := make([][]float32, len(texts))
	for _, d := range res.Data {
		if d.Index >= 0 && d.Index < len(out) {
			out[d.Index] = d.Probs
		}
	}
	return out, nil
}

func vLLMScore(ctx context.Context, s *Server, query string, texts []string) ([]float32, error) {
	var res struct {
		Data []struct {
			Index int
			Score float32
		}
	}
	if err := s.client.post(ctx, "/score", map[string]any{"model": s.model, "text_1": query, "text_2": texts},
		&res); err != nil {
		return nil, err
	}
	out := make([]float32, len(texts))
	for _, d := range res.Data {
		if d.Index >= 0 && d.Index < len(out) {
			out[d.Index] = d.Score
		}
	}
	return out, nil
}

// enginetest is `enginetest serve`: vLLM's paths and names.
var enginetest = register(vLLMLike(ProtocolEnginetest, vLLMNames.without("PromptLogprobs").with(wire("TypicalP", "LogprobsMode"))))

// sgLang is SGLang's server: OpenAI's API, and control verbs of its own.
var sgLang = register(func() *api {
	a := openAILike(ProtocolSGLang, vLLMNames.without("AllowedTokenIDs", "BadWords", "PromptLogprobs",
		"IncludeStopInOutput", "StructuredOutputs"), false)
	a.anyHealth = false
	a.resetPrefixCache = func(ctx context.Context, s *Server) error {
		return s.client.post(ctx, "/flush_cache", nil, nil)
	}
	a.sleep = func(ctx context.Context, s *Server, level int) error {
		if level != 1 {
			return &llm.ParamError{Field: "level", Value: level, Bound: "1 for SGLang"}
		}
		return s.client.post(ctx, "/release_memory_occupation", map[string]any{}, nil)
	}
	a.wake = func(ctx context.Context, s *Server, tags []string) error {
		body := map[string]any{}
		if len(tags) > 0 {
			body["tags"] = tags
		}
		return s.client.post(ctx, "/resume_memory_occupation", body, nil)
	}
	a.stats = prometheus("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage")
	return a
}())
