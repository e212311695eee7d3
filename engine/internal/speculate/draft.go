package speculate

import (
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
)

// Model proposes what a smaller model draws. The two models share the KV cache's bookkeeping, as in
// vLLM: a block has the same number in both caches, and a step leaves the draft's cache as far as
// the target's. So the scheduler, the prefix cache, preemption and offload know of one cache, whose
// blocks are larger.
type Model struct {
	pair

	Tokens    int // to propose
	BlockSize int

	batch modelrunner.Batch
	lanes []lane
	text  []int32 // the drafts of all lanes, Tokens each
}

// lane is a sequence in the passes of the draft.
type lane struct {
	seq     int // of the target's batch
	length  int // tokens before the drafts
	want    int // drafts; 0: its tokens are only computed
	drafts  []int32
	state   sample.State
	running bool // in the current pass
}

// NewModel makes a runner of a target and its draft, whose it is from then on.
func NewModel(target, draft modelrunner.SleepingRunner, ranks, tokens, blockSize int) *Model {
	return &Model{pair: pair{target: target, draft: draft, ranks: ranks}, Tokens: tokens, BlockSize: blockSize}
}

// Execute implements [modelrunner.Runner].
func (m *Model) Execute(b *modelrunner.Batch) ([]modelrunner.SeqResult, error) {
	results, err := m.target.Execute(b)
	if err != nil {
		return nil, err
	}
	m.catchUp(b, results)
	for len(m.batch.Seqs) > 0 {
		drawn, err := m.draft.Execute(&m.batch)
		if err != nil {
			return nil, err
		}
		m.goOn(b, drawn)
	}
	for i := range m.lanes {
		results[m.lanes[i].seq].Drafts = m.lanes[i].drafts
	}
	return results, nil
}

// catchUp makes the draft's first pass: the tokens of the step that it has not computed, and the one
// that was drawn. Of drafts it has computed all but the last when it proposed them.
func (m *Model) catchUp(b *modelrunner.Batch, results []modelrunner.SeqResult) {
	m.reset(len(b.Seqs))
	for i := range b.Seqs {
		s, res := &b.Seqs[i], &results[i]
		if res.Err != nil {
			continue
		}
		first, end := s.Start, s.Start+s.Len
		if d := len(s.Drafts); d > 0 {
			first, end = end-1, end-(d-len(res.More)) // the last draft, if it was accepted
		}
		l := lane{seq: i, want: m.wanted(s, res), length: newLen(s, res)}
		l.state.Params.Logprobs = -1
		l.drafts = m.text[i*m.Tokens : i*m.Tokens : (i+1)*m.Tokens]
		at := len(m.batch.Tokens)
		for row := first; row < end; row++ {
			m.put(s, b.Tokens[row], int(b.Positions[row]))
		}
		if l.want > 0 {
			m.put(s, last(res), newLen(s, res)-1)
		}
		if len(m.batch.Tokens) > at {
			m.lanes = append(m.lanes, l)
			m.enter(s, &m.lanes[len(m.lanes)-1], at)
		}
	}
}

// goOn takes what a pass drew, and makes the next one of the sequences that want more drafts.
func (m *Model) goOn(of *modelrunner.Batch, drawn []modelrunner.SeqResult) {
	b := &m.batch
	b.Tokens, b.Positions, b.Slots, b.Seqs = b.Tokens[:0], b.Positions[:0], b.Slots[:0], b.Seqs[:0]
	pass := 0
	for i := range m.lanes {
		l := &m.lanes[i]
		if !l.running {
			continue
		}
		res := &drawn[pass]
		pass++
		if l.running = false; l.want == 0 || res.Err != nil {
			continue
		}
		if l.drafts = append(l.drafts, res.Token); len(l.drafts) == l.want {
			continue
		}
		at := len(b.Tokens)
		m.put(&of.Seqs[l.seq], res.Token, l.length+len(l.drafts)-1)
		m.enter(&of.Seqs[l.seq], l, at)
	}
}

// reset empties the batch for the first pass of a step.
func (m *Model) reset(seqs int) {
	clear(m.lanes)
	clear(m.batch.Seqs)
	m.lanes, m.batch = m.lanes[:0], modelrunner.Batch{
		Tokens: m.batch.Tokens[:0], Positions: m.batch.Positions[:0], Slots: m.batch.Slots[:0], Seqs: m.batch.Seqs[:0],
	}
	if cap(m.lanes) < seqs { // at once: the batch points to them
		m.lanes, m.text = make([]lane, 0, seqs), make([]int32, seqs*m.Tokens)
	}
}

// wanted is how many drafts a sequence has use and room for.
func (m *Model) wanted(s *modelrunner.Seq, res *modelrunner.SeqResult) int {
	n := newLen(s, res)
	if n == 0 {
		return 0
	}
	return max(min(m.Tokens, s.MaxLen-n-1, len(s.Blocks)*m.BlockSize-n+1), 0)
}

// put adds a token to the draft's batch.
func (m *Model) put(s *modelrunner.Seq, token int32, position int) {
	b := &m.batch
	b.Tokens = append(b.Tokens, token)
	b.Positions = append(b.Positions, int32(position))
	b.Slots = append(b.Slots, s.Blocks[position/m.BlockSize]*int32(m.BlockSize)+int32(position%m.BlockSize))
}

// enter makes a sequence of the rows from start on.
func (m *Model) enter(s *modelrunner.Seq, l *lane, start int) {
	b := &m.batch
	l.running = true
	seq := modelrunner.Seq{
		Start: start, Len: len(b.Tokens) - start, Context: int(b.Positions[len(b.Positions)-1]) + 1, Blocks: s.Blocks,
		PromptLogprobs: -1,
	}
	if l.want > 0 {
		seq.Sampler = &l.state
	}
	b.Seqs = append(b.Seqs, seq)
}
