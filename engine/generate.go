package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"

	"github.com/enginetest/enginetest/internal/tokenizer"
)

// Generate answers requests, in order. All of them are checked before any is started.
//
// Errors: [*ParamError], [ErrPromptTooBig] or [ErrNoTokenizer] for a request that cannot run; [ErrStopped], [ErrSleeping] or [ErrEngineDead] when
// the engine cannot; the context's when it ends, which aborts the requests. When requests were started and the context lasts, the outputs are
// complete in number even with an error: FinishReason says what became of each ("abort" when the engine was shut down meanwhile).
func (e *Engine) Generate(ctx context.Context, reqs ...Request) ([]Output, error) {
	defer runtime.KeepAlive(e)
	rs, err := e.c.start(ctx, reqs, false)
	if err != nil {
		return nil, err
	}
	outs := make([]Output, len(rs))
	var errs []error
	for i, r := range rs {
		select {
		case <-r.done:
		case <-ctx.Done():
			e.c.abort(rs...)
			return nil, fmt.Errorf("engine: %d of %d requests aborted: %w", unfinished(rs), len(rs), ctx.Err())
		}
		outs[i] = r.out
		if r.err != nil && (len(errs) == 0 || errs[len(errs)-1].Error() != r.err.Error()) {
			errs = append(errs, r.err)
		}
	}
	if len(errs) == 1 {
		return outs, errs[0]
	}
	return outs, errors.Join(errs...)
}

func unfinished(rs []*request) int {
	n := 0
	for _, r := range rs {
		select {
		case <-r.done:
		default:
			n++
		}
	}
	return n
}

// Stream answers one request step by step; each range over the result starts it anew. Leaving the loop aborts the request. An error comes last,
// with an empty Delta; they are those of Generate.
func (e *Engine) Stream(ctx context.Context, req Request) iter.Seq2[Delta, error] {
	return func(yield func(Delta, error) bool) {
		defer runtime.KeepAlive(e)
		rs, err := e.c.start(ctx, []Request{req}, true)
		if err != nil {
			yield(Delta{}, err)
			return
		}
		r := rs[0]
		defer e.c.abort(r) // nothing when it has finished
		for over := false; !over; {
			select {
			case <-r.more:
			case <-r.done:
				over = true
			case <-ctx.Done():
				yield(Delta{}, fmt.Errorf("engine: request %s aborted: %w", r.id, ctx.Err()))
				return
			}
			for _, d := range r.take() {
				if !yield(d, nil) {
					return
				}
			}
		}
		if r.err != nil {
			yield(Delta{}, r.err)
		}
	}
}

// Abort ends the live request with this ID: its output is what it has so far, with FinishAbort. It says whether there was such a request.
func (e *Engine) Abort(id string) bool {
	e.c.mu.Lock()
	r := e.c.requests[id]
	e.c.mu.Unlock()
	if r == nil {
		return false
	}
	e.c.abort(r)
	return true
}

// ResetPrefixCache forgets all cached prompts. [ErrBlocksInUse], with the number, when sequences still use some.
func (e *Engine) ResetPrefixCache(ctx context.Context) error {
	defer runtime.KeepAlive(e)
	c := e.c
	result := make(chan error, 1)
	c.mu.Lock()
	if err := c.state.refusal(c.cause); err != nil {
		c.mu.Unlock()
		return err
	}
	c.post(func() {
		err := c.cache.Reset()
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrBlocksInUse, err)
		}
		c.answers = append(c.answers, func() { result <- err })
	})
	c.mu.Unlock()
	select {
	case err := <-result:
		return err
	case <-c.done:
		return e.Err()
	case <-ctx.Done():
		return fmt.Errorf("engine: prefix cache not reset: the engine is still in %s: %w", c.doing(), ctx.Err())
	}
}

