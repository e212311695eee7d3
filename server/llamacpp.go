package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/enginetest/enginetest/llm"
)

// llamaCpp is llama.cpp's llama-server. It is asked over its own /completion, which tells token
// ids.
var llamaCpp = register(&api{
	protocol:         ProtocolLlamaCpp,
	healthPath:       "/health",
	setUp:            openAI.setUp,
	generate:         llamaGenerate,
	stream:           llamaStream,
	chat:             llamaChat,
	embed:            llamaEmbed,
	score:            llamaScore,
	tokenize:         llamaTokenize,
	detokenize:       llamaDetokenize,
	resetPrefixCache: llamaReset,
	stats: prometheus("llamacpp:requests_processing", "llamacpp:requests_deferred",
		"llamacpp:kv_cache_usage_ratio"),
})

var llamaNames = wire("Temperature", "TopK", "TopP", "MinP", "TypicalP", "Seed", "PresencePenalty", "FrequencyPenalty",
	"LogitBias",
	"Stop", "IgnoreEOS").with(names{
	"MaxTokens": "n_predict", "N": "n_cmpl", "RepetitionPenalty": "repeat_penalty",
	"Logprobs": "n_probs",
})

// llamaNeutral switches off what llama-server has on by default, and lets penalties see the whole
// context.
var llamaNeutral = map[string]any{
	"top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1, "repeat_penalty": 1,
	"repeat_last_n": 1 << 20,
}

func llamaBody(r llm.Request, stream bool) (map[string]any, error) {
	body, err := llamaSampling(r.Sampling)
	if err != nil {
		return nil, err
	}
	body["prompt"], body["return_tokens"], body["stream"] = prompt(r), true, stream
	return body, nil
}

func llamaSampling(p llm.SamplingParams) (map[string]any, error) {
	body, err := llamaNames.body(ProtocolLlamaCpp, p)
	if err != nil {
		return nil, err
	}
	for k, v := range llamaNeutral {
		if _, set := body[k]; !set {
			body[k] = v
		}
	}
	if p.Logprobs != nil {
		if *p.Logprobs < 0 {
			return nil, &UnsupportedError{
				Protocol: ProtocolLlamaCpp, Verb: "parameter Logprobs of -1",
				Reason: "it takes a number of tokens",
			}
		}
		body["n_probs"] = max(1, *p.Logprobs) // 0 would be none
	}
	if len(p.LogitBias) > 0 {
		var pairs [][2]any
		for id, bias := range p.LogitBias {
			pairs = append(pairs, [2]any{id, bias})
		}
		body["logit_bias"] = pairs
	}
	return body, nil
}

// llamaAnswer is an answer of /completion, or an event of its stream.
type llamaAnswer struct {
	Index        int
	Content      string
	Tokens       []int32
	Stop         bool
	StopType     string      `json:"stop_type"`
	StoppingWord string      `json:"stopping_word"`
	Probs        []candidate `json:"completion_probabilities"`
	Timings      struct {
		CacheN int `json:"cache_n"`
	} //nolint:tagliatelle // theirs
}

func (a llamaAnswer) reason() llm.FinishReason {
	switch {
	case !a.Stop:
		return ""
	case a.StopType == "eos", a.StopType == "word":
		return llm.FinishStop
	case a.StopType == "limit":
		return llm.FinishLength
	}
	return llm.FinishAbort
}

// delta is an answer, or a piece of one, to a request that asked for the k likeliest tokens.
func (a llamaAnswer) delta(k *int) llm.Delta {
	d := llm.Delta{
		Index: a.Index, TokenIDs: a.Tokens, Text: a.Content, FinishReason: a.reason(),
		StopReason: a.StoppingWord,
	}
	for _, c := range a.Probs {
		lps := c.position()
		if k != nil && *k == 0 { // llamaBody asked for one: there is no other way to get the chosen one
			lps = slices.DeleteFunc(lps, func(lp llm.Logprob) bool { return c.ID != nil && lp.TokenID != *c.ID })
		}
		d.Logprobs = append(d.Logprobs, lps)
	}
	return d
}

// llamaAnswers are one answer, or a list when there are several.
type llamaAnswers []llamaAnswer

func (l *llamaAnswers) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[]llamaAnswer)(l))
	}
	*l = make(llamaAnswers, 1)
	return json.Unmarshal(b, &(*l)[0])
}

