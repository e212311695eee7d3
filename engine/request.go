package engine

import (
	"slices"
	"sync"

	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/engine/internal/scheduler"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/llm"
)

// request is a Request on its way through the engine. It refers to nothing of the engine, so
// whoever keeps one keeps only that.
//
// The loop owns it until done is closed; only deltas are shared before.
type request struct {
	id       string
	client   any  // whom it is for
	load     load // what it is counted as until it is done
	unseeded bool // gets a seed with its number
	rules    rules
	seqs     []*completion
	out      Output
	data     []float32     // what a model that pools made of it
	pool     *poolRules    // nil: it generates
	embeds   *promptEmbeds // nil: its prompt has tokens
	err      error
	live     int              // completions that go on
	cut      llm.FinishReason // FinishAbort or FinishError when it did not end by itself
	touched  bool             // is in core.dirty
	stream   bool
	sink     func(*request) // told of everything that is delivered; nil: the caller looks itself

	done chan struct{} // closed when out and err are final

	mu     sync.Mutex
	deltas []llm.Delta
	more   chan struct{} // deltas came
}

// newRequest makes a request of checked parameters. All completions share one prompt and differ in
// their seed.
func newRequest(k *checked, client any, maxLen int) *request {
	tokens, r := k.tokens, k.rules
	tok := k.tok
	q := &request{
		id: k.req.ID, client: client, load: k.load(), unseeded: k.req.Sampling.Seed == nil, rules: r, live: r.n,
		done: make(chan struct{}), more: make(chan struct{}, 1), embeds: k.embeds,
	}
	q.out = Output{Prompt: k.req.Prompt}
	if k.embeds == nil {
		q.out.PromptTokenIDs = slices.Clone(tokens)
	}
	if k.pool != nil {
		q.usePooling(k)
		return q
	}
	for i := range r.n {
		p := &completion{req: q, index: i}
		p.seq = scheduler.Seq{
			PromptLen: len(tokens), MaxLen: len(tokens) + min(r.maxTokens, maxLen-len(tokens)),
			PromptLogprobs: -1, Client: client, Owner: p,
		}
		p.seq.Tokens = append(make([]int32, 0, len(tokens)+min(r.maxTokens, 64)), tokens...)
		p.seq.Sampler = &sample.State{Params: k.params, Prompt: q.out.PromptTokenIDs}
		if k.embeds != nil {
			p.seq.Embeds, p.seq.Salt, p.seq.Sampler.Embedded = k.embeds.rows, k.embeds.salt, len(tokens)
		}
		if i == 0 {
			p.seq.PromptLogprobs = r.prompt
			p.seq.PromptMode.Logits = k.params.LogprobsMode.Logits
		} else {
			p.seq.Leader = &q.seqs[0].seq
		}
		if tok != nil {
			p.text = newText(tok, r, q.out.PromptTokenIDs)
		}
		q.seqs = append(q.seqs, p)
	}
	if r.prompt >= 0 {
		q.out.PromptLogprobs = make([][]llm.Logprob, len(tokens))
	}
	q.seed(k.params.Seed)
	return q
}

// seed assigns every completion a seed of its own.
func (r *request) seed(seed uint64) {
	for i, p := range r.seqs {
		p.seq.Sampler.Params.Seed = seed + uint64(i)
	}
}

// addPromptLogprobs enters those of a chunk, whose first token has the given position. A chunk that
// is computed again gives the same.
func (r *request) addPromptLogprobs(first int, lps [][]sample.Logprob, tok *tokenizer.Tokenizer) {
	for i, lp := range lps {
		r.out.PromptLogprobs[first+i+1] = logprobsOf(lp, tok)
	}
}

// deliver hands over what the loop has for the caller.
func (r *request) deliver() {
	if r.stream {
		r.mu.Lock()
		for _, p := range r.seqs {
			if d, ok := p.delta(); ok {
				r.deltas = append(r.deltas, d)
			}
		}
		r.mu.Unlock()
		r.notify()
	}
	if r.sink != nil {
		defer r.sink(r)
	}
	if r.live > 0 {
		return
	}
	r.out.CachedTokens = r.seqs[0].seq.CachedTokens
	for _, p := range r.seqs {
		r.out.Completions = append(r.out.Completions, p.completion())
	}
	r.embeds.release()
	r.seqs = nil // with them go the sampler's states, the block tables and the tokenizer
	close(r.done)
}

