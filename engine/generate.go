package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"strconv"
	"time"

	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
)

// Generate answers requests, in order. All of them are checked before any is started.
//
// Errors: [*ParamError], [ErrPromptTooBig] or [ErrNoTokenizer] for a request that cannot run;
// [ErrStopped], [ErrSleeping] or [ErrEngineDead] when the engine cannot; the context's when it
// ends, which aborts the requests. When requests were started and the context lasts, the outputs
// are complete in number even with an error: FinishReason says what became of each ("abort" when
// the engine was shut down meanwhile).
func (e *Engine) Generate(ctx context.Context, reqs ...Request) ([]Output, error) {
	defer runtime.KeepAlive(e)
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	rs, err := e.b.start(ctx, reqs, false)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	outs := make([]Output, len(rs))
	var errs []error
	for i, r := range rs {
		over := false
		select {
		case <-r.done:
		case <-e.b.over():
			over = true
		case <-ctx.Done():
			e.b.abort(rs...)
			return nil, fmt.Errorf("engine: %d of %d requests aborted after %s, the first of them %s: %w",
				unfinished(rs[i:]), len(rs), time.Since(began).Round(time.Millisecond), r.id, ended(ctx))
		}
		out, err := r.result(over, e.b)
		outs[i] = out
		if err != nil && (len(errs) == 0 || errs[len(errs)-1].Error() != err.Error()) {
			errs = append(errs, err)
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

// Stream answers one request step by step; each range over the result starts it anew. Leaving the
// loop aborts the request. An error comes last, with an empty Delta; they are those of Generate.
func (e *Engine) Stream(ctx context.Context, req Request) iter.Seq2[Delta, error] {
	return func(yield func(Delta, error) bool) {
		defer runtime.KeepAlive(e)
		if err := checkContext(ctx); err != nil {
			yield(Delta{}, err)
			return
		}
		rs, err := e.b.start(ctx, []Request{req}, true)
		if err != nil {
			yield(Delta{}, err)
			return
		}
		r := rs[0]
		defer e.b.abort(r) // nothing when it has finished
		for over := false; !over; {
			select {
			case <-r.more:
			case <-r.done:
				over = true
			case <-e.b.over():
				over = true
			case <-ctx.Done():
				yield(Delta{}, fmt.Errorf("engine: request %s aborted: %w", r.id, ended(ctx)))
				return
			}
			for _, d := range r.take() {
				if !yield(d, nil) {
					return
				}
			}
		}
		if _, err := r.result(true, e.b); err != nil {
			yield(Delta{}, err)
		}
	}
}

// ended is the error of a context that has ended, with its cause when someone gave one.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// start checks requests and hands them to the loop.
func (c *core) start(ctx context.Context, reqs []Request, stream bool) ([]*request, error) {
	return c.startFor(ctx, reqs, stream, func(int, *request) {})
}

// startFor is start for someone who wants to see each request before the loop does.
func (c *core) startFor(ctx context.Context, reqs []Request, stream bool,
	each func(int, *request),
) ([]*request, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("engine: not started: %w", ended(ctx))
	}
	own := new(callClient)
	if err := c.precheck(reqs, own); err != nil {
		return nil, err
	}
	ks, err := c.checkAll(ctx, reqs)
	if err != nil {
		return nil, err
	}
	need := loads{}
	for _, k := range ks {
		need.add(clientOf(k.req, own), k.load())
	}
	if err := c.reserve(need); err != nil {
		return nil, err
	}
	rs := make([]*request, len(reqs))
	for i, k := range ks {
		rs[i] = newRequest(k, clientOf(k.req, own), c.cfg.MaxModelLen)
		rs[i].stream = stream
		each(i, rs[i])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err = c.state.refusal(c.cause)
	if err == nil {
		err = c.nameRequests(rs)
	}
	if err != nil {
		c.held.releaseAll(need)
		return nil, err
	}
	c.post(func() { c.admit(rs) })
	return rs, nil
}

// checked is a request whose parameters are in order.
type checked struct {
	req    *Request
	tokens []int32
	params sample.Params
	rules  rules
	tok    *tokenizer.Tokenizer
}

func (c *core) checkAll(ctx context.Context, reqs []Request) ([]*checked, error) {
	ks := make([]*checked, len(reqs))
	for i := range reqs {
		k, err := c.check(ctx, &reqs[i])
		if err != nil {
			if id := reqs[i].ID; id != "" {
				err = fmt.Errorf("request %s: %w", id, err)
			} else if len(reqs) > 1 {
				err = fmt.Errorf("request %d of %d: %w", i+1, len(reqs), err)
			}
			return nil, err
		}
		ks[i] = k
	}
	return ks, nil
}

// check resolves one request, without its number. It refuses a prompt that is too long before it
// does any work on it.
func (c *core) check(ctx context.Context, q *Request) (*checked, error) {
	c.mu.Lock()
	tok, refused := c.tok, c.state.refusal(c.cause)
	c.mu.Unlock()
	if refused != nil {
		return nil, refused
	}
	l := limits{vocab: c.limits.vocab, eos: c.limits.eos, tok: tok, maxLen: c.cfg.MaxModelLen}
	most := c.cfg.MaxModelLen - 1
	tokens := q.PromptTokenIDs
	if tokens == nil {
		if tok == nil {
			return nil, fmt.Errorf("%w: %s; a text prompt needs one, PromptTokenIDs do not", ErrNoTokenizer,
				c.whyNoTokenizer())
		}
		var err error
		if tokens, err = encodePrompt(ctx, tok, q.Prompt, most); err != nil {
			return nil, err
		}
	}
	if len(tokens) == 0 {
		return nil, paramError("the prompt", "empty", "at least one token")
	}
	if len(tokens) > most {
		return nil, tooBig(strconv.Itoa(len(tokens)), most)
	}
	if err := checkTokens(q, tokens, l); err != nil {
		return nil, err
	}
	params, rules, err := resolveParams(ctx, q.Sampling, l)
	if err != nil {
		return nil, err
	}
	return &checked{q, tokens, params, rules, tok}, nil
}

// encodePrompt turns a prompt into at most a number of tokens.
func encodePrompt(ctx context.Context, tok *tokenizer.Tokenizer, prompt string, most int) ([]int32, error) {
	tokens, err := tok.EncodeAtMost(ctx, prompt, true, most)
	if long, ok := errors.AsType[*tokenizer.TooLongError](err); ok {
		return nil, tooBig(fmt.Sprintf("at least %d", long.AtLeast), most)
	}
	if err != nil {
		return nil, fmt.Errorf("engine: not started: %w", ended(ctx))
	}
	return tokens, nil
}

func tooBig(tokens string, most int) error {
	return fmt.Errorf("%w: %s tokens, at most %d with MaxModelLen %d and one token of output", ErrPromptTooBig, tokens,
		most, most+1)
}

func (c *core) whyNoTokenizer() string {
	if c.cfg.SkipTokenizer {
		return "Config.SkipTokenizer is set"
	}
	return c.cfg.Model + " has no tokenizer.json"
}

// checkTokens refuses ids that the model has no embedding for. A tokenizer may give such: it can
// have tokens that the model was never resized for.
func checkTokens(q *Request, tokens []int32, l limits) error {
	for i, id := range tokens {
		switch {
		case id >= 0 && int(id) < l.vocab:
		case q.PromptTokenIDs != nil:
			return checkID(fmt.Sprintf("PromptTokenIDs[%d]", i), id, l.vocab)
		default:
			return paramError(
				"Prompt", fmt.Sprintf("one whose token %d is %d (%q) to the tokenizer", i, id, l.tok.Token(id)),
				fmt.Sprintf("made of the model's vocabulary, ids in [0, %d)", l.vocab),
			)
		}
	}
	return nil
}

// nameRequests assigns each request its number, and with it an ID and a seed when it has none. The
// caller holds the lock.
func (c *core) nameRequests(rs []*request) error {
	named := map[string]bool{}
	for _, r := range rs {
		if r.id == "" {
			continue
		}
		taken := c.requests[r.id] != nil || named[r.id]
		named[r.id] = true
		if taken {
			return paramError("ID", fmt.Sprintf("%q", r.id), "unique among the requests that have not finished")
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

// mix is splitmix64 (Steele, Lea, Flood 2014) of a seed's n-th value: near numbers give unlike
// seeds.
func mix(seed, n uint64) uint64 {
	z := seed + n*0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// admit queues requests; it runs in the loop.
func (c *core) admit(rs []*request) {
	for _, r := range rs {
		if r.live == 0 { // the engine fell asleep before it came to it
			continue
		}
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
