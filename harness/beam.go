package harness

import (
	"cmp"
	"math"
	"slices"

	"github.com/enginetest/enginetest/llm"
)

// Beam is one result of a beam search.
type Beam struct {
	TokenIDs []int32 // of the output
	Text     string
	Logprob  float64 // sum over the output's tokens
	// what beams are ranked by: Logprob ÷ number of tokens of prompt and output, as vLLM ranks with
	// length penalty 1
	Score float64
}

// BeamSearch keeps, at every step, the width likeliest continuations of the prompt, and returns the
// width best that ended or reached maxTokens, best first. Each step is one batch of single tokens
// with 2·width log-probabilities, so an engine with a prefix cache computes one token a beam.
func (r *Runner) BeamSearch(prompt llm.Request, width, maxTokens int) []Beam {
	r.t.Helper()
	if width < 1 || maxTokens < 1 {
		r.t.Fatalf("%s: beam search: width %d and maxTokens %d must be at least 1", r.pkg, width, maxTokens)
	}
	var eos []int32
	if e, ok := r.running().(EOSTokenLister); ok {
		eos = e.EOSTokenIDs()
	}
	live, done := []Beam{{}}, []Beam{}
	var ids []int32 // of the prompt
	for range maxTokens {
		var grown []Beam
		for i, out := range r.Generate(beamStep(prompt, ids, live, width)...) {
			if ids == nil {
				ids = out.PromptTokenIDs
			}
			if len(out.Completions[0].Logprobs) == 0 {
				r.t.Fatalf("%s: beam search: %T.Generate gave no log-probabilities", r.pkg, r.running())
			}
			for _, lp := range out.Completions[0].Logprobs[0] {
				b := Beam{
					TokenIDs: append(slices.Clone(live[i].TokenIDs), lp.TokenID), Text: live[i].Text + lp.Token,
					Logprob: live[i].Logprob + float64(lp.Logprob),
				}
				b.Score = score(b, len(ids), eos)
				if slices.Contains(eos, lp.TokenID) {
					b.Text = live[i].Text
					done = append(done, b)
				} else {
					grown = append(grown, b)
				}
			}
		}
		live = best(grown, width)
		if len(live) == 0 {
			break
		}
	}
	return best(append(done, live...), width)
}

// beamStep asks for one more token after every live beam.
func beamStep(prompt llm.Request, ids []int32, live []Beam, width int) []llm.Request {
	k := 2 * width
	reqs := make([]llm.Request, len(live))
	for i, b := range live {
		reqs[i] = prompt
		reqs[i].Sampling = llm.SamplingParams{MaxTokens: 1, Logprobs: &k, IgnoreEOS: true}
		if ids != nil {
			reqs[i].PromptTokenIDs = append(slices.Clone(ids), b.TokenIDs...)
		}
	}
	return reqs
}

func score(b Beam, prompt int, eos []int32) float64 {
	n := prompt + len(b.TokenIDs)
	if last := b.TokenIDs[len(b.TokenIDs)-1]; slices.Contains(eos, last) {
		n--
	}
	return b.Logprob / math.Max(1, float64(n))
}

// best sorts by score and keeps n.
func best(beams []Beam, n int) []Beam {
	slices.SortStableFunc(beams, func(a, b Beam) int { return cmp.Compare(b.Score, a.Score) })
	return beams[:min(n, len(beams))]
}
