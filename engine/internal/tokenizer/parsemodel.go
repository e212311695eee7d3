package tokenizer

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

func (p *parser) model(t *Tokenizer, raw json.RawMessage) {
	if kind := p.kind("model", raw); kind != "BPE" && kind != "" { // old files leave the type out
		p.fail("model.type", "unknown model", strconv.Quote(kind), `"BPE"`)
	}
	var c struct {
		Dropout      *float64         `json:"dropout"`
		Unk          *string          `json:"unk_token"`
		Prefix       *string          `json:"continuing_subword_prefix"`
		Suffix       *string          `json:"end_of_word_suffix"`
		FuseUnk      bool             `json:"fuse_unk"`
		ByteFallback bool             `json:"byte_fallback"`
		IgnoreMerges bool             `json:"ignore_merges"`
		Vocab        map[string]int32 `json:"vocab"`
		Merges       []mergePair      `json:"merges"`
	}
	p.read("model", raw, &c)
	if c.Dropout != nil && *c.Dropout != 0 {
		p.fail("model.dropout", "random merges are not supported", fmt.Sprint(*c.Dropout), "null or 0")
	}
	for field, v := range map[string]*string{
		"model.continuing_subword_prefix": c.Prefix,
		"model.end_of_word_suffix":        c.Suffix,
	} {
		if v != nil && *v != "" {
			p.fail(field, "not supported", strconv.Quote(*v), "null")
		}
	}
	if len(c.Vocab) == 0 {
		p.fail("model.vocab", "missing or empty", "", "token: id pairs")
	}
	m := &bpe{vocab: c.Vocab, byteLevel: p.byteLevel, fuseUnk: c.FuseUnk, byteFallback: c.ByteFallback, unk: -1}
	if c.Unk != nil {
		id, ok := c.Vocab[*c.Unk]
		if !ok {
			p.fail("model.unk_token", "not in the vocabulary", strconv.Quote(*c.Unk), "a token or null")
		}
		m.unk = id
	}
	m.merges = p.merges(c.Vocab, c.Merges)
	for b := range 256 {
		m.byteIDs[b] = idOr(c.Vocab, string(byteToRune[b]))
		m.fallback[b] = idOr(c.Vocab, fmt.Sprintf("<0x%02X>", b))
		if m.byteLevel && m.byteFallback && m.byteIDs[b] < 0 {
			p.fail("model.byte_fallback", "not supported with a ByteLevel pre-tokenizer",
				fmt.Sprintf("no token for byte 0x%02X", b), "all 256 bytes in the vocabulary")
		}
	}
	if !m.byteLevel { // whose pieces are words
		m.seams = newSeams(c.Vocab, c.Merges)
	}
	if c.IgnoreMerges {
		m.whole = c.Vocab
		if m.byteLevel {
			m.whole = unspelled(c.Vocab)
		}
	}
	t.model = m
}

func idOr(vocab map[string]int32, token string) int32 {
	if id, ok := vocab[token]; ok {
		return id
	}
	return -1
}

func unspelled(vocab map[string]int32) map[string]int32 {
	whole := make(map[string]int32, len(vocab))
	for token, id := range vocab {
		if text, ok := unspell(token); ok {
			whole[text] = id
		}
	}
	return whole
}

// mergePair is "a b", or ["a", "b"] since tokenizers 0.20.
type mergePair struct {
	a, b    string
	comment bool // a "#version" line
}

func (m *mergePair) UnmarshalJSON(data []byte) error {
	var both []string
	if data[0] == '[' {
		if err := json.Unmarshal(data, &both); err != nil {
			return err
		}
	} else {
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return err
		}
		if m.comment = strings.HasPrefix(s, "#version"); m.comment {
			return nil
		}
		both = strings.Split(s, " ")
	}
	if len(both) != 2 {
		return fmt.Errorf("merge %.100s is not two tokens", data)
	}
	m.a, m.b = both[0], both[1]
	return nil
}

func (p *parser) merges(vocab map[string]int32, list []mergePair) map[uint64]merge {
	out := make(map[uint64]merge, len(list))
	rank := int32(0)
	for i, m := range list {
		if m.comment {
			continue
		}
		token := func(s string) int32 {
			id, ok := vocab[s]
			if !ok {
				p.fail("model.merges", fmt.Sprintf("merge %d has or makes a token that the vocabulary lacks", i),
					strconv.Quote(s), "a token of the vocabulary")
			}
			return id
		}
		out[pair(token(m.a), token(m.b))] = merge{rank, token(m.a + m.b)}
		rank++
	}
	return out
}

// vocabulary joins the model's tokens and the added ones, by id.
func (p *parser) vocabulary(t *Tokenizer, added []addedToken) {
	t.ids = make(map[string]int32, len(t.model.vocab)+len(added))
	highest := int32(-1)
	for token, id := range t.model.vocab {
		t.ids[token] = id
		highest = max(highest, id)
		if id < 0 {
			p.fail("model.vocab", "negative id", fmt.Sprintf("%q: %d", token, id), "")
		}
	}
	for _, a := range added {
		if id, ok := t.ids[a.Content]; ok && id != a.ID {
			p.fail("added_tokens", fmt.Sprintf("%q has two ids", a.Content),
				fmt.Sprintf("%d here and %d in model.vocab", a.ID, id), "one")
		}
		if a.ID < 0 {
			p.fail("added_tokens", "negative id", fmt.Sprintf("%q: %d", a.Content, a.ID), "")
		}
		t.ids[a.Content] = a.ID
		highest = max(highest, a.ID)
	}
	// Real vocabularies have few gaps: a huge id must not make a huge table.
	if most := 4*len(t.ids) + 1<<16; int(highest) > most || highest == math.MaxInt32 {
		p.fail("model.vocab", "ids too sparse", fmt.Sprintf("id %d among %d tokens", highest, len(t.ids)),
			fmt.Sprintf("at most %d", most))
	}
	t.tokens, t.known = make([]string, highest+1), make([]bool, highest+1)
	for token, id := range t.ids {
		if t.known[id] {
			p.fail("model.vocab", fmt.Sprintf("id %d has two tokens", id),
				fmt.Sprintf("%q and %q", t.tokens[id], token), "one")
		}
		t.tokens[id], t.known[id] = token, true
	}
	for _, a := range added {
		if a.Normalized {
			t.tokens[a.ID] = normalizeAll(t.normalize, a.Content)
		}
	}
}
