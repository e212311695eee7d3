// Package scheduler decides what each engine step computes, in the way of vLLM V1: there is no
// prefill or decode phase, only sequences whose computed tokens catch up with the tokens they have,
// under one budget of tokens a step.
//
// Running sequences come first, in order of admission; then waiting ones are admitted as long as
// the budget, the number of sequences and the KV blocks allow. When blocks run out, a running
// sequence is preempted: it loses its blocks, keeps its tokens and its sampler, and is computed
// again later, so its output is the same.
//
// Clients share the places of a step evenly (max-min fairness): the client with the fewest running
// sequences is admitted first, and while it waits without a place, a client that has at least two
// more loses its newest one. One client's sequences are served in order of arrival. So a client
// with any number of sequences delays another one by what its even share takes, whatever it queues.
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
	Pool           bool        // it is over when Tokens have been computed; there is no Sampler
	TokenTypes     []int32     // the segment of each token; nil: all are 0
	Embeds         [][]float32 // rows in place of the embeddings of the first Tokens
	Salt           []byte      // of the prefix cache: what Embeds are
	PromptLogprobs int         // how many are wanted besides the prompt's own; -1: none
	PromptMode     sample.Mode // of these
	Leader         *Seq        // computes the same prompt: this one waits until it has, and then finds it in the prefix cache
	Client         any         // whom it is for, a comparable value: clients share the steps evenly
	Owner          any         // for the caller
	Drafts         []int32     // proposed to follow Tokens, of which the next step verifies what fits

	CachedTokens int // prompt tokens that the first admission found in the prefix cache

	table     kvcache.Table
	computed  int  // tokens in the KV cache, while it runs
	scheduled int  // tokens of the step in progress, without drafts
	fetched   bool // the tier has been asked since it last lost its blocks
	done      bool
	prompted  bool // the whole prompt has been computed once, and its log-probabilities are out
	admitted  bool

	client     *client // until it is done
	ticket     uint64  // order of arrival
	in         *queue  // where it waits
	prev, next *Seq    // there
	followers  queue   // of a leader: those that wait for its prompt
	loading    *fetch  // of its prefix
}

// Config are the bounds of a step.
type Config struct {
	MaxSeqs   int  // sequences in one step
	MaxTokens int  // tokens in one step
	Chunked   bool // a prompt may be computed in several steps
	Lookahead int  // tokens after those of a step for which a sequence gets room, if there is some: drafts
}

// Scheduler owns the queues and the KV cache's books. It is not safe for concurrent use.
type Scheduler struct {
	cfg     Config
	cache   *kvcache.Cache
	tier    Tier // nil: none
	clients clients
	fetches []*fetch
	running []*Seq // in order of admission
	live    int    // sequences that have not finished
	tickets uint64
	blocked bool // the next sequence to be admitted lacked KV blocks
	batch   modelrunner.Batch
	seqs    []*Seq // of the batch

	preemptions int
}

// TooBigError is a sequence that the whole KV cache cannot hold.
type TooBigError struct{ Tokens, Capacity int }

func (e *TooBigError) Error() string {
	return fmt.Sprintf("scheduler: a sequence of up to %d tokens does not fit into a KV cache of %d", e.Tokens,
		e.Capacity)
}

// New makes an empty scheduler.
func New(cfg Config, cache *kvcache.Cache) *Scheduler { return &Scheduler{cfg: cfg, cache: cache} }

// UseTier returns the scheduler a second prefix cache. Call it before the first step.
func (s *Scheduler) UseTier(t Tier) { s.tier = t }

// Add queues a sequence; a [TooBigError] when it could never run to its end.
func (s *Scheduler) Add(q *Seq) error {
	if q.MaxLen > s.cache.Capacity() {
		return &TooBigError{Tokens: q.MaxLen, Capacity: s.cache.Capacity()}
	}
	s.live++
	s.tickets++
	q.table.Salt = q.Salt
	q.client, q.ticket = s.clients.join(q.Client), s.tickets
	if l := q.Leader; l != nil && !l.prompted && !l.done {
		l.followers.pushBack(q)
		return nil
	}
	q.client.waiting.pushBack(q)
	s.clients.changed(q.client)
	return nil
}

// Finish takes a sequence out, in whatever state it is, and frees its blocks. A second call has no
// effect.
func (s *Scheduler) Finish(q *Seq) {
	if q.done {
		return
	}
	q.done = true
	if q.client == nil { // it was never added
		return
	}
	s.live--
	s.cancelFetch(q)
	s.cache.Free(&q.table)
	c := q.client
	if q.in != nil {
		q.in.remove(q)
	} else if i := slices.Index(s.running, q); i >= 0 {
		s.running = slices.Delete(s.running, i, i+1)
		c.running--
	}
	s.clients.changed(c)
	s.clients.leave(c)
	q.client = nil
	s.release(&q.followers)
}

