package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// reference is what Hugging Face's library gave for a text, or for a list of ids alone (Text nil).
// See testdata/README.md.
type reference struct {
	Text    *string `json:"text"`
	IDs     []int32 `json:"ids"`     // without special tokens
	Special []int32 `json:"special"` // with
	Decoded string  `json:"decoded"` // Special, decoded
	Skipped string  `json:"skipped"` // the same without special tokens
}

func readReferences(tb testing.TB, path string) []reference {
	tb.Helper()
	data, err := os.ReadFile(path)
	require.NoError(tb, err)
	var refs []reference
	require.NoError(tb, json.Unmarshal(data, &refs))
	require.NotEmpty(tb, refs)
	return refs
}

func load(tb testing.TB, name string) *Tokenizer {
	tb.Helper()
	tok, err := Load(filepath.Join("testdata", name, "tokenizer.json"))
	require.NoError(tb, err)
	return tok
}

var made = []string{
	"gpt2", "llama3", "qwen2", "qwen35", "cl100k", "o200k", "tekken", "deepseek", "llama2", "mistral",
	"metaspace",
}

func TestEqualToHuggingFace(t *testing.T) {
	for _, name := range made {
		t.Run(name, func(t *testing.T) {
			checkReferences(t, load(t, name), readReferences(t, filepath.Join("testdata", name, "golden.json")))
		})
	}
}

// TestDifferential compares with many random strings: testdata/README.md says how to make them.
func TestDifferential(t *testing.T) {
	dir := os.Getenv("TOKENIZER_DIFFERENTIAL")
	if dir == "" {
		t.Skip("TOKENIZER_DIFFERENTIAL names no folder of random references; testdata/README.md says how to make one")
	}
	for _, name := range made {
		t.Run(name, func(t *testing.T) {
			checkReferences(t, load(t, name), readReferences(t, filepath.Join(dir, name+".json")))
		})
	}
}

func checkReferences(t *testing.T, tok *Tokenizer, refs []reference) {
	t.Helper()
	wrong := 0
	for _, ref := range refs {
		if ref.Text != nil {
			for _, special := range []bool{false, true} {
				want := ref.IDs
				if special {
					want = ref.Special
				}
				if got := tok.Encode(*ref.Text, special); !slices.Equal(got, want) {
					t.Errorf("Encode(%+q, %v)\n got %s\nwant %s", *ref.Text, special, spell(tok, got), spell(tok, want))
					wrong++
				}
			}
		}
		for _, skip := range []bool{false, true} {
			want := ref.Decoded
			if skip {
				want = ref.Skipped
			}
			if got := tok.Decode(ref.Special, skip); got != want {
				t.Errorf("Decode(%v, %v)\n got %+q\nwant %+q", ref.Special, skip, got, want)
				wrong++
			}
		}
		if wrong > 10 {
			t.Fatal("and more")
		}
	}
}

func spell(tok *Tokenizer, ids []int32) []string {
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = tok.Token(id)
	}
	return list
}

func TestAnotherByteLevelTokenizer(t *testing.T) {
	tok := load(t, "small-gpt2")
	data, err := os.ReadFile("testdata/small-gpt2/golden.json")
	require.NoError(t, err)
	var refs []struct {
		Text    string
		IDs     []int32
		Decoded string
	}
	require.NoError(t, json.Unmarshal(data, &refs))
	require.NotEmpty(t, refs)
	for _, ref := range refs {
		require.Equal(t, ref.IDs, tok.Encode(ref.Text, false), "%+q", ref.Text)
		require.Equal(t, ref.Decoded, tok.Decode(ref.IDs, false), "%+q", ref.Text)
	}
}
