package conformance

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/enginetest/enginetest/llm"
)

// differ says how two answers to one request differ; "" when they are the same, within the
// tolerance.
func (s *suite) differ(want, got llm.Completion) string {
	if s.opts.tolerance > 0 {
		return s.parted(want, got)
	}
	switch {
	case !slices.Equal(want.TokenIDs, got.TokenIDs):
		return fmt.Sprintf("token %d differs", firstDifference(want.TokenIDs, got.TokenIDs))
	case want.Text != got.Text:
		return "the text differs"
	case want.FinishReason != got.FinishReason || want.StopReason != got.StopReason:
		return "the finish reason differs"
	}
	return logprobsDiffer(want.Logprobs, got.Logprobs, 0)
}

func firstDifference[T comparable](a, b []T) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// logprobsDiffer compares the log-probabilities of two equal sequences of tokens.
func logprobsDiffer(want, got [][]llm.Logprob, tolerance float64) string {
	if len(want) != len(got) {
		return fmt.Sprintf("log-probabilities of %d positions, want %d", len(got), len(want))
	}
	for i := range want {
		if tolerance == 0 && len(want[i]) != len(got[i]) {
			return fmt.Sprintf("%d log-probabilities at token %d, want %d", len(got[i]), i, len(want[i]))
		}
		for _, w := range want[i] {
			g, ok := logprobOf(got[i], w.TokenID)
			switch {
			case !ok && tolerance == 0:
				return fmt.Sprintf("no log-probability of token id %d at token %d", w.TokenID, i)
			case ok && math.Abs(float64(w.Logprob)-float64(g.Logprob)) > tolerance:
				return fmt.Sprintf("the log-probability of token id %d at token %d is %v, want %v", w.TokenID, i,
					g.Logprob, w.Logprob)
			}
		}
	}
	return ""
}

func logprobOf(lps []llm.Logprob, id int32) (llm.Logprob, bool) {
	i := slices.IndexFunc(lps, func(lp llm.Logprob) bool { return lp.TokenID == id })
	if i < 0 {
		return llm.Logprob{}, false
	}
	return lps[i], true
}

// parted is differ for an engine with a tolerance: answers may part where both tokens are about as
// likely.
func (s *suite) parted(want, got llm.Completion) string {
	tol := s.opts.tolerance
	n := firstDifference(want.TokenIDs, got.TokenIDs)
	known := min(n, len(want.Logprobs), len(got.Logprobs))
	if d := logprobsDiffer(want.Logprobs[:known], got.Logprobs[:known], tol); d != "" {
		return d
	}
	if n == len(want.TokenIDs) && n == len(got.TokenIDs) {
		if n == 0 && want.Text != got.Text {
			return "the text differs, and there are no token ids to judge it by"
		}
		return ""
	}
	if n >= len(want.TokenIDs) || n >= len(got.TokenIDs) || n >= len(want.Logprobs) {
		return fmt.Sprintf("token %d differs, and there are no log-probabilities to judge it by", n)
	}
	a, okA := logprobOf(want.Logprobs[n], want.TokenIDs[n])
	b, okB := logprobOf(want.Logprobs[n], got.TokenIDs[n])
	if !okA || !okB || math.Abs(float64(a.Logprob)-float64(b.Logprob)) > 2*tol {
		return fmt.Sprintf("token %d differs, and is no tie", n)
	}
	return ""
}

// gap is how far answers are from those that they are compared with.
type gap struct {
	mu                     sync.Mutex
	answers, parted, moved int     // parted: after a tie; moved: with other log-probabilities
	known                  bool    // some answers have log-probabilities
	nats                   float64 // the largest difference of one token's log-probabilities
}

// reset forgets what was measured.
func (g *gap) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answers, g.parted, g.moved, g.known, g.nats = 0, 0, 0, false, 0
}

// add measures two answers up to where they part.
func (g *gap) add(want, got llm.Completion) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answers++
	n := firstDifference(want.TokenIDs, got.TokenIDs)
	if n < max(len(want.TokenIDs), len(got.TokenIDs)) {
		g.parted++
	}
	g.known = g.known || len(want.Logprobs) > 0
	most := 0.0
	for i := range min(n+1, len(want.Logprobs), len(got.Logprobs)) {
		for _, w := range want.Logprobs[i] {
			if x, ok := logprobOf(got.Logprobs[i], w.TokenID); ok {
				most = max(most, math.Abs(float64(w.Logprob)-float64(x.Logprob)))
			}
		}
	}
	if g.nats = max(g.nats, most); most > 0 {
		g.moved++
	}
}

// String is empty when nothing was compared.
func (g *gap) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.answers == 0:
		return ""
	case !g.known:
		return fmt.Sprintf("%d answers compared by their text", g.answers)
	}
	return fmt.Sprintf("%d of %d answers parted at a tie, %d have other log-probabilities, by up to %.2g nats", g.parted,
		g.answers, g.moved, g.nats)
}

// difference describes the first of several answers that differ; "" when none does.
func (s *suite) difference(reqs []llm.Request, want, got []llm.Output) string {
	for i := range reqs {
		for k := range want[i].Completions {
			w, g := want[i].Completions[k], got[i].Completions[k]
			s.gap.add(w, g)
			if d := s.differ(w, g); d != "" {
				return fmt.Sprintf("%s, request %d of %d:\n%s\n  got  %s\n  want %s", d, i+1, len(reqs),
					requests(reqs[i:i+1]), answer(g), answer(w))
			}
		}
		if d := logprobsDiffer(want[i].PromptLogprobs, got[i].PromptLogprobs, s.opts.tolerance); d != "" {
			return fmt.Sprintf("prompt: %s, request %d of %d:\n%s", d, i+1, len(reqs), requests(reqs[i:i+1]))
		}
	}
	return ""
}
