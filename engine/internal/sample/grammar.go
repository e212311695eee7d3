package sample

import (
	"slices"

	"github.com/enginetest/enginetest/engine/internal/grammar"
)

// Restricts reports whether only some tokens may come out: allowed ids, or those of a grammar.
func (p *Params) Restricts() bool { return p.Allowed != nil || p.Grammar != nil }

// mask returns the tokens that the grammar allows next.
func (s *State) mask() (*grammar.Mask, error) {
	if s.matcher == nil {
		s.matcher = s.Params.Grammar.Matcher()
	}
	return s.matcher.Mask(s.Output)
}

// Complete reports whether the output matches its grammar and nothing can follow, where no token
// could say so: there is no EOS.
func (s *State) Complete() bool {
	if s.Params.Grammar == nil || len(s.Params.StopIDs) > 0 {
		return false
	}
	next, err := s.mask()
	return err == nil && next.Ends && next.Count == 0
}

// constrain rules out every token that a grammar does not allow. Tokens that end an output are
// possible where it may end.
func constrain(row []float32, next *grammar.Mask, stop []int32) (masked int) {
	before := possible(row)
	kept := make([]float32, 0, 8)
	if next.Ends {
		for _, id := range stop {
			v := negInf
			if uint(id) < uint(len(row)) {
				v = row[id]
			}
			kept = append(kept, v)
		}
	}
	for w := 0; w<<6 < len(row); w++ {
		block, bits := row[w<<6:min(w<<6+64, len(row))], uint64(0)
		if w < len(next.Bits) {
			bits = next.Bits[w]
		}
		for k := range block {
			if bits>>k&1 == 0 {
				block[k] = negInf
			}
		}
	}
	for k, v := range kept {
		if id := stop[k]; uint(id) < uint(len(row)) {
			row[id] = v
		}
	}
	return before - possible(row)
}

// grammarIDs calls f with the tokens that the grammar and the allowed ids leave. With an error of the
// grammar there are none: the row is drawn again on the host, where Draw returns the error.
func (s *State) grammarIDs(f func(id int32)) {
	next, err := s.mask()
	if err != nil {
		return
	}
	p := &s.Params
	if p.Allowed != nil {
		for _, id := range p.Allowed {
			if next.Has(id) || next.Ends && slices.Contains(p.StopIDs, id) {
				f(id)
			}
		}
		return
	}
	for id := range int32(64 * len(next.Bits)) {
		if next.Has(id) {
			f(id)
		}
	}
	if next.Ends {
		for _, id := range p.StopIDs {
			if !next.Has(id) {
				f(id)
			}
		}
	}
}
