package openai

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/llm"
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

	observer *observer
	choice   func(j *job, p *piece, stream bool) map[string]any
}

// piece is what a choice shows: all of a completion, or what a step added to one.
type piece struct {
	index      int
	text       string
	ids        []int32
	logprobs   [][]llm.Logprob
	reason     llm.FinishReason
	stopReason string
	first      bool
	offset     *int // of text_offset
}

// add appends all of a step but its text.
func (p *piece) add(d llm.Delta) {
	p.ids = append(p.ids, d.TokenIDs...)
	if p.logprobs == nil {
		p.logprobs = d.Logprobs
	} else {
		p.logprobs = append(p.logprobs, d.Logprobs...)
	}
	if d.FinishReason != "" {
		p.reason, p.stopReason = d.FinishReason, d.StopReason
	}
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
	if n := len(ids) + params.MaxTokens; j.common.Sampling.given["MaxTokens"] && len(ids) < j.m.maxLen && n > j.m.maxLen {
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
	return max(j.common.Sampling.N, 1)
}

func (j *job) run(w http.ResponseWriter, r *http.Request) error {
	client := j.s.options.ClientOf(r)
	if client == "" {
		client = j.id
	}
	for i := range j.reqs {
		j.reqs[i].Client = client
	}
	j.observer = j.s.observe(j)
	defer j.observer.end()
	if j.common.Stream {
		return j.stream(w, r)
	}
	return j.whole(w, r)
}

// whole answers when all choices are complete.
func (j *job) whole(w http.ResponseWriter, r *http.Request) error {
	pieces, texts := make([]piece, len(j.reqs)*j.n()), make([][]string, len(j.reqs)*j.n())
	for i := range pieces {
		pieces[i] = piece{index: i, first: true, offset: new(int)}
	}
	var u usage
	for d, err := range j.deltas(r.Context()) {
		if err != nil {
			return err
		}
		i := j.index(d)
		pieces[i].add(d)
		texts[i] = append(texts[i], d.Text)
		u.add(d)
	}
	choices := make([]map[string]any, len(pieces))
	for i := range pieces {
		pieces[i].text = strings.Join(texts[i], "")
		choices[i] = j.choice(j, &pieces[i], false)
	}
	for _, q := range j.reqs {
		u.prompt += len(q.PromptTokenIDs)
	}
	return writeJSON(w, http.StatusOK, j.envelope(choices, u.object()))
}

type usage struct{ prompt, completion, cached int }

func (u *usage) add(d llm.Delta) {
	u.completion += len(d.TokenIDs)
	if d.Index == 0 { // the choices of a prompt share it
		u.cached += d.CachedTokens
	}
}

func (u *usage) object() map[string]any {
	return map[string]any{
		"prompt_tokens": u.prompt, "completion_tokens": u.completion,
		"total_tokens":          u.prompt + u.completion,
		"prompt_tokens_details": map[string]int{"cached_tokens": u.cached},
	}
}

func (j *job) envelope(choices []map[string]any, u any) map[string]any {
	object := j.object
	if j.chat && j.common.Stream {
		object += ".chunk"
	}
	e := map[string]any{
		"id": j.id, "object": object, "created": time.Now().Unix(), "model": j.common.modelName(j.s),
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
	withUsage := j.common.StreamOptions != nil && j.common.StreamOptions.IncludeUsage
	var u usage
	for _, q := range j.reqs {
		u.prompt += len(q.PromptTokenIDs)
	}
	events := &eventWriter{w: w, rc: http.NewResponseController(w)}
	offsets := map[int]*int{}
	for d, err := range j.deltas(r.Context()) {
		if err != nil {
			if !events.begun {
				return err
			}
			_ = events.send(asAPIError(err).body())
			return nil
		}
		p := &piece{index: j.index(d), text: d.Text}
		p.add(d)
		if offsets[p.index] == nil {
			offsets[p.index], p.first = new(int), true
		}
		p.offset = offsets[p.index]
		u.add(d)
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

// index is the number of a step's choice in the answer.
func (j *job) index(d llm.Delta) int { return d.Request*j.n() + d.Index }

// deltas runs all prompts and returns their steps when they are due. Leaving the loop aborts what
// is left.
func (j *job) deltas(ctx context.Context) iter.Seq2[llm.Delta, error] {
	return func(yield func(llm.Delta, error) bool) {
		for d, err := range j.m.engine.StreamAll(ctx, j.reqs...) {
			if err == nil {
				err = j.observer.step(ctx, j.index(d), d)
			}
			if !yield(d, err) || err != nil {
				return
			}
		}
	}
}

const eventStream = "text/event-stream"

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
		e.w.Header().Set("Content-Type", eventStream)
		e.w.Header().Set("Cache-Control", "no-cache")
		e.begun = true
	}
	if _, err := fmt.Fprintf(e.w, "data: %s\n", data); err != nil {
		return err
	}
	return e.rc.Flush()
}
