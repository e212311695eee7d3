package sample

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// ErrNoToken is wrapped by the error of a row in which no token is left to draw.
var ErrNoToken = errors.New("sample: no token is left to draw")

// heapLimit is the largest k for which a heap finds the k-th largest of a row; above, a selection
// does.
const heapLimit = 256

// Sampler draws tokens from rows of logits. It holds nothing but scratch space; use one per
// goroutine.
type Sampler struct {
	support support
	ids     []int32
	raw     []float32
	saved   []float32
	masks   []masked
}

// masked says how many tokens a parameter ruled out.
type masked struct {
	by string
	n  int
}

// Draw picks the next token of a sequence from its row of logits, which it overwrites, and returns
// the log-probabilities that the parameters ask for: over the whole vocabulary, and before any
// parameter unless the mode is another. The order is vLLM's: log-probabilities, grammar, allowed ids, bad words, min tokens, logit
// bias, the user's processors, penalties, n-grams; then greedy, or temperature, min-p, typical-p, epsilon, top-k, top-p
// and the draw.
//
// NaN logits are never drawn. A row in which nothing is left gives an error that says what masked
// it (ErrNoToken).
func (s *Sampler) Draw(st *State, row []float32) (int32, []Logprob, error) {
	p := &st.Params
	raw := row
	if p.Logprobs >= 0 && !p.LogprobsMode.Processed && p.Edits() {
		s.raw = append(s.raw[:0], row...)
		raw = s.raw
	}
	if err := s.edit(st, row); err != nil {
		return 0, nil, err
	}
	top, _ := argmax(row)
	if top < 0 {
		return 0, nil, s.noToken(row)
	}
	token := top
	if !p.Greedy() {
		token = s.race(p, row, top, newNoise(p.Seed, st.Length()))
	}
	if p.Logprobs < 0 {
		return token, nil, nil
	}
	if p.LogprobsMode.Processed {
		s.processed(p, row, token)
	}
	return token, s.Logprobs(raw, token, p.Logprobs, p.LogprobsMode), nil
}

// Edits reports whether a processor changes the row.
func (p *Params) Edits() bool {
	return p.Restricts() || len(p.BadWords) > 0 || p.MinTokens > 0 || len(p.LogitBias) > 0 || p.penalizes() ||
		p.NoRepeatNGram > 0 || len(p.Processors) > 0
}

func (p *Params) penalizes() bool {
	return p.repetition() != 1 || p.FrequencyPenalty != 0 || p.PresencePenalty != 0
}

// repetition is the penalty's factor; the zero value of Params has none.
func (p *Params) repetition() float32 {
	if p.RepetitionPenalty <= 0 {
		return 1
	}
	return float32(p.RepetitionPenalty)
}

// edit runs the processors that change single logits.
func (s *Sampler) edit(st *State, row []float32) error {
	p := &st.Params
	s.masks = s.masks[:0]
	note := func(by string, n int) {
		if n > 0 {
			s.masks = append(s.masks, masked{by, n})
		}
	}
	if p.Grammar != nil {
		next, err := st.mask()
		if err != nil {
			return err
		}
		note("structured_outputs", constrain(row, next, p.StopIDs))
	}
	if p.Allowed != nil {
		var n int
		n, s.saved = allow(row, p.Allowed, s.saved)
		note("allowed_token_ids", n)
	}
	note("bad_words", banWords(row, p.BadWords, st.Output))
	if len(st.Output) < p.MinTokens {
		note("min_tokens", banIDs(row, p.StopIDs))
	}
	addBias(row, p.LogitBias)
	if len(p.Processors) > 0 {
		before := possible(row)
		if err := st.process(row); err != nil {
			return err
		}
		note("logits_processors", before-possible(row))
	}
	if p.penalizes() {
		penalize(row, st.count(), p.repetition(), float32(p.FrequencyPenalty), float32(p.PresencePenalty))
	}
	if p.NoRepeatNGram > 0 {
		note("no_repeat_ngram_size", banNGrams(row, st, p.NoRepeatNGram))
	}
	return nil
}

// race draws by chance. What top-k and min-p keep does not depend on their order, so a small top-k
// goes first and leaves little for the rest.
func (s *Sampler) race(p *Params, row []float32, top int32, n noise) int32 {
	var (
		t, u    = float32(p.Temperature), &s.support
		nucleus = p.TopP > 0 && p.TopP < 1
		typical = p.TypicalP > 0 && p.TypicalP < 1
		ordered = typical || p.EpsilonCutoff > 0 // these need the whole distribution
		topK    = p.TopK > 0 && p.TopK < len(row)
		z       = row[top] / t
		finite  = z >= -math.MaxFloat32 && z <= math.MaxFloat32
	)
	floor := negInf // what is below cannot be kept
	if p.MinP > 0 {
		floor = float32(float64(z) + math.Log(p.MinP) - 1e-3)
	}
	if topK && p.TopK <= heapLimit && !ordered {
		floor, topK = max(floor, u.kthLargest(row, p.TopK)/t), false
	}
	switch all := finite && !ordered && !topK && floor == negInf; {
	case all && !nucleus:
		u.whole = true
		return drawRow(row, t, top, n)
	case all:
		u.gatherNucleus(row, t, row[top], p.TopP)
	default:
		u.gather(row, t, floor)
	}
	if len(u.items) == 0 {
		return top // so low a temperature that every logit overflows
	}
	if p.MinP > 0 {
		u.minP(p.MinP)
	}
	if typical {
		u.typicalP(p.TypicalP)
	}
	if p.EpsilonCutoff > 0 {
		u.epsilon(p.EpsilonCutoff)
	}
	if topK {
		u.topK(p.TopK)
	}
	if nucleus {
		u.topP(p.TopP)
	}
	return drawItems(u.items, n)
}

// noToken says who masked the tokens of a row.
func (s *Sampler) noToken(row []float32) error {
	var nan, byModel int
	for _, x := range row {
		if x != x {
			nan++
		}
	}
	byModel = len(row) - nan
	parts := []string{fmt.Sprintf("of %d tokens", len(row))}
	for _, m := range s.masks {
		parts = append(parts, fmt.Sprintf("%s masked %d", m.by, m.n))
		byModel -= m.n
	}
	if byModel > 0 {
		parts = append(parts, fmt.Sprintf("%d were -Inf as the model gave them", byModel))
	}
	if nan > 0 {
		parts = append(parts, fmt.Sprintf("%d are NaN", nan))
	}
	return fmt.Errorf("%w: %s", ErrNoToken, strings.Join(parts, ", "))
}
