package tokenizer

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/internal/checkpoint"
)

const tinyModel = `{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"▁":3,"Ġ":4},"merges":["a b"]}`

// file makes a tokenizer.json with one component replaced.
func file(key, value string) string {
	parts := map[string]string{
		"added_tokens": `[]`, "normalizer": `null`, "pre_tokenizer": `null`, "post_processor": `null`,
		"decoder": `null`, "model": tinyModel,
	}
	parts[key] = value
	var fields []string
	for k, v := range parts {
		fields = append(fields, fmt.Sprintf("%q:%s", k, v))
	}
	return "{" + strings.Join(fields, ",") + "}"
}

func TestRefusals(t *testing.T) {
	deep := strings.Repeat(`{"type":"Sequence","normalizers":[`, 12) + `{"type":"NFC"}` + strings.Repeat(`]}`, 12)
	for _, row := range []struct{ why, key, value, field, says string }{
		{"no JSON", "model", `{`, "", "not a tokenizer.json"},
		{"no model", "model", `null`, "model.vocab", "missing or empty"},
		{
			"a WordPiece model", "model", `{"type":"WordPiece","vocab":{"a":0}}`, "model.type",
			`unknown model: got "WordPiece", want "BPE"`,
		},
		{
			"a Unigram model, whose vocab is a list", "model", `{"type":"Unigram","vocab":[["a",0.5]]}`, "model.type",
			`got "Unigram"`,
		},
		{"random merges", "model", `{"type":"BPE","dropout":0.1,"vocab":{"a":0},"merges":[]}`, "model.dropout", "0.1"},
		{
			"subword prefix", "model", `{"type":"BPE","continuing_subword_prefix":"##","vocab":{"a":0},"merges":[]}`,
			"model.continuing_subword_prefix", "##",
		},
		{
			"word suffix", "model", `{"type":"BPE","end_of_word_suffix":"</w>","vocab":{"a":0},"merges":[]}`,
			"model.end_of_word_suffix", "</w>",
		},
		{
			"unknown token unknown", "model", `{"type":"BPE","unk_token":"<unk>","vocab":{"a":0},"merges":[]}`,
			"model.unk_token", "<unk>",
		},
		{"merge of no token", "model", `{"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]}`, "model.merges", `"ab"`},
		{"merge of three", "model", `{"type":"BPE","vocab":{"a":0},"merges":["a a a"]}`, "model", "not two tokens"},
		{"negative id", "model", `{"type":"BPE","vocab":{"a":-1},"merges":[]}`, "model.vocab", "negative id"},
		{
			"one id, two tokens", "model", `{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]}`, "model.vocab",
			"id 0 has two tokens",
		},
		{
			"an id that wants a huge table", "model", `{"type":"BPE","vocab":{"a":2000000000},"merges":[]}`, "model.vocab",
			"too sparse",
		},
		{"the largest id", "model", `{"type":"BPE","vocab":{"a":2147483647},"merges":[]}`, "model.vocab", "too sparse"},
		{"an id beyond 32 bits", "model", `{"type":"BPE","vocab":{"a":4294967296},"merges":[]}`, "model", "wrong type"},
		{"added token with another id", "added_tokens", `[{"id":7,"content":"a"}]`, "added_tokens", `"a" has two ids`},
		{"unknown normalizer", "normalizer", `{"type":"Precompiled"}`, "normalizer.type", `"Precompiled"`},
		{
			"unknown normalizer inside", "normalizer", `{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Nmt"}]}`,
			"normalizer.normalizers[1].type", `"Nmt"`,
		},
		{
			"replacing a regular expression", "normalizer", `{"type":"Replace","pattern":{"Regex":" +"},"content":" "}`,
			"normalizer.pattern", `" +"`,
		},
		{
			"replacements that explode", "normalizer",
			`{"type":"Sequence","normalizers":[` +
				strings.Repeat(`{"type":"Replace","pattern":{"String":"a"},"content":"`+strings.Repeat("a", 100)+`"},`, 3) +
				`{"type":"NFC"}]}`,
			"normalizer.normalizers[1].content", "10000 times or more, want at most 1024 times",
		},
		{"nested too deep", "normalizer", deep, "", "nested too deep"},
		{
			"unknown pre-tokenizer", "pre_tokenizer", `{"type":"BertPreTokenizer"}`, "pre_tokenizer.type",
			`"BertPreTokenizer"`,
		},
		{
			"unknown pattern", "pre_tokenizer",
			`{"type":"Split","pattern":{"Regex":"\\w+"},"behavior":"Isolated","invert":false}`, "pre_tokenizer.pattern",
			`\\w+`,
		},
		{
			"unknown behavior", "pre_tokenizer", `{"type":"Split","pattern":{"String":"a"},"behavior":"Odd"}`,
			"pre_tokenizer.behavior", `"Odd"`,
		},
		{
			"empty separator", "pre_tokenizer", `{"type":"Split","pattern":{"String":""},"behavior":"Isolated"}`,
			"pre_tokenizer.pattern", "an empty string",
		},
		{
			"ByteLevel not last", "pre_tokenizer",
			`{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]}`,
			"pre_tokenizer.pretokenizers[1]", "behind ByteLevel",
		},
		{
			"Metaspace contradicts itself", "pre_tokenizer",
			`{"type":"Metaspace","add_prefix_space":false,"prepend_scheme":"first"}`, "pre_tokenizer.prepend_scheme",
			"contradicts",
		},
		{
			"Metaspace with a long replacement", "pre_tokenizer", `{"type":"Metaspace","replacement":"__"}`,
			"pre_tokenizer.replacement", `"__"`,
		},
		{
			"unknown post-processor", "post_processor", `{"type":"BertProcessing"}`, "post_processor.type",
			`"BertProcessing"`,
		},
		{
			"template without text", "post_processor", `{"type":"TemplateProcessing","single":[]}`,
			"post_processor.single", "0 times",
		},
		{
			"template with an unknown token", "post_processor",
			`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}]}`,
			"post_processor.single[0]", `"<s>"`,
		},
		{
			"template that adds an id of no token", "post_processor",
			`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}],"special_tokens":{"x":{"ids":[99]}}}`, "post_processor.single[0]", "99",
		},
		{"unknown decoder", "decoder", `{"type":"WordPiece"}`, "decoder.type", `"WordPiece"`},
		{
			"decoder behind Fuse", "decoder", `{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"ByteFallback"}]}`,
			"decoder.decoders[1]", "behind Fuse",
		},
		{"negative Strip", "decoder", `{"type":"Strip","content":" ","start":-1,"stop":0}`, "decoder", "bad Strip"},
	} {
		t.Run(row.why, func(t *testing.T) {
			_, err := Parse([]byte(file(row.key, row.value)))
			var e *checkpoint.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, "tokenizer.json", e.File)
			require.Contains(t, err.Error(), row.says)
			t.Log(err)
			if row.field != "" {
				require.Equal(t, row.field, e.Field)
			}
		})
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	_, err := Load("testdata/none.json")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Contains(t, err.Error(), "testdata/none.json")
	_, err = Load("testdata")
	var e *checkpoint.Error
	require.ErrorAs(t, err, &e)
	require.Contains(t, err.Error(), "regular file")
}