// release lets sequences that waited for another one be admitted, before what came later.
func (s *Scheduler) release(l *queue) {
	for l.n > 0 {
		q := l.last
		l.remove(q)
		s.putBack(q)
	}
}

// putBack makes a sequence the first of its client's.
func (s *Scheduler) putBack(q *Seq) {
	q.client.waiting.pushFront(q)
	s.clients.changed(q.client)
}

// take removes a sequence from its client's queue.
func (s *Scheduler) take(q *Seq) {
	q.in.remove(q)
	s.clients.changed(q.client)
}

// Waiting counts the sequences that have not been admitted, or were preempted.
func (s *Scheduler) Waiting() int { return s.live - len(s.running) }

// Running counts the admitted sequences.
func (s *Scheduler) Running() int { return len(s.running) }

// Preemptions counts how often a sequence lost its blocks.
func (s *Scheduler) Preemptions() int { return s.preemptions }

// Schedule returns the next step and its sequences, one for each Seq of the batch; nil when there
// is nothing to compute now. Both are valid until the next call. After the step, call Computed for
// each sequence that went well and Finish for each that is over.
func (s *Scheduler) Schedule() (*modelrunner.Batch, []*Seq) {
	if s.tier != nil {
		s.tier.Finish()
	}
	b := &s.batch
	b.Tokens, b.Positions, b.Slots, b.TokenTypes = b.Tokens[:0], b.Positions[:0], b.Slots[:0], b.TokenTypes[:0]
	clear(b.Seqs) // a step's samplers must not live until a later step of the same size
	clear(s.seqs)
	b.Seqs, s.seqs = b.Seqs[:0], s.seqs[:0]

	s.rebalance()
	budget, preempted := s.scheduleRunning(s.cfg.MaxTokens)
	if !preempted {
		s.admitWaiting(budget)
	}
	if len(s.seqs) == 0 {
		return nil, nil
	}
	return b, s.seqs
}

// rebalance takes a place from the client with the most running sequences when the next client has
// at least two fewer and finds none.
func (s *Scheduler) rebalance() {
	next := s.clients.next()
	if next == nil || len(s.running) == 0 || len(s.running) < s.cfg.MaxSeqs && !s.blocked {
		return
	}
	if v := s.victim(0); v.client.running >= next.running+2 {
		s.preempt(v)
	}
}

// victim returns the sequence to preempt among the running ones from an index on: the newest of the
// client with the most running sequences.
func (s *Scheduler) victim(from int) *Seq {
	v := s.running[len(s.running)-1]
	for i := len(s.running) - 2; i >= from; i-- {
		if q := s.running[i]; q.client.running > v.client.running {
			v = q
		}
	}
	return v
}

