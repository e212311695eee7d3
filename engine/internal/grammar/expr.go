// Package grammar restricts the output of a model to a language: that of a JSON schema, a regular
// expression, a choice of texts, or a grammar in EBNF.
//
// A description is compiled into an automaton over bytes, with a stack for what nests. Its states
// are made deterministic while they are used, and each keeps the mask of tokens that may come next:
// the automaton walks a trie of the vocabulary once per state. What cannot be compiled is refused
// by name:
//
//	grammar: JSON schema: #/properties/a/not: keyword "not" is not supported; supported: $ref, …
//	grammar: regular expression: \b: unsupported
//	grammar: EBNF: line 2: rule "item" is not defined
package grammar

import "fmt"

// Error says what is wrong with a description, or what of it is not supported.
type Error struct {
	Kind        string // "JSON schema", "regular expression", "choice", "EBNF"
	Where       string // a JSON pointer, a line; "" when it is the whole
	What        string
	Unsupported bool // valid, but not supported
}

func (e *Error) Error() string {
	if e.Where == "" {
		return fmt.Sprintf("grammar: %s: %s", e.Kind, e.What)
	}
	return fmt.Sprintf("grammar: %s: %s: %s", e.Kind, e.Where, e.What)
}

// byteSet is a set of bytes.
type byteSet [4]uint64

func (s *byteSet) add(lo, hi byte) {
	for b := int(lo); b <= int(hi); b++ {
		s[b>>6] |= 1 << (b & 63)
	}
}

func (s byteSet) has(b byte) bool { return s[b>>6]>>(b&63)&1 == 1 }

// expr is a part of a rule: what it matches.
type expr interface{}

type (
	seq []expr // one after another; an empty one matches the empty text
	alt []expr // any of them; an empty one matches nothing
	// rep matches at least min and at most max of of; a max below 0 is no bound.
	rep struct {
		of       expr
		min, max int
	}
	ref int // a rule
)

// rules are the productions of a grammar. A rule is nil until it is set.
type rules []expr

// reserve makes room for a rule that refers to itself.
func (r *rules) reserve() ref {
	*r = append(*r, nil)
	return ref(len(*r) - 1)
}

func (r *rules) add(e expr) ref {
	k := r.reserve()
	(*r)[k] = e
	return k
}

func literal(s string) expr {
	e := make(seq, len(s))
	for i := range len(s) {
		e[i] = single(s[i])
	}
	return e
}

func single(b byte) byteSet {
	var s byteSet
	s.add(b, b)
	return s
}

func chars(s string) byteSet {
	var set byteSet
	for i := range len(s) {
		set.add(s[i], s[i])
	}
	return set
}

func optional(e expr) expr { return rep{e, 0, 1} }

// size counts the states that a copy of an expression takes.
func size(e expr) int {
	switch e := e.(type) {
	case seq:
		n := 0
		for _, x := range e {
			n += size(x)
		}
		return n
	case alt:
		n := 1
		for _, x := range e {
			n += size(x)
		}
		return n
	case rep:
		return 1 + size(e.of)*max(1, e.min, e.max)
	}
	return 1
}
