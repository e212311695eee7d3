package engine

import (
	"fmt"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/engine/internal/scheduler"
	"github.com/enginetest/enginetest/llm"
)

// outputProcessor takes what a step computed to the requests, and ends them. It is the loop's own.
type outputProcessor struct {
	faults *faults
	counts *Stats
	limits limits
	sched  *scheduler.Scheduler
	dirty  []*request // have something for their caller
}

// take takes one sequence's result to its request.
func (o *outputProcessor) take(p *completion, seq *modelrunner.Seq, res *modelrunner.SeqResult) error {
	if res.Err != nil {
		o.end(p.req, llm.FinishError, fmt.Errorf("engine: request %s: %w", p.req.id, res.Err))
		return nil
	}
	first := o.sched.Computed(&p.seq)
	p.req.addPromptLogprobs(first, res.PromptLogprobs, o.limits.tok)
	if seq.Sampler == nil && !seq.Pool {
		return nil
	}
	if err := o.faults.pass(llm.FaultOutput, 0); err != nil {
		return err
	}
	if seq.Pool {
		p.req.pooled(res.Pooled)
		p.end(llm.FinishStop, "")
		o.finish(p)
		o.touch(p.req)
		return nil
	}
	o.touch(p.req)
	p.seq.Drafts = res.Drafts
	o.counts.speculated(len(seq.Drafts), len(res.More))
	o.counts.OutputTokens++
	if p.accept(sample.Drawn{Token: res.Token, Logprobs: res.Logprobs}, len(res.More) == 0, o.limits) {
		o.finish(p)
		return nil
	}
	for i, d := range res.More {
		o.sched.Accepted(&p.seq)
		o.counts.OutputTokens++
		if p.accept(d, i == len(res.More)-1, o.limits) {
			o.finish(p)
			return nil
		}
	}
	return nil
}

// finish takes a completion that is over out of the schedule.
func (o *outputProcessor) finish(p *completion) {
	o.sched.Finish(&p.seq)
	p.req.live--
	if p.req.live == 0 {
		o.count(p.req)
	}
}

func (o *outputProcessor) count(r *request) {
	switch r.cut {
	case llm.FinishError:
		o.counts.Errored++
	case llm.FinishAbort:
		o.counts.Aborted++
	default:
		o.counts.Finished++
	}
}

// end ends whatever of a request still runs.
func (o *outputProcessor) end(r *request, why llm.FinishReason, err error) {
	if r.live == 0 {
		return
	}
	r.err, r.cut = err, why
	for _, p := range r.seqs {
		if !p.finished() {
			p.end(why, "")
			o.finish(p)
		}
	}
	o.touch(r)
}

// touch notes that a request has something for its caller.
func (o *outputProcessor) touch(r *request) {
	if !r.touched {
		r.touched = true
		o.dirty = append(o.dirty, r)
	}
}

// deliver hands the callers what there is for them.
func (o *outputProcessor) deliver() {
	for i, r := range o.dirty {
		r.touched = false
		r.deliver()
		o.dirty[i] = nil
	}
	o.dirty = o.dirty[:0]
}
