package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/enginetest/enginetest/internal/checkpoint"
)

// parser builds a Tokenizer; the first thing that is wrong stops it by panicking with its error,
// which parse returns.
type parser struct {
	file      string
	byteLevel bool // a pre-tokenizer maps bytes
	fused     bool // the decoder so far makes one text of all tokens
	growth    int  // how many times longer all Replace steps together can make a text
	limits    shrinkage
}

func parse(file string, data []byte) (t *Tokenizer, err error) {
	p := &parser{file: file, growth: 1, limits: shrinkage{bytes: 1}}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*checkpoint.Error)
			if !ok {
				panic(r)
			}
			t, err = nil, e
		}
	}()
	var f struct {
		Added         []addedToken    `json:"added_tokens"`
		Normalizer    json.RawMessage `json:"normalizer"`
		PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
		PostProcessor json.RawMessage `json:"post_processor"`
		Decoder       json.RawMessage `json:"decoder"`
		Model         json.RawMessage `json:"model"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, &checkpoint.Error{File: file, Reason: "not a tokenizer.json", Err: err}
	}
	t = &Tokenizer{}
	p.normalizer(t, "normalizer", f.Normalizer)
	p.preTokenizer(t, "pre_tokenizer", f.PreTokenizer)
	p.model(t, f.Model)
	p.vocabulary(t, f.Added)
	t.added = newAddedTokens(f.Added, t.normalize)
	t.bound = p.limits.bound(t, f.Added)
	p.postProcessor(t, "post_processor", f.PostProcessor)
	p.decoder(t, "decoder", f.Decoder)
	if absent(f.Decoder) {
		t.decoders = []newDecoder{func() decoder { return &joinWithSpaces{} }}
	}
	return t, nil
}

func (p *parser) fail(field, reason, got, want string) {
	panic(&checkpoint.Error{File: p.file, Field: field, Reason: reason, Got: got, Want: want})
}

// read decodes a component into v.
func (p *parser) read(field string, raw json.RawMessage, v any) {
	if len(raw) == 0 {
		p.fail(field, "missing", "", "")
	}
	if err := json.Unmarshal(raw, v); err != nil {
		panic(&checkpoint.Error{File: p.file, Field: field, Reason: "wrong type", Err: err})
	}
}

func absent(raw json.RawMessage) bool { return len(raw) == 0 || bytes.Equal(raw, []byte("null")) }

// kind reads the type of a component.
func (p *parser) kind(field string, raw json.RawMessage) string {
	var c struct {
		Type string `json:"type"`
	}
	p.read(field, raw, &c)
	return c.Type
}

const maxDepth = 8

// sequence calls each for the members of a Sequence.
func (p *parser) sequence(t *Tokenizer, field, key string, raw json.RawMessage,
	each func(*Tokenizer, string, json.RawMessage),
) {
	if strings.Count(field, "[") == maxDepth {
		p.fail(field, "nested too deep", "", fmt.Sprintf("at most %d levels", maxDepth))
	}
	var c map[string]json.RawMessage
	p.read(field, raw, &c)
	var list []json.RawMessage
	p.read(field+"."+key, c[key], &list)
	for i, raw := range list {
		each(t, fmt.Sprintf("%s.%s[%d]", field, key, i), raw)
	}
}

func (p *parser) normalizer(t *Tokenizer, field string, raw json.RawMessage) {
	if absent(raw) {
		return
	}
	var c struct {
		Prepend    string  `json:"prepend"`
		Pattern    matcher `json:"pattern"`
		Content    string  `json:"content"`
		StripLeft  bool    `json:"strip_left"`
		StripRight bool    `json:"strip_right"`
	}
	kind := p.kind(field, raw)
	if kind == "Sequence" {
		p.sequence(t, field, "normalizers", raw, p.normalizer)
		return
	}
	p.read(field, raw, &c)
	var n normalizer
	p.limits.add(kind, &c.Pattern, c.Content)
	switch kind {
	case "NFC":
		n = form(norm.NFC)
	case "NFD":
		n = form(norm.NFD)
	case "NFKC":
		n = form(norm.NFKC)
	case "NFKD":
		n = form(norm.NFKD)
	case "Lowercase":
		n = lowercase
	case "Prepend":
		n = prepend(c.Prepend)
	case "Replace":
		n = p.replace(field, c.Pattern, c.Content)
	case "Strip":
		n = strip(c.StripLeft, c.StripRight)
	default:
		p.fail(field+".type", "unknown normalizer", strconv.Quote(kind),
			"one of NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, Sequence")
	}
	t.normalize = append(t.normalize, n)
}

// matcher is {"String": …} or {"Regex": …}.
type matcher struct{ String, Regex *string }

func (p *parser) literal(field string, m matcher) string {
	if m.String == nil || *m.String == "" {
		got := "neither"
		if m.Regex != nil {
			got = "the regular expression " + strconv.Quote(*m.Regex)
		} else if m.String != nil {
			got = "an empty string"
		}
		p.fail(field+".pattern", "unsupported pattern", got, "a string")
	}
	return *m.String
}

// replace bounds what a chain of replacements can make of a text: "a" to a thousand of them, three
// times, is no tokenizer.
func (p *parser) replace(field string, m matcher, content string) normalizer {
	const most = 1 << 10
	old := p.literal(field, m)
	if grow := len(content) / len(old); grow > 1 {
		p.growth = min(p.growth, most) * min(grow, most)
	}
	if p.growth > most {
		p.fail(field+".content", "replacements make the text too long", fmt.Sprintf("%d times or more", p.growth),
			fmt.Sprintf("at most %d times", most))
	}
	return replace(old, content)
}

func (p *parser) preTokenizer(t *Tokenizer, field string, raw json.RawMessage) {
	if absent(raw) {
		return
	}
	kind := p.kind(field, raw)
	if p.byteLevel {
		p.fail(field, "a pre-tokenizer behind ByteLevel is not supported", strconv.Quote(kind), "ByteLevel last")
	}
	switch kind {
	case "Sequence":
		p.sequence(t, field, "pretokenizers", raw, p.preTokenizer)
	case "ByteLevel":
		c := struct {
			AddPrefixSpace bool `json:"add_prefix_space"`
			UseRegex       bool `json:"use_regex"`
		}{UseRegex: true}
		p.read(field, raw, &c)
		if c.AddPrefixSpace {
			t.split = append(t.split, prefixSpace{})
		}
		if c.UseRegex {
			t.split = append(t.split, splitBy{pattern: gpt2, behavior: isolated})
		}
		p.byteLevel = true
	case "Split":
		t.split = append(t.split, p.splitBy(field, raw))
	case "Digits":
		var c struct {
			Individual bool `json:"individual_digits"`
		}
		p.read(field, raw, &c)
		b := splitBy{pattern: numeric{}, behavior: contiguous}
		if c.Individual {
			b.behavior = isolated
		}
		t.split = append(t.split, b)
	case "Metaspace":
		t.split = append(t.split, p.metaspace(field, raw))
	default:
		p.fail(field+".type", "unknown pre-tokenizer", strconv.Quote(kind),
			"one of ByteLevel, Split, Digits, Metaspace, Sequence")
	}
}

var unescapeLineEnds = strings.NewReplacer("\r", `\r`, "\n", `\n`)

func (p *parser) splitBy(field string, raw json.RawMessage) splitBy {
	var c struct {
		Pattern  matcher `json:"pattern"`
		Behavior string  `json:"behavior"`
		Invert   bool    `json:"invert"`
	}
	p.read(field, raw, &c)
	b, ok := behaviors[c.Behavior]
	if !ok {
		p.fail(field+".behavior", "unknown", strconv.Quote(c.Behavior),
			"one of "+strings.Join(slices.Sorted(maps.Keys(behaviors)), ", "))
	}
	p.limits.drops = p.limits.drops || b == removed
	if c.Pattern.Regex == nil {
		return splitBy{literal(p.literal(field, c.Pattern)), b, c.Invert}
	}
	scan, ok := patterns[unescapeLineEnds.Replace(*c.Pattern.Regex)]
	if !ok {
		p.fail(field+".pattern", "unknown regular expression", strconv.Quote(*c.Pattern.Regex),
			"that of GPT-2, GPT-4, GPT-4o, Llama 3, Qwen 2 or 3.5, Mistral tekken or DeepSeek V3, to the letter")
	}
	return splitBy{scan, b, c.Invert}
}

func (p *parser) metaspace(field string, raw json.RawMessage) metaspace {
	var c struct {
		Replacement    *string `json:"replacement"`
		AddPrefixSpace *bool   `json:"add_prefix_space"` // the form before tokenizers 0.15
		PrependScheme  *string `json:"prepend_scheme"`
		Split          *bool   `json:"split"`
	}
	p.read(field, raw, &c)
	m := metaspace{replacement: "▁", scheme: always, cut: c.Split == nil || *c.Split}
	if c.Replacement != nil {
		m.replacement = *c.Replacement
	}
	if utf8.RuneCountInString(m.replacement) != 1 {
		p.fail(field+".replacement", "not one character", strconv.Quote(m.replacement), "")
	}
	if c.AddPrefixSpace != nil && !*c.AddPrefixSpace {
		m.scheme = never
	}
	if c.PrependScheme != nil {
		s, ok := schemes[*c.PrependScheme]
		if !ok {
			p.fail(field+".prepend_scheme", "unknown", strconv.Quote(*c.PrependScheme),
				"one of "+strings.Join(slices.Sorted(maps.Keys(schemes)), ", "))
		}
		if m.scheme == never && s != never {
			p.fail(field+".prepend_scheme", "contradicts add_prefix_space", *c.PrependScheme,
				"never, or no add_prefix_space: false")
		}
		m.scheme = s
	}
	return m
}

func (p *parser) postProcessor(t *Tokenizer, field string, raw json.RawMessage) {
	if absent(raw) {
		return
	}
	switch kind := p.kind(field, raw); kind {
	case "ByteLevel": // concerns offsets only
	case "Sequence":
		p.sequence(t, field, "processors", raw, p.postProcessor)
	case "TemplateProcessing":
		t.post = append(t.post, p.template(t, field, raw))
	default:
		p.fail(field+".type", "unknown post-processor", strconv.Quote(kind),
			"one of TemplateProcessing, ByteLevel, Sequence")
	}
}

func (p *parser) template(t *Tokenizer, field string, raw json.RawMessage) post {
	var c struct {
		Single        []templatePart `json:"single"`
		SpecialTokens map[string]struct {
			IDs []int32 `json:"ids"`
		} `json:"special_tokens"`
	}
	p.read(field, raw, &c)
	special := map[string][]int32{}
	for name, token := range c.SpecialTokens {
		special[name] = token.IDs
	}
	out := post{pair: p.pair(t, raw, special)}
	texts := 0
	for i, part := range c.Single {
		at := fmt.Sprintf("%s.single[%d]", field, i)
		switch {
		case part.Sequence != nil && part.Sequence.ID == "A":
			texts++
		case part.SpecialToken != nil:
			token, ok := c.SpecialTokens[part.SpecialToken.ID]
			if !ok {
				p.fail(at, "not among special_tokens", strconv.Quote(part.SpecialToken.ID), "")
			}
			for _, id := range token.IDs {
				if t.Token(id) == "" {
					p.fail(at, "adds an id that names no token", strconv.Itoa(int(id)), "a token's id")
				}
			}
			if texts == 0 {
				out.before = append(out.before, token.IDs...)
			} else {
				out.after = append(out.after, token.IDs...)
			}
		default:
			p.fail(at, "unknown part", "", `a SpecialToken, or the Sequence "A"`)
		}
	}
	if texts != 1 {
		p.fail(field+".single", "the text does not appear once", strconv.Itoa(texts)+" times", `one Sequence "A"`)
	}
	return out
}

func (p *parser) decoder(t *Tokenizer, field string, raw json.RawMessage) {
	if absent(raw) {
		return
	}
	var c struct {
		Pattern matcher `json:"pattern"`
		Content string  `json:"content"`
		Start   int     `json:"start"`
		Stop    int     `json:"stop"`
	}
	kind := p.kind(field, raw)
	if kind == "Sequence" {
		p.sequence(t, field, "decoders", raw, p.decoder)
		return
	}
	if p.fused && kind != "Strip" && kind != "Fuse" {
		p.fail(field, "not supported behind Fuse or ByteLevel", strconv.Quote(kind), "Strip or Fuse")
	}
	p.read(field, raw, &c)
	var d newDecoder
	switch kind {
	case "ByteLevel":
		d = func() decoder { return &byteLevelDecoder{} }
		p.fused = true
	case "ByteFallback":
		d = func() decoder { return &byteFallbackDecoder{} }
	case "Fuse":
		p.fused = true
		return
	case "Replace":
		step := eachToken(p.replace(field, c.Pattern, c.Content))
		d = func() decoder { return step }
	case "Strip":
		d = p.strip(field, c.Content, c.Start, c.Stop)
	case "Metaspace":
		m := p.metaspace(field, raw)
		d = func() decoder { return &metaspaceDecoder{replacement: m.replacement, added: m.scheme != never} }
	default:
		p.fail(field+".type", "unknown decoder", strconv.Quote(kind),
			"one of ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, Sequence")
	}
	t.decoders = append(t.decoders, d)
}

func (p *parser) strip(field, char string, start, stop int) newDecoder {
	if utf8.RuneCountInString(char) != 1 || start < 0 || stop < 0 {
		p.fail(field, "bad Strip", fmt.Sprintf("%q, start %d, stop %d", char, start, stop),
			"one character and counts that are not negative")
	}
	if p.fused {
		return func() decoder { return &stripText{char: char, start: start, stop: stop} }
	}
	step := stripToken(char, start, stop)
	return func() decoder { return step }
}
