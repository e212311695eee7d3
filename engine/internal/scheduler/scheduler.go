// Package scheduler decides what each engine step computes, in the way of vLLM V1: there is no prefill or decode phase, only sequences whose
// computed tokens catch up with the tokens they have, under one budget of tokens a step.
//
// Running sequences come first, in order of arrival; then waiting ones are admitted as long as the budget, the number of sequences and the
// KV blocks allow. When blocks run out, the newest running sequence is preempted: it loses its blocks, keeps its tokens and its sampler, and is
// computed again later, so its output is the same.
package scheduler

import (
	"fmt"
	"slices"

	"github.com/enginetest/enginetest/engine/internal/kvcache"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
)

// Seq is one sequence: a prompt and its growing output.
type Seq struct {
	Tokens         []int32 // prompt and output; the owner appends what was sampled
	PromptLen      int
	MaxLen         int // Tokens never grows beyond this
	Sampler        *sample.State
	PromptLogprobs int  // how many are wanted besides the prompt's own; -1: none
	Leader         *Seq // computes the same prompt: this one waits until it has, and then finds it in the prefix cache
	Owner          any  // for the caller

	CachedTokens int // prompt tokens that the first admission found in the prefix cache

	table    kvcache.Table
	computed int  // tokens in the KV cache, while it runs
	promised int  // tokens of the step in progress
	fetched  bool // the tier has been asked since it last lost its blocks
	done     bool
	prompted bool // the whole prompt has been computed once, and its log-probabilities are out
	admitted bool
}

// Config are the bounds of a step.
type Config struct {
	MaxSeqs   int  // sequences in one step
	MaxTokens int  // tokens in one step
	Chunked   bool // a prompt may be computed in several steps
}

// Scheduler owns the queues and the KV cache's books. It is not safe for concurrent use.
type Scheduler struct {
	cfg     Config
	cache   *kvcache.Cache
	tier    Tier // nil: none
	waiting []*Seq
	fetches []*fetch
	running []*Seq // in order of admission
	batch   modelrunner.Batch
	seqs    []*Seq // of the batch

	preemptions int
}

// TooBigError is a sequence that the whole KV cache cannot hold.
type TooBigError struct{ Tokens, Capacity int }

func (e *TooBigError) Error() string {
	return fmt.Sprintf("scheduler: a sequence of up to %d tokens does not fit into a KV cache of %d", e.Tokens, e.Capacity)
}

// New makes an empty scheduler.
func New(cfg Config, cache *kvcache.Cache) *Scheduler { return &Scheduler{cfg: cfg, cache: cache} }

// UseTier gives the scheduler a second prefix cache. Call it before the first step.
func (s *Scheduler) UseTier(t Tier) { s.tier = t }

// Add queues a sequence; a [TooBigError] when it could never run to its end.
func (s *Scheduler) Add(q *Seq) error {
	if q.MaxLen > s.cache.Capacity() {
		return &TooBigError{Tokens: q.MaxLen, Capacity: s.cache.Capacity()}
	}
	s.waiting = append(s.waiting, q)
	return nil
}

// Finish takes a sequence out, in whatever state it is, and frees its blocks. Again is nothing.
func (s *Scheduler) Finish(q *Seq) {
	if q.done {
		return
	}
	q.done = true
	s.cancelFetch(q)
	s.cache.Free(&q.table)
	s.running = remove(s.running, q)
	s.waiting = remove(s.waiting, q)
}

// Waiting counts the sequences that have not been admitted, or were preempted.
func (s *Scheduler) Waiting() int { return len(s.waiting) + len(s.fetches) }

// Running counts the admitted sequences.
func (s *Scheduler) Running() int { return len(s.running) }

// Preemptions counts how often a sequence lost its blocks.
func (s *Scheduler) Preemptions() int { return s.preemptions }

// Schedule gives the next step and its sequences, one for each Seq of the batch; nil when there is nothing to compute now. Both are valid until the
// next call. After the step, call Computed for each sequence that went well and Finish for each that is over.
func (s *Scheduler) Schedule() (*modelrunner.Batch, []*Seq) {
	if s.tier != nil {
		s.tier.Settle()
	}
	b := &s.batch
	b.Tokens, b.Positions, b.Slots = b.Tokens[:0], b.Positions[:0], b.Slots[:0]
	clear(b.Seqs) // a step's samplers must not live until a later step of the same size
	clear(s.seqs)
	b.Seqs, s.seqs = b.Seqs[:0], s.seqs[:0]

	budget, preempted := s.scheduleRunning(s.cfg.MaxTokens)
	if !preempted {
		s.admitWaiting(budget)
	}
	if len(s.seqs) == 0 {
		return nil, nil
	}
	return b, s.seqs
}

