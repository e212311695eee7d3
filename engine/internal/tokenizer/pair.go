package tokenizer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// pairPart is a part of what a post-processor makes of two texts: one of them, or special tokens.
type pairPart struct {
	text string // "A" or "B"; "" is ids
	ids  []int32
}

// templatePart is a part of a template in tokenizer.json.
type templatePart struct {
	SpecialToken *struct {
		ID string `json:"id"`
	}
	Sequence *struct {
		ID string `json:"id"`
	}
}

// pair reads the template for two texts of a TemplateProcessing. A file that has none, or one that
// is not understood, can still encode single texts.
func (p *parser) pair(t *Tokenizer, raw json.RawMessage, special map[string][]int32) []pairPart {
	var c struct {
		Pair []templatePart `json:"pair"`
	}
	if json.Unmarshal(raw, &c) != nil {
		return nil
	}
	var parts []pairPart
	count := map[string]int{}
	for _, part := range c.Pair {
		switch {
		case part.Sequence != nil:
			parts = append(parts, pairPart{text: part.Sequence.ID})
			count[part.Sequence.ID]++
		case part.SpecialToken != nil && t.knows(special[part.SpecialToken.ID]):
			parts = append(parts, pairPart{ids: special[part.SpecialToken.ID]})
		default:
			return nil
		}
	}
	if len(count) != 2 || count["A"] != 1 || count["B"] != 1 {
		return nil
	}
	return parts
}

// knows reports whether ids name tokens, one at least.
func (t *Tokenizer) knows(ids []int32) bool {
	return len(ids) > 0 && !slices.ContainsFunc(ids, func(id int32) bool { return t.Token(id) == "" })
}

// ErrNoPairs says that a tokenizer.json does not say how two texts are put together.
var ErrNoPairs = fmt.Errorf("tokenizer: its post-processor has no template for two texts")

// EncodePairAtMost turns two texts into the tokens of one input, with what the post-processor puts
// around and between them; one behind the other when there is no template. Errors: ErrNoPairs, and
// those of EncodeAtMost.
func (t *Tokenizer) EncodePairAtMost(ctx context.Context, a, b string, most int) ([]int32, error) {
	template := []pairPart{{text: "A"}, {text: "B"}}
	switch {
	case len(t.post) == 1:
		if template = t.post[0].pair; template == nil {
			return nil, ErrNoPairs
		}
	case len(t.post) > 1:
		return nil, fmt.Errorf("%w: it has %s of them", ErrNoPairs, strconv.Itoa(len(t.post)))
	}
	var ids []int32
	for _, part := range template {
		if part.text == "" {
			ids = append(ids, part.ids...)
			continue
		}
		text := a
		if part.text == "B" {
			text = b
		}
		more, err := t.EncodeAtMost(ctx, text, false, max(most-len(ids), 0))
		if err != nil {
			return nil, err
		}
		ids = slices.Concat(ids, more)
	}
	if len(ids) > most {
		return nil, &TooLongError{AtLeast: len(ids), Most: most}
	}
	return ids, nil
}
