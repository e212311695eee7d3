package openai

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/enginetest/enginetest/engine/internal/chat"
)

type chatRequest struct {
	common
	Messages            json.RawMessage `json:"messages"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	Logprobs            bool            `json:"logprobs"`
	TopLogprobs         *int            `json:"top_logprobs"`
	AddGenerationPrompt *bool           `json:"add_generation_prompt"`
	TemplateArguments   json.RawMessage `json:"chat_template_kwargs"`
}

// chat is POST /v1/chat/completions.
func (s *Server) chat(w http.ResponseWriter, r *http.Request) error {
	m, err := s.ready()
	if err != nil {
		return err
	}
	if m.noTemplates != nil {
		return m.noTemplates
	}
	var q chatRequest
	done, err := s.readRequest(w, r, m, &q)
	if err != nil {
		return err
	}
	defer done()
	if err := s.checkModel(q.Model); err != nil {
		return err
	}
	if q.MaxCompletionTokens != nil {
		if *q.MaxCompletionTokens < 1 {
			return invalid("max_completion_tokens", "invalid_value", "is %d, must be at least 1",
				*q.MaxCompletionTokens)
		}
		q.Sampling.MaxTokens = *q.MaxCompletionTokens
		q.Sampling.giving("MaxTokens")
	}
	params, err := q.params(m.maxLen)
	if err != nil {
		return err
	}
	switch {
	case q.TopLogprobs != nil && !q.Logprobs:
		return invalid("top_logprobs", "invalid_value", "only with logprobs")
	case q.TopLogprobs != nil:
		if err := checkLogprobs("top_logprobs", *q.TopLogprobs); err != nil {
			return err
		}
		params.Logprobs = q.TopLogprobs
	case q.Logprobs:
		params.Logprobs = new(int)
	}
	j := &job{
		s: s, m: m, common: &q.common, id: newID("chatcmpl-"), object: "chat.completion", choice: chatChoice,
		chat: true,
	}
	if err := j.checkSeqs(1); err != nil {
		return err
	}
	text, err := q.render(r.Context(), m.templates)
	if err != nil {
		return err
	}
	if q.TopLogprobs != nil {
		j.top = *q.TopLogprobs
	}
	ids, err := m.encode(r.Context(), text, false) // the template writes the special tokens
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return invalid("messages", "invalid_value", "the chat template makes an empty prompt of them")
	}
	if err := j.add(ids, params); err != nil {
		return err
	}
	done()
	return j.run(w, r)
}

// render turns the messages into the prompt.
func (q *chatRequest) render(ctx context.Context, templates *chat.Templates) (string, error) {
	c := chat.Conversation{AddGenerationPrompt: q.AddGenerationPrompt == nil || *q.AddGenerationPrompt}
	if q.Messages == nil {
		return "", invalid("messages", "missing_required_parameter", "it is missing")
	}
	v, err := chat.DecodeJSON(q.Messages)
	if err != nil {
		return "", invalid("messages", "invalid_json", "%v", err)
	}
	list, ok := v.([]any)
	if !ok || len(list) == 0 {
		return "", invalid("messages", "invalid_type", "want a list of at least one message")
	}
	for i, v := range list {
		message, ok := v.(*chat.Dict)
		if !ok {
			return "", invalid("messages", "invalid_type", "message %d is not an object", i)
		}
		if role, _ := message.Get("role"); !isText(role) {
			return "", invalid("messages", "invalid_value", "message %d has no role", i)
		}
		if err := joinParts(i, message); err != nil {
			return "", err
		}
		if err := parseArguments(i, message); err != nil {
			return "", err
		}
		c.Messages = append(c.Messages, message)
	}
	if q.TemplateArguments != nil {
		v, err := chat.DecodeJSON(q.TemplateArguments)
		if c.Extra, ok = v.(*chat.Dict); err != nil || !ok {
			return "", invalid("chat_template_kwargs", "invalid_type", "want an object")
		}
	}
	return templates.Render(ctx, c)
}

func isText(v any) bool {
	s, ok := v.(string)
	return ok && s != ""
}

// joinParts makes one text of a message whose content is a list of text parts, a line each, as vLLM
// does for templates that print texts.
func joinParts(i int, message *chat.Dict) error {
	content, ok := message.Get("content")
	if !ok {
		_, calls := message.Get("tool_calls")
		if calls {
			return nil
		}
		return invalid("messages", "invalid_value", "message %d has no content", i)
	}
	switch content := content.(type) {
	case string, nil:
		return nil
	case []any:
		var texts []string
		for k, v := range content {
			part, _ := v.(*chat.Dict)
			kind, _ := part.Get("type")
			if name, ok := kind.(string); ok && name != "text" && name != "refusal" {
				return invalid("messages", "unsupported_content",
					"message %d: a part of type %q: not supported, only text is", i, name)
			}
			text, _ := part.Get("text")
			s, ok := text.(string)
			if !ok {
				return invalid("messages", "invalid_value", "message %d: part %d has no text", i, k)
			}
			texts = append(texts, s)
		}
		message.Set("content", strings.Join(texts, "\n"))
		return nil
	}
	return invalid("messages", "invalid_type", "message %d: content is neither a text nor a list of parts", i)
}

// parseArguments turns the arguments of earlier tool calls, which the API has as a text, into the
// object that templates print, as vLLM does.
func parseArguments(i int, message *chat.Dict) error {
	v, _ := message.Get("tool_calls")
	calls, _ := v.([]any)
	for k, v := range calls {
		call, _ := v.(*chat.Dict)
		v, _ := call.Get("function")
		f, _ := v.(*chat.Dict)
		v, _ = f.Get("arguments")
		text, ok := v.(string)
		if !ok {
			continue
		}
		if text == "" {
			text = "{}"
		}
		arguments, err := chat.DecodeJSON([]byte(text))
		if err != nil {
			return invalid("messages", "invalid_json", "message %d: the arguments of tool call %d: %v", i, k,
				jsonError(err))
		}
		f.Set("arguments", arguments)
	}
	return nil
}

// chatChoice is one entry of "choices".
func chatChoice(j *job, p *piece, stream bool) map[string]any {
	message := map[string]any{"role": "assistant", "content": p.text}
	c := map[string]any{"index": p.index, "finish_reason": p.finish(), "logprobs": nil}
	if stream {
		if !p.first {
			delete(message, "role")
		}
		if p.text == "" && !p.first {
			delete(message, "content")
		}
		c["delta"] = message
	} else {
		message["refusal"] = nil
		c["message"] = message
	}
	if p.logprobs != nil {
		c["logprobs"] = chatLogprobs(p, j.top)
	}
	p.extras(j, c)
	return c
}

// chatLogprobs is the shape of /v1/chat/completions, with the top k of each position.
func chatLogprobs(p *piece, top int) map[string]any {
	entry := func(token string, logprob float64) map[string]any {
		bytes := make([]int, len(token))
		for i := range len(token) {
			bytes[i] = int(token[i])
		}
		return map[string]any{"token": token, "logprob": logprob, "bytes": bytes}
	}
	content := []map[string]any{}
	for i, lps := range p.logprobs {
		lp := sampled(lps, p.ids[i])
		e := entry(lp.Token, finite(lp))
		tops := []map[string]any{}
		for _, x := range lps {
			if x.Rank <= top && len(tops) < top {
				tops = append(tops, entry(x.Token, finite(x)))
			}
		}
		e["top_logprobs"] = tops
		content = append(content, e)
	}
	return map[string]any{"content": content, "refusal": nil}
}