func llamaGenerate(ctx context.Context, s *Server, r llm.Request) (llm.Output, error) {
	body, err := llamaBody(r, false)
	if err != nil {
		return llm.Output{}, err
	}
	var res llamaAnswers
	if err := s.client.post(ctx, "/completion", body, &res); err != nil {
		return llm.Output{}, err
	}
	out := llm.Output{Prompt: r.Prompt, PromptTokenIDs: r.PromptTokenIDs}
	for _, a := range res {
		d := a.delta(r.Sampling.Logprobs)
		c := llm.Completion{
			Index: a.Index, TokenIDs: d.TokenIDs, Text: d.Text, FinishReason: d.FinishReason,
			StopReason: d.StopReason, Logprobs: d.Logprobs,
		}
		for _, p := range a.Probs {
			c.CumulativeLogprob += float64(p.Logprob)
		}
		out.Completions = append(out.Completions, c)
		out.CachedTokens = max(out.CachedTokens, a.Timings.CacheN)
	}
	slices.SortFunc(out.Completions, func(a, b llm.Completion) int { return cmp.Compare(a.Index, b.Index) })
	return out, nil
}

func llamaStream(ctx context.Context, s *Server, r llm.Request, yield func(llm.Delta) bool) error {
	body, err := llamaBody(r, true)
	if err != nil {
		return err
	}
	left := max(1, r.Sampling.N)
	return s.client.events(ctx, "/completion", body, true, func(event []byte) (bool, error) {
		var a llamaAnswer
		if err := json.Unmarshal(event, &a); err != nil {
			return false, err
		}
		if a.Stop {
			left--
		}
		return yield(a.delta(r.Sampling.Logprobs)) && left > 0, nil // no [DONE] follows
	})
}

// llamaChat uses the OpenAI form, with llama-server's own parameters.
func llamaChat(ctx context.Context, s *Server, messages []llm.Message, p llm.SamplingParams) (llm.Output, error) {
	body, err := llamaSampling(p)
	if err != nil {
		return llm.Output{}, err
	}
	body["messages"] = chatMessages(messages)
	delete(body, "n_probs")
	if p.Logprobs != nil {
		body["logprobs"], body["top_logprobs"] = true, *p.Logprobs
	}
	if p.N > 1 {
		delete(body, "n_cmpl")
		body["n"] = p.N
	}
	finish(body, s.model, false, false)
	var res openAIAnswer
	if err := s.client.post(ctx, "/v1/chat/completions", body, &res); err != nil {
		return llm.Output{}, err
	}
	return res.output(llm.Request{}), nil
}

func llamaEmbed(ctx context.Context, s *Server, texts []string) ([][]float32, error) {
	return embeddings(ctx, s, "/v1/embeddings", texts)
}

func llamaScore(ctx context.Context, s *Server, query string, texts []string) ([]float32, error) {
	var res struct {
		Results []struct {
			Index int
			Score float32 `json:"relevance_score"`
		}
	}
	if err := s.client.post(ctx, "/v1/rerank", map[string]any{"model": s.model, "query": query, "documents": texts},
		&res); err != nil {
		return nil, err
	}
	out := make([]float32, len(texts))
	for _, r := range res.Results {
		if r.Index >= 0 && r.Index < len(out) {
			out[r.Index] = r.Score
		}
	}
	return out, nil
}

func llamaTokenize(ctx context.Context, s *Server, text string) ([]int32, error) {
	var res struct{ Tokens []int32 }
	err := s.client.post(ctx, "/tokenize", map[string]any{"content": text}, &res)
	return res.Tokens, err
}

func llamaDetokenize(ctx context.Context, s *Server, ids []int32) (string, error) {
	var res struct{ Content string }
	err := s.client.post(ctx, "/detokenize", map[string]any{"tokens": ids}, &res)
	return res.Content, err
}

// llamaReset erases every slot. The server refuses that without --slot-save-path, which [LlamaCpp]
// gives it.
func llamaReset(ctx context.Context, s *Server) error {
	var slots []struct{ ID int }
	if err := s.client.get(ctx, "/slots", &slots); err != nil {
		return err
	}
	for _, slot := range slots {
		if err := s.client.post(ctx, fmt.Sprintf("/slots/%d?action=erase", slot.ID), map[string]any{},
			nil); err != nil {
			return err
		}
	}
	return nil
}
