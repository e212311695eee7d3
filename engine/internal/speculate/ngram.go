package speculate

import "github.com/enginetest/enginetest/engine/internal/modelrunner"

// NGram proposes what followed the last tokens of a sequence where they came before: prompt lookup.
type NGram struct {
	modelrunner.SleepingRunner // of the model

	Hook     func() error // called before anything is proposed
	Tokens   int          // to propose
	Min, Max int          // tokens that must have come before, and the most that are compared

	text, drafts []int32
}

// Execute implements [modelrunner.Runner].
func (r *NGram) Execute(b *modelrunner.Batch) ([]modelrunner.SeqResult, error) {
	results, err := r.SleepingRunner.Execute(b)
	if err != nil {
		return nil, err
	}
	if err := modelrunner.Call(r.Hook); err != nil {
		return nil, err
	}
	r.drafts = r.drafts[:0]
	for i := range results {
		n, limit := newLen(&b.Seqs[i], &results[i]), b.Seqs[i].MaxLen
		if n == 0 {
			continue
		}
		st := b.Seqs[i].Sampler
		r.text = append(append(append(r.text[:0], st.Prompt...), st.Output...), last(&results[i]))
		found := lookup(r.text, r.Min, r.Max)
		found = found[:max(min(len(found), r.Tokens, limit-n-1), 0)]
		first := len(r.drafts)
		r.drafts = append(r.drafts, found...)
		results[i].Drafts = r.drafts[first:len(r.drafts):len(r.drafts)]
	}
	return results, nil
}

// lookup returns what comes after the earliest of the longest earlier copies of the text's end; of
// these at most most tokens are compared, and at least least must be equal.
func lookup(text []int32, least, most int) []int32 {
	best, after := least-1, 0
	for end := least; end < len(text) && best < most; end++ {
		n := 0
		for n < min(most, end) && text[end-1-n] == text[len(text)-1-n] {
			n++
		}
		if n > best {
			best, after = n, end
		}
	}
	if after == 0 {
		return nil
	}
	return text[after:]
}

// newLen is the length of a sequence with the tokens of a step; 0 when the step drew none.
func newLen(s *modelrunner.Seq, res *modelrunner.SeqResult) int {
	if s.Sampler == nil || res.Err != nil {
		return 0
	}
	return s.Context - len(s.Drafts) + 1 + len(res.More)
}

// last is the last token that a step drew.
func last(res *modelrunner.SeqResult) int32 {
	if n := len(res.More); n > 0 {
		return res.More[n-1].Token
	}
	return res.Token
}
