package server

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/enginetest/enginetest/llm"
)

// openAINames are the parameters of OpenAI's API.
var openAINames = wire("MaxTokens", "N", "Temperature", "TopP", "Seed", "Stop", "PresencePenalty", "FrequencyPenalty",
	"LogitBias", "Logprobs")

// vLLMNames are those that vLLM has besides.
var vLLMNames = openAINames.with(wire("MinTokens", "TopK", "MinP", "RepetitionPenalty", "AllowedTokenIDs", "BadWords",
	"StopTokenIDs", "IncludeStopInOutput", "IgnoreEOS", "SkipSpecialTokens", "PromptLogprobs",
	"StructuredOutputs"))

// openAI is what every server with OpenAI's API has.
var openAI = register(openAILike(ProtocolOpenAI, openAINames, false))

// openAILike makes the verbs of OpenAI's API. ids: the server returns token ids when asked, as vLLM
// does.
func openAILike(p Protocol, n names, ids bool) *api {
	a := &api{protocol: p, healthPath: "/health", anyHealth: true}
	a.setUp = func(ctx context.Context, s *Server) error {
		if s.model != "" {
			return nil
		}
		if name, err := s.modelName(ctx); err == nil {
			s.model = name // a server that lists no models may need none
		}
		return nil
	}
	request := func(s *Server, r llm.Request, stream bool) (map[string]any, error) {
		body, err := n.body(p, r.Sampling)
		if err != nil {
			return nil, err
		}
		body["prompt"] = prompt(r)
		finish(body, s.model, ids, stream)
		return body, nil
	}
	a.generate = func(ctx context.Context, s *Server, r llm.Request) (llm.Output, error) {
		body, err := request(s, r, false)
		if err != nil {
			return llm.Output{}, err
		}
		var res openAIAnswer
		if err := s.client.post(ctx, "/v1/completions", body, &res); err != nil {
			return llm.Output{}, err
		}
		return res.output(r), nil
	}
	a.stream = func(ctx context.Context, s *Server, r llm.Request, yield func(llm.Delta) bool) error {
		body, err := request(s, r, true)
		if err != nil {
			return err
		}
		return s.client.events(ctx, "/v1/completions", body, true, func(event []byte) (bool, error) {
			var res openAIAnswer
			if err := json.Unmarshal(event, &res); err != nil {
				return false, err
			}
			for _, c := range res.Choices {
				if d := c.delta(); (d.Text != "" || len(d.TokenIDs) > 0 || d.FinishReason != "") && !yield(d) {
					return false, nil
				}
			}
			return true, nil
		})
	}
	a.chat = func(ctx context.Context, s *Server, messages []llm.Message, sp llm.SamplingParams) (llm.Output, error) {
		body, err := n.without("PromptLogprobs").body(p, sp)
		if err != nil {
			return llm.Output{}, err
		}
		body["messages"] = chatMessages(messages)
		if sp.Logprobs != nil {
			body["logprobs"], body["top_logprobs"] = true, *sp.Logprobs
		}
		finish(body, s.model, ids, false)
		var res openAIAnswer
		if err := s.client.post(ctx, "/v1/chat/completions", body, &res); err != nil {
			return llm.Output{}, err
		}
		return res.output(llm.Request{}), nil
	}
	a.embed = func(ctx context.Context, s *Server, texts []string) ([][]float32, error) {
		return embeddings(ctx, s, "/v1/embeddings", texts)
	}
	return a
}

func finish(body map[string]any, model string, ids, stream bool) {
	if model != "" {
		body["model"] = model
	}
	if ids {
		body["return_token_ids"] = true
	}
	if stream {
		body["stream"] = true
	}
}

func chatMessages(messages []llm.Message) []map[string]string {
	out := make([]map[string]string, len(messages))
	for i, m := range messages {
		out[i] = map[string]string{"role": m.Role, "content": m.Content}
	}
	return out
}

