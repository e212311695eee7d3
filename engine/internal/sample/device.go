package sample

import "math"

// What a device that draws by itself needs to know of this package. Its kernels do what Draw does,
// with these numbers.

// MostLikely is how many of the most likely tokens a device gives beside the chosen one; of more,
// the host gives the log-probabilities.
const MostLikely = 32

// HostOnly names the parameter because of which only the host can draw; empty when a device can.
// This is the whole list. Of what a device draws by itself it hands back rows in which no token is
// left, or whose logits are infinite, or overflow when divided by the temperature.
func (p *Params) HostOnly(vocab int) string {
	switch {
	case min(p.Logprobs, vocab) > MostLikely:
		return "logprobs"
	case p.Logprobs >= 0 && p.LogprobsMode != Mode{}:
		return "logprobs_mode"
	case len(p.Processors) > 0:
		return "logits_processors"
	case p.Greedy():
		return ""
	case p.TypicalP > 0 && p.TypicalP < 1:
		return "typical_p"
	case p.EpsilonCutoff > 0:
		return "epsilon_cutoff"
	}
	return ""
}

// Greedy says that the most likely token is taken: with top_k 1 too, whatever the temperature, even
// when tokens tie.
func (p *Params) Greedy() bool { return p.Temperature < greedyBelow || p.TopK == 1 }

const greedyBelow = 1e-5

// Length is the number of tokens so far, which is the position of the token that is drawn next.
func (s *State) Length() int { return s.Embedded + s.known() }

// Kinds of edits: the upper four bits of Edit.What.
const (
	EditPenalize = iota // Value: how often the token came in the output
	EditBias            // Value: the bits of what is added
	EditMask
	EditAllow // of a row in which all else is masked
)

// Edit is one change of a row: a token's id and the kind, and a value. A device makes those that
// allow, then biases, penalties, masks: masks go last because nothing undoes them, whatever their
// place in Draw's order.
type Edit struct{ What, Value uint32 }

// Penalties are the factors of EditPenalize.
func (p *Params) Penalties() (repetition, frequency, presence float32) {
	return p.repetition(), float32(p.FrequencyPenalty), float32(p.PresencePenalty)
}

// AppendEdits appends what Draw would do to a row before anything else.
func (s *State) AppendEdits(to []Edit) []Edit {
	p := &s.Params
	edit := func(kind int, id int32, value uint32) {
		if id >= 0 && id < 1<<28 {
			to = append(to, Edit{uint32(kind)<<28 | uint32(id), value})
		}
	}
	mask := func(id int32) { edit(EditMask, id, 0) }
	if p.Grammar != nil {
		s.grammarIDs(func(id int32) { edit(EditAllow, id, 0) })
	} else {
		for _, id := range p.Allowed {
			edit(EditAllow, id, 0)
		}
	}
	for id, b := range p.LogitBias {
		if b == b {
			edit(EditBias, id, math.Float32bits(min(max(b, -100), 100)))
		}
	}
	if p.penalizes() {
		for _, t := range s.count() {
			if t.output > 0 || p.repetition() != 1 {
				edit(EditPenalize, t.id, uint32(t.output))
			}
		}
	}
	bannedWords(p.BadWords, s.Output, mask)
	if len(s.Output) < p.MinTokens {
		for _, id := range p.StopIDs {
			mask(id)
		}
	}
	if p.NoRepeatNGram > 0 {
		s.followers(p.NoRepeatNGram, mask)
	}
	return to
}

// Norm is the logarithm of a row's sum of exponentials, from its largest logit and the sum of exp(x
// - top).
func Norm(top float32, sum float64) float64 { return float64(top) + math.Log(sum) }

// LogprobOf is the log-probability of a logit.
func LogprobOf(x float32, norm float64) float32 { return logprob(x, norm) }