// scheduleRunning gives every running sequence its next tokens, and preempts from the back when blocks run out.
func (s *Scheduler) scheduleRunning(budget int) (left int, preempted bool) {
	for i := 0; i < len(s.running) && budget > 0; i++ {
		q := s.running[i]
		n := min(len(q.Tokens)-q.computed, budget)
		fits := true
		for !s.cache.Grow(&q.table, q.computed+n) {
			if s.tier != nil && s.tier.Yield() { // a block less to be found costs less than a sequence computed again
				continue
			}
			victim := s.running[len(s.running)-1]
			s.preempt(victim)
			preempted = true
			if victim == q {
				fits = false
				break
			}
		}
		if !fits {
			break
		}
		s.put(q, n)
		budget -= n
	}
	return budget, preempted
}

// admitWaiting starts waiting sequences, first come first served.
func (s *Scheduler) admitWaiting(budget int) {
	for i := 0; i < len(s.waiting) && len(s.running) < s.cfg.MaxSeqs && budget > 0; {
		q := s.waiting[i]
		if q.Leader != nil && !q.Leader.prompted && !q.Leader.done {
			i++
			continue
		}
		read := q.PromptLogprobs < 0 || q.prompted // prompt log-probabilities need every prompt position computed
		if read && s.tier != nil {
			switch s.fetch(q) {
			case fetching:
				s.waiting = slices.Delete(s.waiting, i, i+1)
				continue
			case fetchedByAnother:
				i++
				continue
			}
		}
		if !s.cfg.Chunked && len(q.Tokens) > budget {
			return
		}
		hit, ok := s.cache.Admit(&q.table, q.Tokens, budget, read)
		if !ok {
			return
		}
		if !q.admitted {
			q.admitted, q.CachedTokens = true, hit
		}
		s.waiting = slices.Delete(s.waiting, i, i+1)
		s.running = append(s.running, q)
		q.computed = hit
		n := min(len(q.Tokens)-hit, budget)
		s.put(q, n)
		budget -= n
	}
}

// preempt takes a running sequence's blocks; it is the first to be admitted again.
func (s *Scheduler) preempt(q *Seq) {
	s.cache.Free(&q.table)
	s.running = remove(s.running, q)
	s.waiting = slices.Insert(s.waiting, 0, q)
	q.fetched = false
	s.preemptions++
}

// put adds the next n tokens of a sequence to the batch.
func (s *Scheduler) put(q *Seq, n int) {
	b := &s.batch
	seq := modelrunner.Seq{Start: len(b.Tokens), Len: n, Context: q.computed + n, Blocks: q.table.Blocks(), PromptLogprobs: -1}
	size := s.cache.BlockSize()
	for p := q.computed; p < q.computed+n; p++ {
		b.Tokens = append(b.Tokens, q.Tokens[p])
		b.Positions = append(b.Positions, int32(p))
		b.Slots = append(b.Slots, seq.Blocks[p/size]*int32(size)+int32(p%size))
	}
	if seq.Context == len(q.Tokens) {
		seq.Sampler = q.Sampler
	}
	if q.PromptLogprobs >= 0 && !q.prompted {
		seq.PromptLogprobs = q.PromptLogprobs
		seq.Targets = q.Tokens[min(q.computed+1, q.PromptLen):min(seq.Context+1, q.PromptLen)]
	}
	q.promised = n
	b.Seqs = append(b.Seqs, seq)
	s.seqs = append(s.seqs, q)
}

// Computed enters the step's tokens of a sequence as computed. Call it before what was sampled is appended to Tokens. It gives the position of
// the first of them.
func (s *Scheduler) Computed(q *Seq) (first int) {
	first = q.computed
	q.computed += q.promised
	q.promised = 0
	keys, blocks := s.cache.Commit(&q.table, q.Tokens, q.computed)
	if s.tier != nil {
		s.tier.Offer(keys, blocks)
	}
	q.prompted = q.prompted || q.computed >= q.PromptLen
	return first
}

// remove takes q out of a queue, if it is in it.
func remove(queue []*Seq, q *Seq) []*Seq {
	if i := slices.Index(queue, q); i >= 0 {
		return slices.Delete(queue, i, i+1)
	}
	return queue
}