// embeddings asks for vectors as OpenAI, vLLM, SGLang and llama.cpp have them.
func embeddings(ctx context.Context, s *Server, path string, texts []string) ([][]float32, error) {
	type vector struct {
		Index     int
		Embedding []float32
	}
	var res struct{ Data []vector }
	if err := s.client.post(ctx, path, map[string]any{"model": s.model, "input": texts}, &res); err != nil {
		return nil, err
	}
	slices.SortFunc(res.Data, func(a, b vector) int { return cmp.Compare(a.Index, b.Index) })
	var out [][]float32
	for _, d := range res.Data {
		out = append(out, d.Embedding)
	}
	return out, nil
}

// openAIAnswer is an answer to a completion or a chat, or an event of its stream.
type openAIAnswer struct {
	ID      string
	Choices []openAIChoice
	Usage   struct {
		PromptTokensDetails struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	PromptTokenIDs []int32 `json:"prompt_token_ids"` // of a chat
}

type openAIChoice struct {
	Index          int
	Text           string
	Message        struct{ Content string }
	FinishReason   llm.FinishReason           `json:"finish_reason"`
	StopReason     any                        `json:"stop_reason"`
	TokenIDs       []int32                    `json:"token_ids"`
	PromptTokenIDs []int32                    `json:"prompt_token_ids"`
	Logprobs       *openAILogprobs            `json:"logprobs"`
	PromptLogprobs []map[string]vLLMCandidate `json:"prompt_logprobs"`
}

type vLLMCandidate struct {
	Logprob float32
	Rank    int
	Token   string `json:"decoded_token"`
}

func (a openAIAnswer) output(r llm.Request) llm.Output {
	out := llm.Output{
		RequestID: a.ID, Prompt: r.Prompt, PromptTokenIDs: r.PromptTokenIDs,
		CachedTokens: a.Usage.PromptTokensDetails.CachedTokens,
	}
	if a.PromptTokenIDs != nil {
		out.PromptTokenIDs = a.PromptTokenIDs
	}
	for _, c := range a.Choices {
		if c.PromptTokenIDs != nil {
			out.PromptTokenIDs = c.PromptTokenIDs
		}
		if c.PromptLogprobs != nil {
			out.PromptLogprobs = promptLogprobs(c.PromptLogprobs)
		}
		d := c.delta()
		done := llm.Completion{
			Index: c.Index, TokenIDs: d.TokenIDs, Text: cmp.Or(c.Text, c.Message.Content), FinishReason: d.FinishReason,
			StopReason: d.StopReason, Logprobs: d.Logprobs,
		}
		if c.Logprobs != nil {
			done.CumulativeLogprob = c.Logprobs.sum()
		}
		out.Completions = append(out.Completions, done)
	}
	slices.SortFunc(out.Completions, func(a, b llm.Completion) int { return cmp.Compare(a.Index, b.Index) })
	return out
}

func (c openAIChoice) delta() llm.Delta {
	d := llm.Delta{Index: c.Index, TokenIDs: c.TokenIDs, Text: c.Text, FinishReason: c.FinishReason}
	switch v := c.StopReason.(type) {
	case string:
		d.StopReason = v
	case float64:
		d.StopReason = strconv.Itoa(int(v))
	}
	if c.Logprobs != nil {
		d.Logprobs = c.Logprobs.positions(c.TokenIDs)
	}
	return d
}

// promptLogprobs reads {"id": {logprob, rank}} per position, best first.
func promptLogprobs(in []map[string]vLLMCandidate) [][]llm.Logprob {
	out := make([][]llm.Logprob, len(in))
	for i, position := range in {
		for id, c := range position {
			n, err := strconv.ParseInt(id, 10, 32)
			if err != nil {
				n = unknownToken
			}
			out[i] = append(out[i], llm.Logprob{TokenID: int32(n), Logprob: c.Logprob, Rank: c.Rank, Token: c.Token})
		}
		slices.SortFunc(out[i], func(a, b llm.Logprob) int { return cmp.Compare(a.Rank, b.Rank) })
	}
	return out
}