// The forms that the trained tokenizers of testdata do not have.
func TestForms(t *testing.T) {
	const text = "ab ba"
	for _, row := range []struct {
		why, key, value string
		want            []int32
	}{
		{"unknown characters without unk_token vanish", "normalizer", `null`, []int32{2, 1, 0}},
		{
			"a Split that removes", "pre_tokenizer",
			`{"type":"Split","pattern":{"String":"b"},"behavior":"Removed","invert":false}`,
			[]int32{0, 0},
		},
		{
			"a Split that keeps only matches", "pre_tokenizer",
			`{"type":"Split","pattern":{"String":"b"},"behavior":"Removed","invert":true}`,
			[]int32{1, 1},
		},
		{
			"a Split between a and b", "pre_tokenizer",
			`{"type":"Split","pattern":{"String":"b"},"behavior":"MergedWithNext","invert":false}`,
			[]int32{0, 1, 1, 0},
		},
		{
			"a Split behind b", "pre_tokenizer",
			`{"type":"Split","pattern":{"String":"b"},"behavior":"MergedWithPrevious","invert":false}`,
			[]int32{2, 1, 0},
		},
		{
			"the old Metaspace", "pre_tokenizer", `{"type":"Metaspace","replacement":"▁","add_prefix_space":true}`,
			[]int32{3, 2, 3, 1, 0},
		},
		{
			"the old Metaspace without prefix", "pre_tokenizer",
			`{"type":"Metaspace","replacement":"▁","add_prefix_space":false}`,
			[]int32{2, 3, 1, 0},
		},
		{
			"ByteLevel with a prefix space", "pre_tokenizer",
			`{"type":"ByteLevel","add_prefix_space":true,"use_regex":true}`,
			[]int32{4, 2, 4, 1, 0},
		},
		{"Strip and Replace", "normalizer", `{"type":"Sequence","normalizers":[{"type":"Replace","pattern":{"String":"ab "},"content":"  "},{"type":"Strip","strip_left":true,"strip_right":true}]}`, []int32{1, 0}},
	} {
		t.Run(row.why, func(t *testing.T) {
			tok, err := Parse([]byte(file(row.key, row.value)))
			require.NoError(t, err)
			require.Equal(t, row.want, tok.Encode(text, true))
		})
	}
}

func TestLookups(t *testing.T) {
	tok := load(t, "llama3")
	id, ok := tok.ID("<|begin_of_text|>")
	require.True(t, ok)
	require.Equal(t, "<|begin_of_text|>", tok.Token(id))
	require.True(t, tok.IsSpecial(id))
	require.Equal(t, 908, tok.VocabSize())
	_, ok = tok.ID("no such token")
	require.False(t, ok)
	require.Empty(t, tok.Token(-1))
	require.Empty(t, tok.Token(908))
	require.Empty(t, tok.Decode([]int32{-1, 908, 1 << 30}, false), "ids of no token are ignored")
}