// scheduleRunning returns every running sequence its next tokens, and preempts when blocks run out.
func (s *Scheduler) scheduleRunning(budget int) (left int, preempted bool) {
	for i := 0; i < len(s.running) && budget > 0; i++ {
		q := s.running[i]
		n := min(len(q.Tokens)-q.computed, budget)
		fits := true
		for !s.cache.Grow(&q.table, q.computed+n) {
			// a block less to be found costs less than a sequence computed again
			if s.tier != nil && s.tier.CancelStore() {
				continue
			}
			victim := s.victim(i)
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
		d := s.fitDrafts(q, n, budget-(len(s.running)-1-i))
		s.put(q, n, d)
		budget -= n + d
	}
	return budget, preempted
}

// fitDrafts returns how many of a sequence's drafts follow the next n of its tokens: those within the
// budget and in free blocks. They make no one wait: there are none while a sequence is waiting to be
// admitted, and none is preempted for them.
func (s *Scheduler) fitDrafts(q *Seq, n, budget int) int {
	if len(q.Drafts) == 0 || q.computed+n < len(q.Tokens) {
		return 0
	}
	if len(s.running) < s.cfg.MaxSeqs && s.clients.next() != nil && !s.blocked {
		return 0
	}
	d := max(min(len(q.Drafts), budget-n, q.MaxLen-len(q.Tokens)-1), 0)
	for d > 0 && !s.cache.Grow(&q.table, q.computed+n+d) {
		d--
	}
	return d
}

// admitWaiting starts waiting sequences, in the order of their clients.
func (s *Scheduler) admitWaiting(budget int) {
	s.blocked = false
	for len(s.running) < s.cfg.MaxSeqs && budget > 0 {
		c := s.clients.next()
		if c == nil {
			return
		}
		q := c.waiting.first
		read := q.PromptLogprobs < 0 || q.prompted // prompt log-probabilities need every prompt position computed
		if read && s.tier != nil && s.fetch(q) {
			continue
		}
		if !s.cfg.Chunked && len(q.Tokens) > budget {
			return
		}
		hit, ok := s.cache.Admit(&q.table, q.Tokens, budget, read)
		if !ok {
			s.blocked = true
			return
		}
		if !q.admitted {
			q.admitted, q.CachedTokens = true, hit
		}
		s.take(q)
		s.clients.admitted(c)
		s.running = append(s.running, q)
		q.computed = hit
		n := min(len(q.Tokens)-hit, budget)
		s.put(q, n, 0)
		budget -= n
	}
}

// preempt takes a running sequence's blocks; it is the first of its client's to be admitted again.
func (s *Scheduler) preempt(q *Seq) {
	s.cache.Free(&q.table)
	i := slices.Index(s.running, q)
	s.running = slices.Delete(s.running, i, i+1)
	q.client.waiting.pushFront(q)
	s.clients.preempted(q.client)
	q.fetched, q.Drafts = false, nil
	s.preemptions++
}

// put adds the next n tokens of a sequence to the batch, and d of its drafts.
func (s *Scheduler) put(q *Seq, n, d int) {
	b := &s.batch
	if s.cfg.Lookahead > 0 { // without room the runner proposes less
		_ = s.cache.Grow(&q.table, min(q.computed+n+d+s.cfg.Lookahead, q.MaxLen))
	}
	seq := modelrunner.Seq{
		Start: len(b.Tokens), Len: n + d, Context: q.computed + n + d, Blocks: q.table.Blocks(),
		PromptLogprobs: -1, Drafts: q.Drafts[:d], MaxLen: q.MaxLen,
	}
	b.Tokens = append(append(b.Tokens, q.Tokens[q.computed:q.computed+n]...), seq.Drafts...)
	size := s.cache.BlockSize()
	for p := q.computed; p < seq.Context; p++ {
		b.Positions = append(b.Positions, int32(p))
		b.Slots = append(b.Slots, seq.Blocks[p/size]*int32(size)+int32(p%size))
	}
	if q.computed+n == len(q.Tokens) {
		seq.Sampler, seq.Pool = q.Sampler, q.Pool
	}
	s.putTypes(q, n)
	if q.computed < len(q.Embeds) {
		seq.Embeds = q.Embeds[q.computed:min(q.computed+n, len(q.Embeds))]
	}
	if q.PromptLogprobs >= 0 && !q.prompted {
		seq.PromptLogprobs, seq.LogprobsMode = q.PromptLogprobs, q.PromptMode
		seq.Targets = q.Tokens[min(q.computed+1, q.PromptLen):min(seq.Context+1, q.PromptLen)]
	}
	q.scheduled = n
	b.Seqs = append(b.Seqs, seq)
	s.seqs = append(s.seqs, q)
}

// putTypes adds the token types of the next n tokens, once a sequence of the batch has any.
func (s *Scheduler) putTypes(q *Seq, n int) {
	b := &s.batch
	before := len(b.Tokens) - n
	if q.TokenTypes == nil && len(b.TokenTypes) == 0 {
		return
	}
	for len(b.TokenTypes) < before {
		b.TokenTypes = append(b.TokenTypes, 0)
	}
	for p := q.computed; p < q.computed+n; p++ {
		kind := int32(0)
		if q.TokenTypes != nil {
			kind = q.TokenTypes[p]
		}
		b.TokenTypes = append(b.TokenTypes, kind)
	}
}

// Computed enters the step's tokens of a sequence as computed, without its drafts. Call it before
// what was sampled is appended to Tokens. It returns the position of the first of them.
func (s *Scheduler) Computed(q *Seq) (first int) {
	first = q.computed
	s.compute(q, q.scheduled)
	q.scheduled = 0
	return first
}

// Accepted enters a draft of the step as computed: the last of Tokens, which turned out to be the
// draft. The slots of drafts that were rejected are written again by later steps, and the prefix
// cache never learns of them.
func (s *Scheduler) Accepted(q *Seq) { s.compute(q, 1) }

// compute enters the next n tokens of a sequence as computed.
func (s *Scheduler) compute(q *Seq, n int) {
	q.computed += n
	keys, blocks := s.cache.Commit(&q.table, q.Tokens, q.computed)
	if s.tier != nil {
		s.tier.Store(keys, blocks)
	}
	if !q.prompted && q.computed >= q.PromptLen {
		q.prompted = true
		s.release(&q.followers)
	}
}
