package modelrunner

import "fmt"

// Limits are what a Batch may refer to on one device.
type Limits struct {
	Tokens    int // in one step
	Vocab     int
	Positions int // of the longest sequence
	Blocks    int // of the KV cache
	BlockSize int
	Types     int  // token types; 0: the model has none
	Embeds    int  // numbers in an embedding that comes in place of a token; 0: none may come
	Whole     bool // a sequence comes in one step: its rows see what is behind them, or all of them are pooled
}

// Check refuses a batch that would read or write where it must not: a fault of the scheduler's, not
// of a request.
func (b *Batch) Check(l Limits) error {
	n, size := len(b.Tokens), l.BlockSize
	switch {
	case n > l.Tokens:
		return fmt.Errorf("%d tokens, room for %d (MaxNumBatchedTokens)", n, l.Tokens)
	case len(b.TokenTypes) > 0 && len(b.TokenTypes) != n:
		return fmt.Errorf("%d tokens, %d token types", n, len(b.TokenTypes))
	case len(b.Positions) != n || len(b.Slots) != n:
		return fmt.Errorf("%d tokens, %d positions, %d slots", n, len(b.Positions), len(b.Slots))
	}
	for i, id := range b.Tokens {
		if uint(id) >= uint(l.Vocab) {
			return fmt.Errorf("token %d in row %d, the vocabulary has %d", id, i, l.Vocab)
		}
		if len(b.TokenTypes) > 0 && l.Types > 0 && uint(b.TokenTypes[i]) >= uint(l.Types) {
			return fmt.Errorf("token type %d in row %d, the model has %d", b.TokenTypes[i], i, l.Types)
		}
		if uint(b.Positions[i]) >= uint(l.Positions) {
			return fmt.Errorf("position %d in row %d, the longest sequence is %d (MaxModelLen)", b.Positions[i], i,
				l.Positions)
		}
		if uint(b.Slots[i]) >= uint(l.Blocks*size) {
			return fmt.Errorf("slot %d in row %d, the KV cache has %d", b.Slots[i], i, l.Blocks*size)
		}
	}
	end := 0
	for i, s := range b.Seqs {
		if s.Start != end || s.Len <= 0 || s.Start+s.Len > n {
			return fmt.Errorf("sequence %d has rows [%d, %d) of %d, want them to begin at %d", i, s.Start,
				s.Start+s.Len, n, end)
		}
		end = s.Start + s.Len
		if int(b.Positions[end-1]) != s.Context-1 || s.Context > len(s.Blocks)*size || len(s.Targets) > s.Len ||
			len(s.Drafts) >= s.Len {
			return fmt.Errorf("sequence %d: last position %d, context %d, %d blocks of %d, %d prompt targets in %d rows, %d drafts",
				i, b.Positions[end-1], s.Context, len(s.Blocks), size, len(s.Targets), s.Len, len(s.Drafts))
		}
		if err := s.checkEmbeds(l.Embeds); err != nil {
			return fmt.Errorf("sequence %d: %w", i, err)
		}
		if l.Whole && s.Context != s.Len {
			return fmt.Errorf("sequence %d has %d rows of %d, and must be computed in one step", i, s.Len, s.Context)
		}
		for _, id := range s.Blocks {
			if uint(id) >= uint(l.Blocks) {
				return fmt.Errorf("sequence %d: block %d, the KV cache has %d", i, id, l.Blocks)
			}
		}
	}
	if end != n {
		return fmt.Errorf("%d tokens, the sequences have %d", n, end)
	}
	return nil
}

func (s *Seq) checkEmbeds(width int) error {
	if len(s.Embeds) > s.Len || len(s.Embeds) > 0 && width == 0 {
		return fmt.Errorf("%d embeddings for %d rows, of %d numbers each", len(s.Embeds), s.Len, width)
	}
	for i, row := range s.Embeds {
		if len(row) != width {
			return fmt.Errorf("embedding %d has %d numbers, want %d", i, len(row), width)
		}
	}
	return nil
}