// notify tells a streaming caller that there are deltas.
func (r *request) notify() {
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// result is what became of the request, once it is done. When the engine is over instead, it had no
// way to end the request (a step hangs): then this says so in its place. Whatever the loop owns
// stays untouched.
func (r *request) result(over bool, b backend) (Output, error) {
	select {
	case <-r.done:
		return r.out, r.err
	default:
	}
	if !over {
		<-r.done
		return r.out, r.err
	}
	return r.lost(), b.err()
}

// lost is the output of a request whose engine cannot give one any more.
func (r *request) lost() Output {
	out := Output{RequestID: r.id, Prompt: r.out.Prompt, PromptTokenIDs: r.out.PromptTokenIDs}
	for i := range r.rules.n {
		out.Completions = append(out.Completions, llm.Completion{Index: i, FinishReason: llm.FinishError})
	}
	return out
}

// take returns the deltas that came since the last call.
func (r *request) take() []llm.Delta {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.deltas
	r.deltas = nil
	return d
}

// completion is one output of a request while it grows.
type completion struct {
	req   *request
	index int
	seq   scheduler.Seq
	text  *text // nil without a tokenizer

	logprobs   [][]llm.Logprob
	cumulative float64
	reason     llm.FinishReason
	stopReason string

	sentTokens int
	sentReason bool
}

func (p *completion) finished() bool  { return p.reason != "" }
func (p *completion) output() []int32 { return p.seq.Tokens[p.seq.PromptLen:] }
func (p *completion) end(why llm.FinishReason, reason string) {
	p.reason, p.stopReason = why, reason
	if p.text != nil && (why == llm.FinishStop || why == llm.FinishLength) {
		p.text.flush()
	}
}

// accept takes up a sampled token, the last of its step or not; true when it ended the completion.
func (p *completion) accept(d sample.Drawn, last bool, l limits) bool {
	r, id, lps := &p.req.rules, d.Token, d.Logprobs
	p.seq.Tokens = append(p.seq.Tokens, id)
	p.seq.Sampler.Output = p.output()
	if r.logprobs >= 0 {
		p.logprobs = append(p.logprobs, logprobsOf(lps, l.tok))
		for _, lp := range lps {
			if lp.Token == id && !p.seq.Sampler.Params.LogprobsMode.Logits {
				p.cumulative += float64(lp.Logprob)
			}
		}
	}
	n := len(p.output())
	why, reason := p.stopsAt(id)
	if p.text != nil && (why != llm.FinishStop || r.includeStop) {
		// vLLM: the token that stops is in the ids, and in the text only when it is asked for.
		if stop, ok := p.text.add(id, n > r.minTokens); ok {
			why, reason = llm.FinishStop, stop
		}
	}
	if why == "" && last && n >= r.minTokens && p.seq.Sampler.Complete() {
		why = llm.FinishStop
	}
	if why == "" {
		return false
	}
	p.end(why, reason)
	return true
}

// stopsAt reports whether a token ends the completion, apart from stop strings. Before MinTokens
// the sampler returns none that does.
func (p *completion) stopsAt(id int32) (llm.FinishReason, string) {
	r := &p.req.rules
	switch {
	case slices.Contains(r.eos, id):
		return llm.FinishStop, ""
	case slices.Contains(r.stopIDs, id):
		return llm.FinishStop, itoa(id)
	case len(p.seq.Tokens) >= p.seq.MaxLen:
		return llm.FinishLength, ""
	}
	return "", ""
}

// delta is what came since the last one.
func (p *completion) delta() (llm.Delta, bool) {
	out := p.output()
	d := llm.Delta{Index: p.index, TokenIDs: slices.Clone(out[p.sentTokens:])}
	if p.logprobs != nil {
		d.Logprobs = slices.Clone(p.logprobs[p.sentTokens:])
	}
	if p.text != nil {
		d.Text = p.text.next(p.finished())
	}
	if p.finished() && !p.sentReason {
		d.FinishReason, d.StopReason, p.sentReason = p.reason, p.stopReason, true
		d.CachedTokens = p.req.seqs[0].seq.CachedTokens
	}
	p.sentTokens = len(out)
	return d, len(d.TokenIDs) > 0 || d.Text != "" || d.FinishReason != ""
}

// completion is the whole output.
func (p *completion) completion() llm.Completion {
	c := llm.Completion{
		Index: p.index, TokenIDs: slices.Clone(p.output()), FinishReason: p.reason, StopReason: p.stopReason,
		CumulativeLogprob: p.cumulative, Logprobs: p.logprobs,
	}
	if p.text != nil {
		c.Text = p.text.String()
	}
	return c
}
