// Package tokenizer encodes and decodes text as a Hugging Face tokenizer.json says: byte-pair
// encoding with the normalizers, pre-tokenizers, post-processors and decoders of the Llama,
// Mistral, Qwen, GPT-2 and DeepSeek families, equal token for token to the tokenizers library.
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
	"context"
	"fmt"
	"math"
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
	bound     bound
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

// Encode turns text into token ids. With addSpecial it adds what the post-processor adds (a BOS
// token, as a rule). Special tokens that are spelled out in the text become their ids either way,
// as in Hugging Face's library. Bytes that are not UTF-8 are first replaced by U+FFFD, one for each
// maximal part of a character, as Python's errors="replace" does. truncation and padding of the
// file are not applied.
func (t *Tokenizer) Encode(text string, addSpecial bool) []int32 {
	ids, _ := t.encode(context.Background(), text, addSpecial, math.MaxInt) // without bounds nothing stops it
	return ids
}

// EncodeAtMost is Encode for a text that may be hostile. It stops with its context, and with a
// [TooLongError] as soon as the text must have more than most tokens: before any other work when
// its length says so.
func (t *Tokenizer) EncodeAtMost(ctx context.Context, text string, addSpecial bool, most int) ([]int32, error) {
	if n := t.bound.least(text, most); n > most {
		return nil, &TooLongError{AtLeast: n, Most: most}
	}
	return t.encode(ctx, text, addSpecial, most)
}

func (t *Tokenizer) encode(ctx context.Context, text string, addSpecial bool, most int) ([]int32, error) {
	if !utf8.ValidString(text) {
		text = validUTF8(text)
	}
	ids := make([]int32, 0, min(len(text)/3, most)+8)
	s := newScratch(ctx, most)
	for _, section := range t.added.sections(text, t.normalize) {
		if section.id >= 0 {
			ids = append(ids, section.id)
		} else if section.text != "" {
			ids = t.encodeSection(ids, section.piece, s)
		}
		if !s.goesOn(len(ids)) {
			return nil, s.err
		}
	}
	if addSpecial {
		for _, p := range t.post {
			ids = p.apply(ids)
		}
	}
	if len(ids) > most {
		return nil, &TooLongError{AtLeast: len(ids), Most: most}
	}
	return ids, nil
}

// encodeSection appends the tokens of text without added tokens; they are incomplete when s has an
// error.
func (t *Tokenizer) encodeSection(ids []int32, text piece, s *scratch) []int32 {
	pieces := append(s.pieces[:0], text)
	next := s.next
	for _, step := range t.split {
		next = step.split(next[:0], pieces)
		pieces, next = next, pieces
	}
	s.pieces, s.next = pieces, next
	for _, p := range pieces {
		ids = t.model.encode(ids, p.text, s)
		if !s.goesOn(len(ids)) {
			break
		}
	}
	return ids
}

// Decode turns token ids into text; with skipSpecial it leaves special tokens out. Ids that name no
// token are ignored.
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

// Token is the spelling of a token in the vocabulary, "" when there is no such id. An added token
// that is looked for in normalized text is given normalized, and decodes so.
func (t *Tokenizer) Token(id int32) string {
	if id < 0 || int(id) >= len(t.tokens) {
		return ""
	}
	return t.tokens[id]
}

// IsSpecial reports whether id is a special token (one that skipSpecial leaves out).
func (t *Tokenizer) IsSpecial(id int32) bool { return t.added.special[id] }
