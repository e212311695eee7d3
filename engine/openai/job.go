package openai

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/enginetest/enginetest/engine"
)

func newID(prefix string) string { return prefix + strings.ToLower(rand.Text()) }

// job is one API request: one or more prompts, answered together.
type job struct {
	s      *Server
	m      *model
	common *common
	id     string
	object string
	chat   bool
	top    int // chat: logprobs of a position
	reqs   []engine.Request
	choice func(j *job, p *piece, stream bool) map[string]any
}

// piece is what a choice shows: all of a completion, or what a step added to one.
type piece struct {
	index      int
	text       string
	ids        []int32
	logprobs   [][]engine.Logprob
	reason     engine.FinishReason
	stopReason string
	first      bool
	offset     *int // of text_offset
}

func (p *piece) finish() any {
	if p.reason == "" {
		return nil
	}
	return p.reason
}

// extras are vLLM's fields of a choice.
func (p *piece) extras(j *job, c map[string]any) {
	if p.stopReason != "" {
		c["stop_reason"] = p.stopReason
	}
	if j.common.ReturnTokenIDs {
		c["token_ids"] = append([]int32{}, p.ids...)
	}
}

func (j *job) add(ids []int32, params engine.SamplingParams) error {
	if ids == nil {
		ids = []int32{}
	}
	// A number of tokens that was asked for is not cut silently, as in vLLM.
	if n := len(ids) + params.MaxTokens; j.common.MaxTokens != nil && len(ids) < j.m.maxLen && n > j.m.maxLen {
		return invalid("max_tokens", "context_length_exceeded",
			"is %d, must be at most %d behind a prompt of %d tokens: the model's context has %d",
			params.MaxTokens, j.m.maxLen-len(ids), len(ids), j.m.maxLen)
	}
	j.reqs = append(j.reqs, engine.Request{PromptTokenIDs: ids, Sampling: params})
	return nil
}

// checkSeqs refuses a request for its number of sequences, before any work on its prompts.
func (j *job) checkSeqs(prompts int) error {
	if most := j.s.options.MaxSeqs; prompts > most/j.n() {
		return invalid("n", "too_many", "%d prompts times %d is more than %d sequences (MaxSeqs)", prompts, j.n(), most)
	}
	return nil
}

// n is the number of choices of a prompt.
func (j *job) n() int {
	if j.common.N == nil {
		return 1
	}
	return *j.common.N
}

func (j *job) run(w http.ResponseWriter, r *http.Request) error {
	client := j.s.options.ClientOf(r)
	if client == "" {
		client = j.id
	}
	for i := range j.reqs {
		j.reqs[i].Client = client
	}
	if j.common.Stream {
		return j.stream(w, r)
	}
	outs, err := j.m.engine.Generate(r.Context(), j.reqs...)
	if err != nil {
		return err
	}
	choices := []map[string]any{}
	u := usage{}
	for i, out := range outs {
		u.prompt += len(out.PromptTokenIDs)
		u.cached += out.CachedTokens
		for _, c := range out.Completions {
			u.completion += len(c.TokenIDs)
			choices = append(choices, j.choice(j, &piece{
				index: i*j.n() + c.Index, text: c.Text, ids: c.TokenIDs, logprobs: c.Logprobs, reason: c.FinishReason,
				stopReason: c.StopReason, first: true, offset: new(int),
			}, false))
		}
	}
	total := u.object()
	total["prompt_tokens_details"] = map[string]int{"cached_tokens": u.cached} // a stream does not say
	return writeJSON(w, http.StatusOK, j.envelope(choices, total))
}

type usage struct{ prompt, completion, cached int }

func (u usage) object() map[string]any {
	return map[string]any{
		"prompt_tokens": u.prompt, "completion_tokens": u.completion,
		"total_tokens": u.prompt + u.completion,
	}
}

func (j *job) envelope(choices []map[string]any, u any) map[string]any {
	object := j.object
	if j.chat && j.common.Stream {
		object += ".chunk"
	}
	e := map[string]any{
		"id": j.id, "object": object, "created": time.Now().Unix(), "model": j.s.name,
		"choices": choices,
	}
	if u != nil {
		e["usage"] = u
	}
	return e
}

// stream answers with server-sent events. An error before the first event is an ordinary error;
// later it is an event, and no [DONE] follows.
func (j *job) stream(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	withUsage := j.common.StreamOptions != nil && j.common.StreamOptions.IncludeUsage
	var u usage
	for _, q := range j.reqs {
		u.prompt += len(q.PromptTokenIDs)
	}
	events := &eventWriter{w: w, rc: http.NewResponseController(w)}
	offsets := map[int]*int{}
	for d := range j.deltas(ctx) {
		if d.err != nil {
			if !events.begun {
				return d.err
			}
			_ = events.send(asAPIError(d.err).body())
			return nil
		}
		p := &piece{
			index: d.index, text: d.Text, ids: d.TokenIDs, logprobs: d.Logprobs, reason: d.FinishReason,
			stopReason: d.StopReason,
		}
		if offsets[p.index] == nil {
			offsets[p.index], p.first = new(int), true
		}
		p.offset = offsets[p.index]
		u.completion += len(d.TokenIDs)
		e := j.envelope([]map[string]any{j.choice(j, p, true)}, nil)
		if withUsage {
			e["usage"] = nil
		}
		if err := events.send(e); err != nil {
			return nil // the client is gone; leaving aborts the requests
		}
	}
	if withUsage {
		_ = events.send(j.envelope([]map[string]any{}, u.object()))
	}
	_ = events.done()
	return nil
}

// delta is a step of one of the job's choices, or the error that ends it all.
type delta struct {
	engine.Delta
	index int
	err   error
}

// deltas runs all prompts and returns their steps as they come. Leaving the loop aborts what is
// left.
func (j *job) deltas(ctx context.Context) func(yield func(delta) bool) {
	return func(yield func(delta) bool) {
		ctx, cancel := context.WithCancel(ctx)
		steps := make(chan delta)
		var wg sync.WaitGroup
		for i, q := range j.reqs {
			wg.Go(func() {
				for d, err := range j.m.engine.Stream(ctx, q) {
					select {
					case steps <- delta{d, i*j.n() + d.Index, err}:
					case <-ctx.Done():
						return
					}
				}
			})
		}
		go func() { wg.Wait(); close(steps) }()
		defer wg.Wait()
		defer cancel()
		for d := range steps {
			if !yield(d) || d.err != nil {
				return
			}
		}
		if err := ctx.Err(); err != nil {
			yield(delta{err: err})
		}
	}
}

// eventWriter writes server-sent events.
type eventWriter struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	begun bool
}

func (e *eventWriter) send(v any) error {
	data, err := marshal(v)
	if err != nil {
		return err
	}
	return e.raw(data)
}

func (e *eventWriter) done() error { return e.raw([]byte("[DONE]\n")) }

// raw writes an event; data ends with a newline.
func (e *eventWriter) raw(data []byte) error {
	if !e.begun {
		e.w.Header().Set("Content-Type", "text/event-stream")
		e.w.Header().Set("Cache-Control", "no-cache")
		e.begun = true
	}
	if _, err := fmt.Fprintf(e.w, "data: %s\n", data); err != nil {
		return err
	}
	return e.rc.Flush()
}
