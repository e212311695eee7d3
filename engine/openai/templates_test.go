package openai

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/engine/internal/chat"
	"github.com/enginetest/enginetest/fixtures"
)

func TestWithoutTemplateOrTokenizer(t *testing.T) {
	_, _, url := serve(t, engine.Config{Model: fixtures.Checkpoint(t, fixtures.Spec{})})
	status, _, v := post(t, url+"/v1/chat/completions", `{"messages": [{"role": "user", "content": "a"}]}`)
	assert.Equal(t, 400, status)
	assert.Equal(t, "no_chat_template", get(v, "error", "code"), v)
	status, _, v = post(t, url+"/v1/completions", `{"prompt": "a"}`)
	assert.Equal(t, 400, status)
	assert.Equal(t, "no_tokenizer", get(v, "error", "code"), v)
	status, _, v = post(t, url+"/v1/completions",
		`{"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": true, "return_token_ids": true}`)
	assert.Equal(t, 200, status, v)
	assert.Len(t, get(v, "choices", 0, "token_ids"), 4)
}

// TestMessagesReachTheTemplate: keys in order, parts joined, arguments of tool calls as objects,
// variables of the request.
func TestMessagesReachTheTemplate(t *testing.T) {
	templates, err := chat.Load(templateFolder(t, "{{ messages | tojson }}{{ thinking }}{{ add_generation_prompt }}"))
	require.NoError(t, err)
	for in, want := range map[string]string{
		`{"messages": [{"role": "user", "content": "a", "name": "b"}]}`:                                                                                                    `[{"role": "user", "content": "a", "name": "b"}]True`,
		`{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "add_generation_prompt": false}`:                      `[{"role": "user", "content": "a\nb"}]False`,
		`{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}}]}], "chat_template_kwargs": {"thinking": 1}}`: `[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"z": 1, "a": 2}}}]}]1True`,
		`{"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]}`:                                                                          "messages: message 0: the arguments of tool call 0: it ends too early",
		`{"messages": [{"role": "assistant", "tool_calls": [1, {}, {"function": 2}]}]}`:                                                                                    `[{"role": "assistant", "tool_calls": [1, {}, {"function": 2}]}]True`,
	} {
		var q chatRequest
		require.NoError(t, read(in, &q), in)
		got, err := q.render(t.Context(), templates)
		if err != nil {
			got = err.Error()
		}
		assert.Equal(t, want, got)
	}
}

func templateFolder(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(source), 0o600))
	return dir
}

// TestTemplateThatCannot: a checkpoint whose template this server lacks serves completions, and
// chat says what is missing.
func TestTemplateThatCannot(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(fixtures.Bundled())))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte("\n{% include 'x' %}"), 0o600))
	_, _, url := serve(t, engine.Config{Model: dir})
	status, _, v := post(t, url+"/v1/chat/completions", `{"messages": [{"role": "user", "content": "a"}]}`)
	assert.Equal(t, 501, status)
	assert.Equal(t, "chat template chat_template.jinja:2: the statement {% include %} is not supported",
		get(v, "error", "message"))
	status, _, _ = post(t, url+"/v1/completions", `{"prompt": "a"}`)
	assert.Equal(t, 200, status)
}
