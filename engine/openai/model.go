package openai

import (
	"context"
	"errors"

	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/llm"
)

// encode turns a text into tokens that fit into the context with one token of output.
func (m *model) encode(ctx context.Context, text string, addSpecial bool) ([]int32, error) {
	if m.tok == nil {
		return nil, llm.ErrNoTokenizer
	}
	ids, err := m.tok.EncodeAtMost(ctx, text, addSpecial, m.longest())
	if long, ok := errors.AsType[*tokenizer.TooLongError](err); ok {
		return nil, m.tooLong(long.AtLeast)
	}
	return ids, err
}

func (m *model) tooLong(atLeast int) error {
	if m.pools() {
		return invalid("", "context_length_exceeded", "the input has at least %d tokens: the model's context has %d",
			atLeast, m.maxLen)
	}
	return invalid("", "context_length_exceeded",
		"the prompt has at least %d tokens, and at most %d fit before one token of output: the model's context has %d",
		atLeast, m.maxLen-1, m.maxLen)
}

// maxText is the length in bytes of the longest text that can fit into the context; 0 when there is
// no such length.
func (m *model) maxText() int {
	if m.tok == nil {
		return 0
	}
	return m.tok.MaxBytes(m.longest())
}

// pools reports whether the model reduces its inputs to vectors, and generates nothing.
func (m *model) pools() bool { return m.engine.PoolingInfo().Task != "" }

// longest is the number of tokens of the longest prompt.
func (m *model) longest() int {
	if m.pools() {
		return m.maxLen
	}
	return m.maxLen - 1
}
