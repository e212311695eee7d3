package modelrunner

import (
	"fmt"
	"strings"

	"github.com/enginetest/enginetest/internal/checkpoint"
)

// Shard is one rank's place among the devices that share a model. The zero value is the whole model
// on one device.
type Shard struct{ Rank, Size int }

// Range is the indices from Lo up to, and without, Hi.
type Range struct{ Lo, Hi int }

// Len is how many there are.
func (r Range) Len() int { return r.Hi - r.Lo }

// times is the range of parts of this many elements each.
func (r Range) times(n int) Range { return Range{r.Lo * n, r.Hi * n} }

// Share is what one rank has of a model, split as Megatron-LM (arXiv:1909.08053) and vLLM split it.
// Of q, k, v, gate and up it has rows: its query heads, its KV heads, its part of the intermediate
// size. Of o and down it has the columns that multiply those; their products are partial sums,
// which an all-reduce adds in the order of the ranks, on every rank. Embedding and norms are whole
// everywhere. Of lm_head it has rows: some logits.
type Share struct {
	Shard
	Config       checkpoint.Config // the model's, but NumHeads, NumKVHeads, IntermediateSize and ExpertSize are the rank's own
	Heads        Range
	KVHeads      Range // several ranks have the same one when there are more ranks than KV heads
	Intermediate Range
	Expert       Range // of an expert's intermediate size
	Vocab        Range // of lm_head; the lengths differ by one at most
}

// Part is what the rank has of a dimension.
func (s *Share) Part(d checkpoint.Dim) Range {
	switch d {
	case checkpoint.DimLogits:
		return s.Vocab
	case checkpoint.DimQuery:
		return s.Heads.times(s.Config.HeadDim)
	case checkpoint.DimKV:
		return s.KVHeads.times(s.Config.HeadDim)
	case checkpoint.DimInner:
		return s.Intermediate
	case checkpoint.DimExpertInner:
		return s.Expert
	}
	return Range{Hi: s.Config.Size(d)}
}

// Sums reports whether the products of a weight are partial sums, which the ranks add up.
func Sums(w checkpoint.Weight) bool {
	return w.Cols == checkpoint.DimQuery || w.Cols == checkpoint.DimInner || w.Cols == checkpoint.DimExpertInner
}

// First reports whether the rank is the one that adds what is to be added once, the biases of o and
// down, and that samples.
func (s Shard) First() bool { return s.Rank == 0 }

// Split is what a rank has of a model. The error is a *[SplitError].
func Split(c checkpoint.Config, s Shard) (Share, error) {
	if s == (Shard{}) {
		s.Size = 1
	}
	if s.Size < 1 || s.Rank < 0 || s.Rank >= s.Size {
		return Share{}, &SplitError{Size: s.Size, Reason: fmt.Sprintf("there is no rank %d of %d", s.Rank, s.Size)}
	}
	if name, value := undivided(&c, s.Size); name != "" {
		e := &SplitError{Size: s.Size, Field: name, Value: value}
		for n := 1; n <= c.NumHeads; n++ {
			if name, _ := undivided(&c, n); name == "" {
				e.Possible = append(e.Possible, n)
			}
		}
		return Share{}, e
	}
	part := func(n int) Range { return Range{n * s.Rank / s.Size, n * (s.Rank + 1) / s.Size} }
	out := Share{
		Shard: s, Config: c, Heads: part(c.NumHeads), Intermediate: part(c.IntermediateSize),
		Expert: part(c.ExpertSize), Vocab: part(c.VocabSize),
	}
	if out.KVHeads = part(c.NumKVHeads); s.Size > c.NumKVHeads {
		out.KVHeads = Range{s.Rank * c.NumKVHeads / s.Size, s.Rank*c.NumKVHeads/s.Size + 1}
	}
	out.Config.NumHeads, out.Config.NumKVHeads = out.Heads.Len(), out.KVHeads.Len()
	out.Config.IntermediateSize, out.Config.ExpertSize = out.Intermediate.Len(), out.Expert.Len()
	return out, nil
}

// undivided names the first size of a model that this many ranks cannot share.
func undivided(c *checkpoint.Config, n int) (name string, value int) {
	switch {
	case c.NumHeads%n != 0:
		return "num_attention_heads", c.NumHeads
	case c.NumKVHeads%n != 0 && n%c.NumKVHeads != 0: // fewer KV heads than ranks are copied
		return "num_key_value_heads", c.NumKVHeads
	case c.IntermediateSize%n != 0:
		return "intermediate_size", c.IntermediateSize
	case c.ExpertSize%n != 0:
		return "moe_intermediate_size", c.ExpertSize
	case c.VocabSize < n:
		return "vocab_size", c.VocabSize
	}
	return "", 0
}

// SplitError refuses a number of devices.
type SplitError struct {
	Size     int    // devices
	Field    string // of config.json, that they cannot share; "" when Reason says what is wrong
	Value    int    // of the field
	Possible []int  // numbers of devices that can share this model
	Reason   string
}

func (e *SplitError) Error() string {
	return fmt.Sprintf("modelrunner: %d devices cannot share the model: %s", e.Size, e.Why())
}

// Why is the reason alone: "num_attention_heads is 4 (possible: 1, 2 or 4)".
func (e *SplitError) Why() string {
	if e.Field == "" {
		return e.Reason
	}
	return fmt.Sprintf("%s is %d (possible: %s)", e.Field, e.Value, list(e.Possible))
}

// list is "1, 2 or 4".
func list(n []int) string {
	s := strings.Trim(strings.ReplaceAll(fmt.Sprint(n), " ", ", "), "[]")
	if at := strings.LastIndex(s, ", "); at >= 0 {
		return s[:at] + " or" + s[at+1:]
	}
	return s
}
