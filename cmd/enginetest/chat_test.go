package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestChatCommand(t *testing.T) {
	code, stdout, stderr := command("", "chat", "What is 12+30?", "--device", "cpu")
	require.Zero(t, code, stderr)
	assert.Equal(t, "42\n", stdout)
	turns := `[{"role": "user", "content": "What is 12+30?"}, {"role": "assistant", "content": "42"}, {"role": "user", "content": "What is 2+3?"}]`
	code, stdout, stderr = command(turns, "chat", "--messages", "-", "--json", "--device", "cpu")
	require.Zero(t, code, stderr)
	assert.Contains(t, stdout, `"text":" 5"`)

	for _, c := range []struct{ stdin, flag, want string }{
		{"", "--system=x", "give either a message or --messages, not 0 of them"},
		{`[{"role": "user", "text": "x"}]`, "--messages=-", `unknown field "text"`},
		{`[]`, "--messages=-", "engine: messages is empty, must be at least one message"},
	} {
		code, _, stderr = command(c.stdin, "chat", c.flag, "--device", "cpu")
		assert.Equal(t, exitUsage, code)
		assert.Contains(t, stderr, c.want)
	}
}
