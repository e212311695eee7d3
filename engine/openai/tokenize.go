package openai

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/llm"
)

type tokenizeRequest struct {
	Model               *string         `json:"model"`
	Prompt              *string         `json:"prompt"`
	Messages            json.RawMessage `json:"messages"`
	AddSpecialTokens    *bool           `json:"add_special_tokens"`
	AddGenerationPrompt *bool           `json:"add_generation_prompt"`
	TemplateArguments   json.RawMessage `json:"chat_template_kwargs"`
	ReturnTokenStrs     bool            `json:"return_token_strs"`
}

// tokenize is POST /tokenize, of a text or of a conversation.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) error {
	var q tokenizeRequest
	m, done, err := s.readTokens(w, r, &q)
	if err != nil {
		return err
	}
	defer done()
	if err := s.checkModel(q.Model); err != nil {
		return err
	}
	text, special, err := q.text(r.Context(), m)
	if err != nil {
		return err
	}
	ids, err := m.tok.EncodeAtMost(r.Context(), text, special, m.maxLen)
	if long, ok := errors.AsType[*tokenizer.TooLongError](err); ok {
		return invalid("", "context_length_exceeded", "the text has at least %d tokens: the model's context has %d",
			long.AtLeast, m.maxLen)
	}
	if err != nil {
		return err
	}
	answer := map[string]any{
		"count": len(ids), "max_model_len": m.maxLen, "tokens": append([]int32{}, ids...), "token_strs": nil,
	}
	if q.ReturnTokenStrs {
		texts := make([]string, len(ids))
		for i, id := range ids {
			texts[i] = m.tok.Token(id)
		}
		answer["token_strs"] = texts
	}
	return writeJSON(w, http.StatusOK, answer)
}

// readTokens reads the body of a request that needs the tokenizer and no engine: it is answered by
// a server whose engine sleeps, too.
func (s *Server) readTokens(w http.ResponseWriter, r *http.Request, into any) (*model, func(), error) {
	m := s.model.Load()
	if m == nil {
		return nil, nil, unavailable("loading", "the model is loading")
	}
	done, err := s.readRequest(w, r, m, into)
	if err != nil {
		return nil, nil, err
	}
	if m.tok == nil {
		done()
		return nil, nil, llm.ErrNoTokenizer
	}
	return m, done, nil
}

// text is what a request wants the tokens of. A template writes the special tokens itself.
func (q *tokenizeRequest) text(ctx context.Context, m *model) (text string, special bool, err error) {
	switch {
	case q.Prompt != nil && q.Messages != nil:
		return "", false, invalid("messages", "invalid_value", "only without prompt")
	case q.Prompt != nil:
		return *q.Prompt, q.AddSpecialTokens == nil || *q.AddSpecialTokens, nil
	case q.Messages == nil:
		return "", false, invalid("prompt", "missing_required_parameter", "it is missing, and so is messages")
	case m.noTemplates != nil:
		return "", false, m.noTemplates
	}
	c := chatRequest{Messages: q.Messages, AddGenerationPrompt: q.AddGenerationPrompt, TemplateArguments: q.TemplateArguments}
	text, err = c.render(ctx, m.templates)
	return text, q.AddSpecialTokens != nil && *q.AddSpecialTokens, err
}

// detokenize is POST /detokenize.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		Model  *string  `json:"model"`
		Tokens tokenIDs `json:"tokens"`
	}
	m, done, err := s.readTokens(w, r, &q)
	if err != nil {
		return err
	}
	defer done()
	if err := s.checkModel(q.Model); err != nil {
		return err
	}
	if q.Tokens == nil {
		return invalid("tokens", "missing_required_parameter", "it is missing")
	}
	if len(q.Tokens) > m.maxLen {
		return invalid("tokens", "context_length_exceeded", "a list of %d: the model's context has %d", len(q.Tokens),
			m.maxLen)
	}
	for i, id := range q.Tokens {
		if id < 0 || int(id) >= m.vocab {
			return invalid("tokens", "invalid_value", "number %d is %d, must be in [0, %d)", i, id, m.vocab)
		}
	}
	return writeJSON(w, http.StatusOK, map[string]string{"prompt": m.tok.Decode(q.Tokens, false)})
}