// start checks requests and hands them to the loop.
func (c *core) start(ctx context.Context, reqs []Request, stream bool) ([]*request, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("engine: not started: %w", err)
	}
	rs := make([]*request, len(reqs))
	for i := range reqs {
		r, err := c.check(&reqs[i])
		if err != nil {
			if len(reqs) > 1 {
				err = fmt.Errorf("request %d of %d: %w", i+1, len(reqs), err)
			}
			return nil, err
		}
		r.stream = stream
		rs[i] = r
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.state.refusal(c.cause); err != nil {
		return nil, err
	}
	if err := c.nameRequests(rs); err != nil {
		return nil, err
	}
	c.post(func() { c.admit(rs) })
	return rs, nil
}

// check resolves one request, without its number.
func (c *core) check(q *Request) (*request, error) {
	c.mu.Lock()
	tok, refused := c.tok, c.state.refusal(c.cause)
	c.mu.Unlock()
	if refused != nil {
		return nil, refused
	}
	l := limits{vocab: c.limits.vocab, eos: c.limits.eos, tok: tok}
	tokens := q.PromptTokenIDs
	if tokens == nil {
		if tok == nil {
			return nil, fmt.Errorf("%w: a text prompt needs one; give PromptTokenIDs", ErrNoTokenizer)
		}
		tokens = tok.Encode(q.Prompt, true)
	}
	if len(tokens) == 0 {
		return nil, &ParamError{"the prompt", "empty", "at least one token"}
	}
	for i, id := range tokens {
		if err := checkID(fmt.Sprintf("PromptTokenIDs[%d]", i), id, l.vocab); err != nil {
			return nil, err
		}
	}
	if most := c.cfg.MaxModelLen - 1; len(tokens) > most {
		return nil, fmt.Errorf("%w: %d tokens, at most %d with MaxModelLen %d and one token of output", ErrPromptTooBig, len(tokens), most, c.cfg.MaxModelLen)
	}
	params, rules, err := q.Sampling.resolve(l)
	if err != nil {
		return nil, err
	}
	return newRequest(q.ID, q.Prompt, tokens, params, rules, c.cfg.MaxModelLen, tok, q.Sampling.Seed == nil), nil
}

// nameRequests gives each request its number, and with it an ID and a seed when it has none. The caller holds the lock.
func (c *core) nameRequests(rs []*request) error {
	for i, r := range rs {
		if r.id == "" {
			continue
		}
		_, taken := c.requests[r.id]
		for _, o := range rs[:i] {
			taken = taken || o.id == r.id
		}
		if taken {
			return &ParamError{"ID", fmt.Sprintf("%q", r.id), "unique among the requests that have not finished"}
		}
	}
	for _, r := range rs {
		c.number++
		if r.id == "" {
			for r.id = fmt.Sprintf("request-%d", c.number); c.requests[r.id] != nil; {
				r.id += "'"
			}
		}
		if r.unseeded {
			r.seed(mix(uint64(c.cfg.Seed), c.number))
		}
		r.out.RequestID = r.id
		c.requests[r.id] = r
	}
	return nil
}

// mix is splitmix64 (Steele, Lea, Flood 2014) of a seed's n-th value: near numbers give unlike seeds.
func mix(seed, n uint64) uint64 {
	z := seed + n*0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// admit queues requests; it runs in the loop.
func (c *core) admit(rs []*request) {
	for _, r := range rs {
		c.counts.PromptTokens += int64(len(r.out.PromptTokenIDs))
		for _, p := range r.seqs {
			if err := c.sched.Add(&p.seq); err != nil { // Open has made sure that MaxModelLen fits
				c.endRequest(r, FinishError, fmt.Errorf("%w: %w", ErrPromptTooBig, err))
				break
			}
		}
	}
}

// abort asks the loop to end requests that have not finished.
func (c *core) abort(rs ...*request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	live := rs[:0:0]
	for _, r := range rs {
		if c.requests[r.id] == r {
			live = append(live, r)
		}
	}
	if len(live) > 0 {
		c.post(func() {
			for _, r := range live {
				c.endRequest(r, FinishAbort, nil)
			}
		})
	}
}

func (c *core) tokenizer() (*tokenizer.Tokenizer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tok == nil && c.state != Stopped {
		return nil, ErrNoTokenizer
	}
	if c.tok == nil {
		return nil, c.state.refusal(c.cause)
	}
	return c.tok, nil
}
