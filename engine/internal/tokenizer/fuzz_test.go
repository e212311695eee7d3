package tokenizer

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/enginetest/enginetest/internal/checkpoint"
)

// FuzzParse: any file is refused with a typed error, or gives a tokenizer that works.
func FuzzParse(f *testing.F) {
	f.Add([]byte(file("model", tinyModel)))
	f.Add([]byte(file("pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":true}]}`)))
	f.Add([]byte(file("normalizer",
		`{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Lowercase"},{"type":"Prepend","prepend":"▁"}]}`)))
	f.Add([]byte(file("decoder", `{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}`)))
	f.Add([]byte(file("added_tokens",
		`[{"id":9,"content":"<s>","lstrip":true,"rstrip":true,"single_word":true,"normalized":true,"special":true}]`)))
	f.Add([]byte(file("post_processor", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}],"special_tokens":{"x":{"ids":[1]}}}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := Parse(data)
		if err != nil {
			var e *checkpoint.Error
			if !errors.As(err, &e) || e.Error() == "" {
				t.Fatalf("not a checkpoint.Error: %T %v", err, err)
			}
			return
		}
		ids := tok.Encode("ab <s> é日😀 12\n", true)
		for _, id := range ids {
			if id < 0 || int(id) >= tok.VocabSize() {
				t.Fatalf("id %d outside [0, %d)", id, tok.VocabSize())
			}
		}
		tok.Decode(ids, true)
	})
}

// FuzzEncodeDecode: any string gives ids of the vocabulary, a byte-level tokenizer without
// normalizer returns the string back, and the stream's pieces are Decode's text.
func FuzzEncodeDecode(f *testing.F) {
	for _, ref := range readReferences(f, filepath.Join("testdata", "gpt2", "golden.json")) {
		if ref.Text != nil {
			f.Add(*ref.Text)
		}
	}
	f.Add("\xff\xf0\x9f<s>\xe6")
	var toks []*Tokenizer
	for _, name := range made {
		toks = append(toks, load(f, name))
	}
	f.Fuzz(func(t *testing.T, text string) {
		want := text
		if !utf8.ValidString(text) {
			want = validUTF8(text)
		}
		// An added token that strips spaces does not give them back; a spelled-out added token
		// decodes as its bytes.
		exact := !strings.ContainsAny(want, "<[")
		for i, tok := range toks {
			ids := tok.Encode(text, false)
			for _, id := range ids {
				if id < 0 || int(id) >= tok.VocabSize() {
					t.Fatalf("%s: id %d outside [0, %d)", made[i], id, tok.VocabSize())
				}
			}
			got := tok.Decode(ids, false)
			if exact && tok.model.byteLevel && tok.normalize == nil && got != want {
				t.Fatalf("%s: %+q came back as %+q", made[i], want, got)
			}
			if pieces := strings.Join(streamed(t, tok, ids, false), ""); pieces != got {
				t.Fatalf("%s: the stream gives %+q, Decode %+q", made[i], pieces, got)
			}
		}
	})
}
