package tokenizer

import (
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// streamed pushes ids one by one; every piece must be whole UTF-8.
func streamed(t interface {
	Fatalf(string, ...any)
}, tok *Tokenizer, ids []int32, skip bool,
) (pieces []string) {
	s := tok.NewStream(skip)
	for _, id := range ids {
		pieces = append(pieces, s.Push(id))
	}
	pieces = append(pieces, s.Flush())
	for i, piece := range pieces {
		if !utf8.ValidString(piece) {
			t.Fatalf("piece %d of %v is not UTF-8: %+q", i, ids, piece)
		}
	}
	return pieces
}

func TestStreamIsDecode(t *testing.T) {
	for _, name := range made {
		tok := load(t, name)
		for _, ref := range readReferences(t, filepath.Join("testdata", name, "golden.json")) {
			require.Equal(t, ref.Decoded, strings.Join(streamed(t, tok, ref.Special, false), ""))
			require.Equal(t, ref.Skipped, strings.Join(streamed(t, tok, ref.Special, true), ""))
		}
	}
}

func TestStreamIsDecodeOfAnyIDs(t *testing.T) {
	for _, name := range []string{"llama3", "llama2", "metaspace"} {
		tok := load(t, name)
		rapid.Check(t, func(t *rapid.T) {
			ids := rapid.SliceOf(rapid.Int32Range(-1, int32(tok.VocabSize()))).Draw(t, "ids")
			if got, want := strings.Join(streamed(t, tok, ids, true), ""), tok.Decode(ids, true); got != want {
				t.Fatalf("%v: pieces give %+q, Decode %+q", ids, got, want)
			}
		})
	}
}

// The pieces and what is pending are the text so far, at every token, and looking changes nothing.
func TestPendingIsTheRest(t *testing.T) {
	for _, name := range []string{"llama3", "llama2", "metaspace"} {
		tok := load(t, name)
		rapid.Check(t, func(t *rapid.T) {
			// the bytes are among the first
			ids := rapid.SliceOf(rapid.Int32Range(-1, min(300, int32(tok.VocabSize())))).Draw(t, "ids")
			s, pieces := tok.NewStream(false), ""
			for i, id := range ids {
				pieces += s.Push(id)
				if got, want := pieces+s.Pending(), tok.Decode(ids[:i+1], false); got != want {
					t.Fatalf("%v: %+q, Decode gives %+q", ids[:i+1], got, want)
				}
			}
		})
	}
}

// A character whose bytes are several tokens must come out whole: no one may see U+FFFD in the
// middle of a stream.
func TestStreamHoldsUnfinishedCharactersBack(t *testing.T) {
	const text = "crab 🦀🧬, snowman ☃, 𠀀𠀁 and on"
	for _, name := range []string{"gpt2", "llama2"} {
		t.Run(name, func(t *testing.T) {
			tok := load(t, name)
			ids := tok.Encode(text, true)
			pieces := streamed(t, tok, ids, true)
			require.Equal(t, text, strings.Join(pieces, ""))
			for _, piece := range pieces {
				require.NotContains(t, piece, "\uFFFD")
			}
			held := 0
			for _, piece := range pieces {
				if piece == "" {
					held++
				}
			}
			require.Greater(t, held, 10, "bytes of unfinished characters are held back")
			require.Less(t, held, len(pieces)*3/4, "and whole text is not")
		})
	}
}

func TestStreamEndsInsideACharacter(t *testing.T) {
	tok := load(t, "gpt2")
	ids := tok.Encode("x😀", false)
	s := tok.NewStream(true)
	var out string
	for _, id := range ids[:len(ids)-1] {
		out += s.Push(id)
	}
	require.Equal(t, "x", out)
	require.Equal(t, "\uFFFD", s.Flush())
}

func TestStripOfTheWholeText(t *testing.T) {
	tok, err := Parse([]byte(file("decoder",
		`{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Strip","content":"a","start":2,"stop":1}]}`)))
	require.NoError(t, err)
	for _, row := range []struct {
		why, in, out string
	}{
		{"nothing", "", ""},
		{"only what is stripped", "aaa", ""},
		{"one is left over", "aaaa", "a"},
		{"both ends", "aabaa", "ba"},
		{"fewer than allowed", "abab", "bab"},
		{"none", "bab", "bab"},
	} {
		var ids []int32
		for _, c := range row.in {
			ids = append(ids, c-'a')
		}
		require.Equal(t, row.out, tok.Decode(ids, false), row.why)
		require.Equal(t, row.out, strings.Join(streamed(t, tok, ids, false), ""), row.why)
	}
}
