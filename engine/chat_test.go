package engine_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/llm"
)

func openBundled(t *testing.T, cfg engine.Config) *engine.Engine {
	t.Helper()
	cfg.Device = "cpu"
	e, err := engine.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, e.Shutdown(context.Background())) })
	return e
}

func ask(text string) []engine.Message { return []engine.Message{{Role: "user", Content: text}} }

func TestChat(t *testing.T) {
	for _, core := range []engine.Core{engine.InProcess, engine.ChildProcess} {
		t.Run(core.String(), func(t *testing.T) {
			e := openBundled(t, engine.Config{Model: fixtures.Bundled(), Core: core})
			out, err := e.Chat(t.Context(), ask("What is 12+30?"), engine.SamplingParams{MaxTokens: 20})
			require.NoError(t, err)
			assert.Equal(t, " 42", out.Completions[0].Text)
			assert.Equal(t, llm.FinishStop, out.Completions[0].FinishReason)
			more := append(ask("What is 12+30?"), engine.Message{Role: "assistant", Content: "42"},
				engine.Message{Role: "user", Content: "What is 2+3?"})
			out, err = e.Chat(t.Context(), more, engine.SamplingParams{MaxTokens: 20})
			require.NoError(t, err)
			assert.Equal(t, " 5", out.Completions[0].Text)
		})
	}
}

func TestChatRefusals(t *testing.T) {
	e := openBundled(t, engine.Config{Model: fixtures.Bundled()})
	_, err := e.Chat(t.Context(), nil, engine.SamplingParams{})
	assert.EqualError(t, err, "engine: messages is empty, must be at least one message")
	_, err = e.Chat(t.Context(), []engine.Message{{Content: "hello"}}, engine.SamplingParams{})
	assert.EqualError(t, err,
		`engine: messages[0].Role is "", must be system, user, assistant or another role of the template`)
	_, err = e.Chat(t.Context(), ask("hello"), engine.SamplingParams{Temperature: 3})
	assert.EqualError(t, err, "engine: Temperature is 3, must be in [0, 2]")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = e.Chat(ended, ask("hello"), engine.SamplingParams{})
	assert.ErrorIs(t, err, context.Canceled)
	require.NoError(t, e.Shutdown(t.Context()))
	_, err = e.Chat(t.Context(), ask("hello"), engine.SamplingParams{})
	assert.ErrorIs(t, err, llm.ErrStopped)
}

func TestChatNeedsATemplateAndATokenizer(t *testing.T) {
	e := openBundled(t, engine.Config{Model: fixtures.Checkpoint(t, fixtures.Spec{})})
	_, err := e.Chat(t.Context(), ask("hello"), engine.SamplingParams{})
	require.ErrorIs(t, err, engine.ErrNoChatTemplate)
	e = openBundled(t, engine.Config{Model: fixtures.Bundled(), SkipTokenizer: true})
	_, err = e.Chat(t.Context(), ask("hello"), engine.SamplingParams{})
	require.ErrorIs(t, err, llm.ErrNoTokenizer)
}

// A template that never ends is stopped by its bounds, and the engine goes on.
func TestChatWithAHostileTemplate(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(fixtures.Bundled())))
	bomb := "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% endfor %}{% endfor %}"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(bomb), 0o600))
	e := openBundled(t, engine.Config{Model: dir})
	_, err := e.Chat(t.Context(), ask("hello"), engine.SamplingParams{})
	require.Error(t, err)
	outs, err := e.Generate(t.Context(), engine.Request{Prompt: "2+3="})
	require.NoError(t, err)
	assert.Equal(t, "5", outs[0].Completions[0].Text)
}
