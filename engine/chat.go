package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/enginetest/enginetest/engine/internal/chat"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/llm"
)

// ErrNoChatTemplate is returned by [Engine.Chat] when the checkpoint has no chat template.
var ErrNoChatTemplate = chat.ErrNoTemplate

// TemplateError is what is wrong with a chat template, or with what it was asked to do.
type TemplateError = chat.Error

// chatTemplates are a checkpoint's chat templates and tokenizer. They are loaded in this process,
// by the first chat, wherever the core is.
type chatTemplates struct {
	once      sync.Once
	tok       *tokenizer.Tokenizer
	templates *chat.Templates
	err       error
}

// Chat answers a conversation: the checkpoint's chat template turns it into a prompt that ends
// where the assistant's turn begins. The template runs with bounds on its steps and memory, and
// stops with the context.
//
// Errors: [*llm.ParamError], [ErrNoChatTemplate], [llm.ErrNoTokenizer], [*TemplateError], and those
// of [Engine.Generate].
func (e *Engine) Chat(ctx context.Context, messages []Message, params SamplingParams) (Output, error) {
	prompt, err := e.chatPrompt(ctx, messages)
	if err != nil {
		return Output{}, err
	}
	outs, err := e.Generate(ctx, Request{PromptTokenIDs: prompt, Sampling: params})
	if len(outs) == 0 {
		return Output{}, err
	}
	return outs[0], err
}

// chatPrompt renders and encodes a conversation.
func (e *Engine) chatPrompt(ctx context.Context, messages []Message) ([]int32, error) {
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	if err := e.Err(); err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, paramError("messages", "empty", "at least one message")
	}
	conversation := chat.Conversation{AddGenerationPrompt: true}
	for i, m := range messages {
		if m.Role == "" {
			return nil, paramError(fmt.Sprintf("messages[%d].Role", i), `""`,
				"system, user, assistant or another role of the template")
		}
		turn := &chat.Dict{}
		turn.Set("role", m.Role)
		turn.Set("content", m.Content)
		conversation.Messages = append(conversation.Messages, turn)
	}
	t := e.chatTemplates()
	if t.err != nil {
		return nil, t.err
	}
	text, err := t.templates.Render(ctx, conversation)
	if err != nil {
		return nil, err
	}
	ids := t.tok.Encode(text, false) // the template writes the special tokens
	if len(ids) == 0 {
		return nil, paramError("messages", "a conversation that the chat template makes an empty prompt of",
			"one that makes a prompt")
	}
	return ids, nil
}

func (e *Engine) chatTemplates() *chatTemplates {
	t := &e.chats
	t.once.Do(func() {
		cfg := e.Config()
		if cfg.SkipTokenizer {
			t.err = fmt.Errorf("%w: Config.SkipTokenizer is set, and a chat needs one", llm.ErrNoTokenizer)
			return
		}
		if t.templates, t.err = chat.Load(cfg.Model); t.err != nil {
			return
		}
		if t.tok, t.err = tokenizer.Load(filepath.Join(cfg.Model, "tokenizer.json")); t.err != nil {
			t.err = errors.Join(fmt.Errorf("%w: a chat needs one", llm.ErrNoTokenizer), t.err)
		}
	})
	return t
}
