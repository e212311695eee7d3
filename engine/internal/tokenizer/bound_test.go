package tokenizer

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// oddText draws what tokenizers trip over: spaces of all kinds, marks, unknown characters, bad
// UTF-8.
func oddText(t *rapid.T) string {
	parts := rapid.SliceOfN(rapid.OneOf(
		rapid.StringMatching(`[a-zA-Z ',.0-9▁]{1,12}`),
		rapid.String(),
		rapid.SampledFrom([]string{
			" ", "          ", "▁▁", "\n\n", "\u3000", "é", "e\u0301", "ﬁ", "\u212a", "\U0001d400",
			"\U0001d41a\u0323\u0302",
			"日本", "\xff", "\xf0\x9f", "<s>", "</s>", "<0x41>", "<unk>", "한", "\u1112\u1161\u11ab",
			"the storm's engine ", "\u0080",
		}),
	), 0, 20)
	return strings.Join(parts.Draw(t, "parts"), "")
}

// A text that is cut at its seams gives what it gives as a whole.
func TestSeamsChangeNothing(t *testing.T) {
	cut := 0
	for _, name := range []string{"llama2", "mistral", "metaspace"} {
		tok := load(t, name)
		require.NotNil(t, tok.model.seams)
		whole, model := *tok, *tok.model
		model.seams = nil
		whole.model = &model
		for cut = 0; cut == 0; { // few draws may lack a seam
			rapid.Check(t, func(t *rapid.T) {
				text := oddText(t)
				if tok.model.seams.next(text) < len(text) {
					cut++
				}
				require.Equal(t, whole.Encode(text, true), tok.Encode(text, true), "%+q", text)
			})
		}
	}
}

// Merges of bytes' tokens leave no seams: a byte is no character.
func TestNoSeamsWithMergedBytes(t *testing.T) {
	assert.Nil(t, newSeams(map[string]int32{"<0x41>": 0, "b": 1, "<0x41>b": 2}, []mergePair{{a: "<0x41>", b: "b"}}))
}

// What a length says about the number of tokens is never more than there are, and EncodeAtMost
// refuses exactly what has too many.
func TestEncodeAtMost(t *testing.T) {
	odd, err := Parse([]byte(file("normalizer",
		`{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Lowercase"}]}`)))
	require.NoError(t, err)
	strips, err := Parse([]byte(file("added_tokens", `[{"id":5,"content":"<s>","lstrip":true,"rstrip":true}]`)))
	require.NoError(t, err)
	toks := map[string]*Tokenizer{"NFKC": odd, "strips": strips}
	for _, name := range made {
		toks[name] = load(t, name)
	}
	refused := 0
	for name, tok := range toks {
		draw := func(t *rapid.T) {
			text := oddText(t)
			want := tok.Encode(text, true)
			most := rapid.IntRange(0, 30).Draw(t, "most")
			got, err := tok.EncodeAtMost(t.Context(), text, true, most)
			require.LessOrEqual(t, tok.bound.least(text, most), len(want), "%s: %+q", name, text)
			if len(want) <= most {
				require.NoError(t, err, "%s: %+q", name, text)
				require.Equal(t, want, got)
				return
			}
			refused++
			var long *TooLongError
			require.ErrorAs(t, err, &long)
			require.Equal(t, most, long.Most)
			require.Greater(t, long.AtLeast, most)
			require.LessOrEqual(t, long.AtLeast, len(want), "%s: %+q", name, text)
		}
		for refused = 0; refused == 0; { // few draws may all be short
			rapid.Check(t, draw)
		}
	}
}

// A text whose length is enough to refuse it is refused for its length, whatever the kind of
// vocabulary; spaces that a token swallows do not count.
func TestRefusedByLength(t *testing.T) {
	for _, name := range []string{"gpt2", "llama3", "llama2", "mistral"} {
		tok := load(t, name)
		require.Positive(t, tok.bound.bytes, name)
		assert.Greater(t, tok.bound.least(strings.Repeat("x", 100*tok.bound.bytes), 50), 50, name)
	}
	tok, err := Parse([]byte(file("added_tokens", `[{"id":5,"content":"<s>","lstrip":true}]`)))
	require.NoError(t, err)
	require.Zero(t, tok.bound.bytes, "the model drops what it does not know: length says nothing")
	b := bound{bytes: 4, spaces: true}
	assert.Equal(t, 0, b.least(strings.Repeat(" ", 1000), 10))
	assert.Equal(t, 11, b.least(strings.Repeat("  xxxx", 1000), 10))
}

// endsAfter is a context that ends after its Err has been asked a number of times.
type endsAfter struct {
	context.Context
	left int
}

func (c *endsAfter) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// Encoding asks its context between pieces and within a long one, and stops when it has ended.
func TestEncodeStopsWithItsContext(t *testing.T) {
	for name, text := range map[string]string{
		"llama3": strings.Repeat("the storm's engine ", 1000),
		"llama2": strings.Repeat("the storm's engine ", 1000),
		"gpt2":   strings.Repeat("lighthouse", 20_000), // one piece
	} {
		tok := load(t, name)
		all := &endsAfter{t.Context(), 1 << 40}
		_, err := tok.EncodeAtMost(all, text, true, len(text))
		require.NoError(t, err)
		asked := 1<<40 - all.left
		require.Greater(t, asked, 3, name)
		for _, left := range []int{0, 1, asked / 2} {
			ctx := &endsAfter{t.Context(), left}
			_, err := tok.EncodeAtMost(ctx, text, true, len(text))
			require.ErrorIs(t, err, context.Canceled, name)
			assert.GreaterOrEqual(t, ctx.left, -8, "%s: it goes on", name)
		}
	}
}
