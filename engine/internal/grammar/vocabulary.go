package grammar

import (
	"cmp"
	"slices"
)

// Vocabulary is the tokens of a model as bytes, in a trie.
type Vocabulary struct {
	size  int // of the model: a row of logits
	texts []string
	nodes []node // in order: a node is followed by those below it
	same  []int32
	bytes int64
}

// node is a byte of tokens.
type node struct {
	char  byte
	depth int32 // from 1
	skip  int32 // the node behind those below this one
	token int32 // the first token that ends here, or -1; [Vocabulary.same] leads to others
}

// NewVocabulary builds the trie of a model's tokens. text returns what a token adds to the output;
// false is for tokens that add nothing, which no grammar allows.
func NewVocabulary(size int, text func(id int32) (string, bool)) *Vocabulary {
	v := &Vocabulary{size: size, texts: make([]string, size), same: make([]int32, size)}
	var ids []int32
	for id := range int32(size) {
		v.same[id] = -1
		if s, ok := text(id); ok && s != "" {
			v.texts[id] = s
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int32) int {
		return cmp.Or(cmp.Compare(v.texts[a], v.texts[b]), cmp.Compare(a, b))
	})
	v.add(ids)
	v.bytes = int64(len(v.nodes))*16 + int64(size)*20
	for _, s := range v.texts {
		v.bytes += int64(len(s))
	}
	return v
}

// add enters tokens in the order of their texts.
func (v *Vocabulary) add(ids []int32) {
	var open []int32 // the nodes of the text before
	last := ""
	closeTo := func(depth int) {
		for len(open) > depth {
			v.nodes[open[len(open)-1]].skip = int32(len(v.nodes))
			open = open[:len(open)-1]
		}
	}
	for k, id := range ids {
		s := v.texts[id]
		if k > 0 && s == last {
			at := v.nodes[open[len(open)-1]].token
			for v.same[at] >= 0 {
				at = v.same[at]
			}
			v.same[at] = id
			continue
		}
		common := 0
		for common < min(len(s), len(last)) && s[common] == last[common] {
			common++
		}
		closeTo(common)
		for i := common; i < len(s); i++ {
			open = append(open, int32(len(v.nodes)))
			v.nodes = append(v.nodes, node{char: s[i], depth: int32(i + 1), token: -1})
		}
		v.nodes[len(v.nodes)-1].token = id
		last = s
	}
	closeTo(0)
}

// Bytes is about the memory that the vocabulary takes.
func (v *Vocabulary) Bytes() int64 { return v.bytes }
