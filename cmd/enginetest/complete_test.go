package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The shell is told the values of a flag, the endings of a file, or that it takes a folder.
func TestCompletion(t *testing.T) {
	for args, want := range map[string]string{
		"bench --shape":          "tiny 110m 1b :4",
		"bench --dtype":          "bf16 f16 f32 :4",
		"bench --batch":          "1 8 64 :4",
		"bench scale --only":     "fixtures heap family account report :4",
		"run --html":             "html :8",
		"run --json":             "json :8",
		"report --history":       ":16",
		"run --retries":          ":4",
		"generate --batch":       "json jsonl :8",
		"generate --model":       ":16",
		"report --quarantine":    ":0",
		"generate --temperature": ":0",
	} {
		_, stdout, _ := command("", append([]string{"__complete"}, append(strings.Fields(args), "")...)...)
		assert.Equal(t, want, strings.Join(strings.Fields(stdout), " "), args)
	}
	_, stdout, _ := command("", "__complete", "generate", "--device", "c")
	assert.Contains(t, strings.Fields(stdout), "cpu")
}
