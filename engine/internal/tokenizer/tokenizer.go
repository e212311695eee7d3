// Package tokenizer encodes and decodes text as a Hugging Face tokenizer.json says: byte-pair encoding with the normalizers, pre-tokenizers,
// post-processors and decoders of the Llama, Mistral, Qwen, GPT-2 and DeepSeek families, equal token for token to the tokenizers library.
//
// What it does not know is refused when the file is read, by name, never approximated:
//
//	checkpoint: m/tokenizer.json: model.type: unknown model: got "Unigram", want "BPE"
//	checkpoint: m/tokenizer.json: normalizer.normalizers[1].type: unknown normalizer: got "Nmt", want one of NFC, NFD, NFKC, NFKD, …
//	checkpoint: m/tokenizer.json: pre_tokenizer.pattern: unknown regular expression: got "\\w+", want that of GPT-2, GPT-4, GPT-4o, Llama 3, …
//	checkpoint: m/tokenizer.json: model.merges: merge 0 has or makes a token that the vocabulary lacks: got "ab", want a token of the vocabulary
//	checkpoint: m/tokenizer.json: model.vocab: ids too sparse: got id 2000000000 among 1 tokens, want at most 65540
package tokenizer

import (
	"fmt"
	"os"
	"unicode/utf8"

	"github.com/enginetest/enginetest/internal/checkpoint"
)

// Tokenizer is immutable and safe for concurrent use.
type Tokenizer struct {
	model     *bpe
	normalize []normalizer
	split     []splitter
	post      []post
	decoders  []newDecoder
	added     *addedTokens
	ids       map[string]int32 // every token: the model's and the added ones
	tokens    []string         // by id, as decoders see them; "" where the id is free
	known     []bool           // by id
}

// maxFile bounds tokenizer.json. The largest published ones (256 k tokens) are near 35 MB.
const maxFile = 1 << 29

// Load reads a tokenizer.json. Its errors are *checkpoint.Error.
func Load(path string) (*Tokenizer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, &checkpoint.Error{File: path, Reason: "cannot read", Err: err}
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, &checkpoint.Error{
			File: path, Reason: "not a tokenizer", Got: fmt.Sprintf("%v, %d bytes", info.Mode(), info.Size()),
			Want: fmt.Sprintf("a regular file of at most %d bytes", maxFile),
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, &checkpoint.Error{File: path, Reason: "cannot read", Err: err}
	}
	return parse(path, data)
}

// Parse reads the text of a tokenizer.json. Its errors are *checkpoint.Error.
func Parse(data []byte) (*Tokenizer, error) { return parse("tokenizer.json", data) }

// Encode turns text into token ids. With addSpecial it adds what the post-processor adds (a BOS token, as a rule). Special tokens that are
// spelled out in the text become their ids either way, as in Hugging Face's library. Bytes that are not UTF-8 are first replaced by U+FFFD,
// one for each maximal part of a character, as Python's errors="replace" does. truncation and padding of the file are not applied.
func (t *Tokenizer) Encode(text string, addSpecial bool) []int32 {
	if !utf8.ValidString(text) {
		text = validUTF8(text)
	}
	ids := make([]int32, 0, len(text)/3+8)
	var pieces, next []piece
	scratch := newScratch()
	for _, section := range t.added.sections(text, t.normalize) {
		if section.id >= 0 {
			ids = append(ids, section.id)
			continue
		}
		if section.text == "" {
			continue
		}
		pieces = append(pieces[:0], section.piece)
		for _, s := range t.split {
			next = s.split(next[:0], pieces)
			pieces, next = next, pieces
		}
		for _, p := range pieces {
			ids = t.model.encode(ids, p.text, scratch)
		}
	}
	if addSpecial {
		for _, p := range t.post {
			ids = p.apply(ids)
		}
	}
	return ids
}

// Decode turns token ids into text; with skipSpecial it leaves special tokens out. Ids that name no token are ignored.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	s := t.NewStream(skipSpecial)
	for _, id := range ids {
		s.feed(id)
	}
	return s.Flush()
}

// VocabSize is the highest token id plus one.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// ID finds a token by its spelling in the vocabulary (in a byte-level one, "Ġthe" is " the").
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// Token is the spelling of a token in the vocabulary, "" when there is no such id. An added token that is looked for in normalized text is
// given normalized, and decodes so.
func (t *Tokenizer) Token(id int32) string {
	if id < 0 || int(id) >= len(t.tokens) {
		return ""
	}
	return t.tokens[id]
}

// IsSpecial says whether id is a special token (one that skipSpecial leaves out).
func (t *Tokenizer) IsSpecial(id int32) bool { return t.added.special[id] }
