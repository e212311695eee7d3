package engine

import (
	"context"
	"fmt"

	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// intake takes requests from callers: it checks them, counts them and hands them to the loop.
type intake struct {
	cfg    *Config
	ledger *ledger.Ledger
	life   *lifecycle
	box    *mailbox
	inputs *inputProcessor
	reqs   *requestTable
	out    *outputProcessor
	admit  func([]*request) // queues them; called in the loop
}

// start checks requests and hands them to the loop.
func (in *intake) start(ctx context.Context, reqs []Request, stream bool) ([]*request, error) {
	return in.startFor(ctx, reqs, stream, func(int, *request) {})
}

// startFor is start for someone who wants to see each request before the loop does.
func (in *intake) startFor(ctx context.Context, reqs []Request, stream bool,
	each func(int, *request),
) ([]*request, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("engine: not started: %w", ended(ctx))
	}
	own := new(callClient)
	if err := in.precheck(reqs, own); err != nil {
		return nil, err
	}
	ks, err := in.inputs.checkAll(ctx, reqs)
	if err != nil {
		return nil, err
	}
	return in.take(ks, own, stream, each)
}

// take counts checked requests and hands them to the loop.
func (in *intake) take(ks []*checked, own *callClient, stream bool, each func(int, *request)) ([]*request, error) {
	need := loads{}
	for _, k := range ks {
		need.add(clientOf(k.req, own), k.load())
	}
	in.life.mu.Lock()
	err := in.reqs.held.reserve(need)
	in.life.mu.Unlock()
	if err != nil {
		return nil, err
	}
	rs := make([]*request, len(ks))
	for i, k := range ks {
		rs[i] = newRequest(k, clientOf(k.req, own), in.cfg.MaxModelLen)
		rs[i].stream = stream
		each(i, rs[i])
	}
	in.life.mu.Lock()
	defer in.life.mu.Unlock()
	err = in.life.refusal()
	if err == nil {
		err = in.reqs.add(rs)
	}
	if err != nil {
		in.reqs.held.releaseAll(need)
		return nil, err
	}
	for _, r := range rs {
		r.embeds.enter(in.ledger)
	}
	in.box.post(func() { in.admit(rs) })
	return rs, nil
}

// precheck refuses a call for its number of sequences, before any work is done on its requests.
func (in *intake) precheck(reqs []Request, own *callClient) error {
	need := loads{}
	for i := range reqs {
		n := reqs[i].Sampling.N
		if n < 1 || n > maxSeqsOfRequest { // refused by its own bound, if it is not 1
			n = 1
		}
		bytes := int64(len(reqs[i].Prompt)) + embedBytes(reqs[i].PromptEmbeds)
		need.add(clientOf(&reqs[i], own), load{seqs: int64(n), bytes: bytes})
	}
	in.life.mu.Lock()
	defer in.life.mu.Unlock()
	if err := in.life.refusal(); err != nil {
		return err
	}
	for client, l := range need {
		if err := in.reqs.held.refusal(client, l); err != nil {
			return err
		}
	}
	return nil
}

// abort asks the loop to end requests that have not finished.
func (in *intake) abort(rs ...*request) {
	in.life.mu.Lock()
	defer in.life.mu.Unlock()
	live := rs[:0:0]
	for _, r := range rs {
		if in.reqs.has(r) {
			live = append(live, r)
		}
	}
	if len(live) > 0 {
		in.box.post(func() {
			for _, r := range live {
				in.out.end(r, llm.FinishAbort, nil)
			}
		})
	}
}

func (in *intake) abortID(id string) bool {
	in.life.mu.Lock()
	r := in.reqs.live[id]
	in.life.mu.Unlock()
	if r == nil {
		return false
	}
	in.abort(r)
	return true
}
