package cudarunner

import "github.com/enginetest/enginetest/engine/internal/modelrunner"

// passRows is the most rows that go through the layers together. A step of more takes several
// passes: what a kernel writes for the next then mostly stays in the device's L2 cache (on an H200
// two passes of 8192 rows take 55 ms, one of 16384 rows 4 ms more), and the workspace is smaller.
const passRows = 8192

// pass is some of a batch's rows, as a batch of its own.
type pass struct {
	modelrunner.Batch
	seqs  []int // of each sequence, which of the whole batch it is
	first []int // and which of its rows is the first here
}

// passesOf cuts a batch into passes of at most this many rows. What a sequence has in one pass is
// in the KV cache when its next one comes.
func passesOf(b *modelrunner.Batch, most int) []pass {
	var passes []pass
	for at := 0; at < len(b.Tokens); at += most {
		end := min(at+most, len(b.Tokens))
		p := pass{Batch: modelrunner.Batch{
			Tokens: b.Tokens[at:end], Positions: b.Positions[at:end],
			Slots: b.Slots[at:end],
		}}
		for i, s := range b.Seqs {
			from, to := max(s.Start, at), min(s.Start+s.Len, end)
			if from >= to {
				continue
			}
			q, first := s, from-s.Start
			q.Start, q.Len = from-at, to-from
			if rest := s.Start + s.Len - to; rest > 0 { // its last row, which is drawn from, comes later
				q.Context, q.Sampler, q.Pool = s.Context-rest, nil, false
			}
			q.Targets = s.Targets[min(first, len(s.Targets)):min(first+q.Len, len(s.Targets))]
			p.Seqs, p.seqs, p.first = append(p.Seqs, q), append(p.seqs, i), append(p.first, first)
		}
		passes = append(passes, p)
	}
	return passes
}

// into puts a pass's results into those of the batch.
func (c *pass) into(out, results []modelrunner.SeqResult) {
	for i, res := range results {
		to := &out[c.seqs[i]]
		copy(to.PromptLogprobs[min(c.first[i], len(to.PromptLogprobs)):], res.PromptLogprobs)
		if c.Seqs[i].Sampler != nil {
			to.Token, to.Logprobs, to.Err = res.Token, res.Logprobs, res.Err
		}
	}
}
