package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
)

func TestEmbedCommand(t *testing.T) {
	vectors := func(args ...string) (list [][]float32) {
		code, stdout, stderr := command("", append([]string{"embed", "--device", "cpu"}, args...)...)
		require.Zero(t, code, stderr)
		for line := range strings.Lines(stdout) {
			var v struct {
				IDs  []int32 `json:"prompt_token_ids"`
				Data []float32
			}
			require.NoError(t, json.Unmarshal([]byte(line), &v))
			assert.NotEmpty(t, v.IDs)
			list = append(list, v.Data)
		}
		return list
	}
	two := vectors("The lighthouse", "2+3=", "--dimensions", "16", "--pooling", "mean")
	require.Len(t, two, 2)
	assert.Len(t, two[0], 16)
	assert.NotEqual(t, two[0], two[1])

	dir := fixtures.Checkpoint(t, fixtures.Spec{Architecture: fixtures.Qwen2Classifier, Tokenizer: true, Labels: 3})
	classes := vectors("--model", dir, "The lighthouse")[0]
	require.Len(t, classes, 3)
	assert.InDelta(t, 1, classes[0]+classes[1]+classes[2], 1e-5)

	for want, args := range map[string][]string{
		"give at least one text":                 {"embed"},
		"--task generate: that is":               {"embed", "--task", "generate", "x"},
		`Task is "sing"`:                         {"embed", "--task", "sing", "x"},
		`Pooling is "max"`:                       {"embed", "--pooling", "max", "x"},
		"was opened to embed; a checkpoint with": {"generate", "--task", "embed", "--prompt", "x"},
	} {
		code, _, stderr := command("", append(args, "--device", "cpu")...)
		assert.NotZero(t, code)
		assert.Contains(t, stderr, want)
	}
}
