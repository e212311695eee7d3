package tokenizer

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bytesOnly is a tokenizer of one token per byte and two special ones, <s> 256 and </s> 257.
func bytesOnly(t *testing.T, post string) *Tokenizer {
	t.Helper()
	vocab := map[string]int{"<s>": 256, "</s>": 257}
	for b, r := range byteToRune {
		vocab[string(r)] = b
	}
	text, err := json.Marshal(vocab)
	require.NoError(t, err)
	tok, err := Parse(fmt.Appendf(nil, `{"added_tokens": [{"id": 256, "content": "<s>", "special": true},
		{"id": 257, "content": "</s>", "special": true}], "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
		"decoder": {"type": "ByteLevel"}, "post_processor": %s, "model": {"type": "BPE", "vocab": %s, "merges": []}}`, post, text))
	require.NoError(t, err)
	return tok
}

const pairTemplate = `{"type": "TemplateProcessing",
	"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}],
	"pair": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}},
		{"Sequence": {"id": "B"}}, {"SpecialToken": {"id": "</s>"}}],
	"special_tokens": {"<s>": {"ids": [256]}, "</s>": {"ids": [257]}}}`

func TestEncodePair(t *testing.T) {
	for post, want := range map[string][]int32{
		`null`:                  {'a', 'b', 'c'},
		`{"type": "ByteLevel"}`: {'a', 'b', 'c'},
		pairTemplate:            {256, 'a', 257, 'b', 'c', 257},
	} {
		got, err := bytesOnly(t, post).EncodePairAtMost(t.Context(), "a", "bc", len(want))
		require.NoError(t, err)
		assert.Equal(t, want, got)

		_, err = bytesOnly(t, post).EncodePairAtMost(t.Context(), "a", "bc", len(want)-1)
		var long *TooLongError
		require.ErrorAs(t, err, &long, "one token less is too few")
	}
}

func TestEncodePairWithoutATemplate(t *testing.T) {
	single := `{"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}],
		"pair": %s, "special_tokens": {"</s>": {"ids": [257]}}}`
	for _, pair := range []string{
		`[]`, `null`, `7`, `[{"Sequence": {"id": "A"}}]`, `[{"Sequence": {"id": "A"}}, {"Sequence": {"id": "A"}}]`,
		`[{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "?"}}, {"Sequence": {"id": "B"}}]`, `[{"Sequence": {"id": "A"}}, {}]`,
	} {
		tok := bytesOnly(t, fmt.Sprintf(single, pair))
		assert.Equal(t, []int32{'x', 257}, tok.Encode("x", true), "single texts are encoded all the same")
		_, err := tok.EncodePairAtMost(t.Context(), "a", "b", 10)
		assert.ErrorIs(t, err, ErrNoPairs, pair)
	}
}
