package engine

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/llm"
)

// edit rewrites a file of a checkpoint.
func edit(t *testing.T, path string, change func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, change(data), 0o600))
}

// A tokenizer may have tokens that the model was never resized for: the message says whose they
// are.
func TestATokenizerThatIsLargerThanTheModel(t *testing.T) {
	dir := fixtures.Checkpoint(t, fixtures.Spec{Tokenizer: true})
	edit(t, filepath.Join(dir, "tokenizer.json"), func(data []byte) []byte {
		return bytes.Replace(data, []byte(`"added_tokens": [`),
			[]byte(`"added_tokens": [{"id": 1024, "content": "<|pad|>", "special": true},`), 1)
	})
	e, err := Open(t.Context(), Config{Model: dir})
	require.NoError(t, err)
	defer func() { assert.NoError(t, e.Shutdown(t.Context())) }()
	_, err = e.Generate(t.Context(), Request{Prompt: "a<|pad|>"})
	assert.EqualError(t, err, `engine: Prompt is one whose token 1 is 1024 ("<|pad|>") to the tokenizer, must be made of the model's vocabulary, ids in [0, 1024)`)
	_, err = e.Generate(t.Context(), Request{PromptTokenIDs: []int32{7, 1024}})
	assert.EqualError(t, err, "engine: PromptTokenIDs[1] is 1024, must be a token id in [0, 1024)")
}

func TestWhyThereIsNoTokenizer(t *testing.T) {
	without := fixtures.Checkpoint(t, fixtures.Spec{})
	for _, row := range []struct {
		cfg  Config
		want string
	}{
		{Config{Model: without}, "engine: no tokenizer: " + without +
			" has no tokenizer.json; a text prompt needs one, PromptTokenIDs do not"},
		{
			Config{Model: fixtures.Bundled(), SkipTokenizer: true},
			"engine: no tokenizer: Config.SkipTokenizer is set; a text prompt needs one, PromptTokenIDs do not",
		},
	} {
		e, err := Open(t.Context(), row.cfg)
		require.NoError(t, err)
		_, err = e.Generate(t.Context(), Request{Prompt: "x"})
		assert.EqualError(t, err, row.want)
		assert.ErrorIs(t, err, llm.ErrNoTokenizer)
		assert.NoError(t, e.Shutdown(t.Context()))
	}
}

// Weights that are no numbers are the checkpoint's fault, not that of the first request.
func TestWeightsThatAreNoNumbers(t *testing.T) {
	dir := fixtures.Checkpoint(t, fixtures.Spec{})
	edit(t, filepath.Join(dir, "model.safetensors"), func(data []byte) []byte {
		tail := data[len(data)/2:]
		copy(tail, bytes.Repeat([]byte{0xff}, len(tail)))
		return data
	})
	_, err := Open(t.Context(), Config{Model: dir})
	var bad *CheckpointError
	require.ErrorAs(t, err, &bad)
	assert.Equal(t, dir, bad.File)
	assert.ErrorContains(t, err, "want finite weights, and logits that are numbers: sample: no token is left to draw: of 256 tokens, 256 are NaN")
}
