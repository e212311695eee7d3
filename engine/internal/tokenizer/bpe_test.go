package tokenizer

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/enginetest/enginetest/internal/linear"
)

// The heap and the plain scan must agree; a planted difference is a merge taken out of order.
func TestHeapAndScanAgree(t *testing.T) {
	tok := load(t, "llama3")
	m := *tok.model
	m.whole = nil
	words := rapid.StringMatching(`[a-z ',.0-9é日]{2,10}`)
	rapid.Check(t, func(t *rapid.T) {
		word := words.Draw(t, "word")
		s := newScratch(t.Context(), math.MaxInt)
		s.ids = m.bytes(nil, word)
		long := m.mergeLong(nil, s)
		short := m.mergeShort(m.bytes(nil, word))
		if !slices.Equal(short, long) {
			t.Fatalf("%q: scan %v, heap %v", word, short, long)
		}
	})
}

// A text of n bytes must take about n log n at worst.
func TestNothingIsQuadratic(t *testing.T) {
	spaces, err := Parse([]byte(file("added_tokens",
		`[{"id":5,"content":"  ","lstrip":true,"rstrip":true},{"id":6,"content":"   ","rstrip":true}]`)))
	require.NoError(t, err)
	for _, row := range []struct {
		name, unit string
		tok        *Tokenizer
	}{
		{"gpt2", "lighthouse", load(t, "gpt2")},
		{"llama2", "lighthouse", load(t, "llama2")},
		{"tekken: upper case with one caseless letter", "ABCDEFGʰ", load(t, "tekken")},
		{"deepseek: what no pattern matches", "\u00ad\u200b", load(t, "deepseek")},
		{"spaces that are tokens and strip spaces", "          ", spaces},
	} {
		t.Run(row.name, func(t *testing.T) {
			linear.Check(t, 6_250, 200_000, func(n int) func() {
				text := strings.Repeat(row.unit, n/len(row.unit))
				return func() { row.tok.Encode(text, false) }
			})
		})
	}
}

func TestInvalidUTF8(t *testing.T) {
	tok := load(t, "gpt2")
	for _, row := range []struct{ why, in, out string }{
		{"a lone continuation byte", "a\x80b", "a\uFFFDb"},
		{"bytes that never occur", "\xff\xfe", "\uFFFD\uFFFD"},
		{"a cut character is one", "\xe6\x97", "\uFFFD"},
		{"a cut character before a letter", "\xf0\x9f\x98x", "\uFFFDx"},
		{"a surrogate is three", "\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
		{"an overlong form", "\xc0\xaf", "\uFFFD\uFFFD"},
		{"beyond U+10FFFF", "\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
		{"U+FFFD itself stays", "\uFFFD", "\uFFFD"},
	} {
		require.Equal(t, row.out, validUTF8(row.in), row.why)
		require.Equal(t, tok.Encode(row.out, false), tok.Encode(row.in, false), row.why)
	}
}
