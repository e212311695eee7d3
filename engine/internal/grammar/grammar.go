package grammar

import (
	"fmt"
	"math/bits"
)

// Grammar is a compiled description for one vocabulary. It is safe for concurrent use, and refers to
// nothing that uses it.
type Grammar struct {
	table      *table
	vocabulary *Vocabulary
	base       int64
}

// newGrammar compiles rules. limit bounds the memory of what is kept of their use.
func newGrammar(kind string, r rules, v *Vocabulary, limit int64) (*Grammar, error) {
	a, err := build(kind, r)
	if err != nil {
		return nil, err
	}
	t, err := newTable(a, limit)
	if err != nil {
		return nil, &Error{Kind: kind, What: err.Error(), Unsupported: true}
	}
	g := &Grammar{table: t, vocabulary: v, base: int64(len(a.edges)) * 40}
	for _, edges := range a.edges {
		g.base += int64(len(edges)) * 40
	}
	return g, nil
}

// Bytes is about the memory that the grammar takes now. It does not count the vocabulary.
func (g *Grammar) Bytes() int64 { return g.base + g.table.held() }

// Mask is a set of tokens that may come next. It is shared and must not be changed.
type Mask struct {
	Bits  []uint64 // of the model's vocabulary
	Count int
	Ends  bool // the output may end here
}

// Has reports whether a token may come next.
func (m *Mask) Has(id int32) bool {
	return id >= 0 && int(id>>6) < len(m.Bits) && m.Bits[id>>6]>>(id&63)&1 == 1
}

// mask computes the tokens that may follow a state.
func (g *Grammar) mask(s *state) (*Mask, error) {
	if m := s.mask.Load(); m != nil {
		return m, nil
	}
	v := g.vocabulary
	m := &Mask{Bits: make([]uint64, (v.size+63)/64), Ends: s.accepts}
	stack := append(make([]*state, 0, 64), s)
	for i := 0; i < len(v.nodes); {
		n := &v.nodes[i]
		next, err := g.table.step(stack[n.depth-1], n.char)
		if err != nil {
			return nil, err
		}
		if next == deadState {
			i = int(n.skip)
			continue
		}
		stack = append(stack[:n.depth], next)
		for id := n.token; id >= 0; id = v.same[id] {
			m.Bits[id>>6] |= 1 << (id & 63)
		}
		i++
	}
	for _, w := range m.Bits {
		m.Count += bits.OnesCount64(w)
	}
	if s.mask.CompareAndSwap(nil, m) {
		if err := g.table.grew(int64(8 * len(m.Bits))); err != nil {
			return nil, err
		}
	}
	return s.mask.Load(), nil
}

// Matcher follows one output through a grammar.
type Matcher struct {
	g    *Grammar
	at   *state
	read int // tokens of the output
}

// Matcher starts an output.
func (g *Grammar) Matcher() *Matcher { return &Matcher{g: g, at: g.table.start()} }

// Mask takes the tokens that the output has got since the last call, and returns those that may
// come next. An error is of this output: it does not match, or the grammar is too ambiguous for it.
func (m *Matcher) Mask(output []int32) (*Mask, error) {
	if err := m.advance(output); err != nil {
		return nil, err
	}
	return m.g.mask(m.at)
}

// Ends reports whether the output may end after these tokens, and whether it must.
func (m *Matcher) Ends(output []int32) (may, must bool, err error) {
	mask, err := m.Mask(output)
	if err != nil {
		return false, false, err
	}
	return mask.Ends, mask.Ends && mask.Count == 0, nil
}

func (m *Matcher) advance(output []int32) error {
	for ; m.read < len(output); m.read++ {
		id := output[m.read]
		text := ""
		if id >= 0 && int(id) < len(m.g.vocabulary.texts) {
			text = m.g.vocabulary.texts[id]
		}
		for i := range len(text) {
			next, err := m.g.table.step(m.at, text[i])
			if err != nil {
				return err
			}
			if next == deadState {
				return fmt.Errorf("grammar: token %d (%q), number %d of the output, does not match", id, text, m.read+1)
			}
			m.at = next
		}
	}
	if m.at.generation != m.g.table.generation.Load() {
		next, err := m.g.table.renew(m.at)
		if err != nil {
			return err
		}
		m.at = next
	}
	return nil
}
