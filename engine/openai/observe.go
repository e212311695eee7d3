package openai

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/llm"
)

// latencies is what the server measures of its requests.
type latencies struct {
	firstToken, interToken, perToken, whole *histogram
	prompt, output, choices, maxTokens      *histogram

	mu       sync.Mutex
	finished map[llm.FinishReason]int // choices
	active   map[string]*activity     // by the name that requests have for the model
	changed  time.Time                // active
	empty    chan struct{}            // closed when nothing is active; nil: no one waits
}

// activity counts choices that are answered now.
type activity struct {
	running int // have a token
	waiting int // have none yet
}

// newLatencies begins to measure; most is the model's longest sequence.
func newLatencies(most int) *latencies {
	return &latencies{
		firstToken: newHistogram("vllm:time_to_first_token_seconds", "Time to the first token.", firstTokenBuckets),
		interToken: newHistogram("vllm:inter_token_latency_seconds", "Time between two tokens.", interTokenBuckets),
		perToken: newHistogram("vllm:request_time_per_output_token_seconds",
			"Mean time between the tokens of an output.", interTokenBuckets),
		whole: newHistogram("vllm:e2e_request_latency_seconds", "Time to the last token.", latencyBuckets),
		prompt: newHistogram("vllm:request_prompt_tokens", "Tokens of a prompt.",
			tokenBuckets(most)),
		output: newHistogram("vllm:request_generation_tokens", "Tokens of an output.",
			tokenBuckets(most)),
		choices: newHistogram("vllm:request_params_n", "The parameter n of requests.", choicesBuckets),
		maxTokens: newHistogram("vllm:request_params_max_tokens", "The parameter max_tokens of requests.",
			tokenBuckets(most)),
		finished: map[llm.FinishReason]int{},
		active:   map[string]*activity{},
		changed:  time.Now(),
	}
}

// move changes the counts of a model's name.
func (l *latencies) move(name string, waiting, running int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.active[name]
	if a == nil {
		a = new(activity)
		l.active[name] = a
	}
	a.waiting += waiting
	a.running += running
	if *a == (activity{}) {
		delete(l.active, name)
	}
	if len(l.active) == 0 && l.empty != nil {
		close(l.empty)
		l.empty = nil
	}
	l.changed = time.Now()
}

// wait returns when nothing is active.
func (l *latencies) wait(ctx context.Context) error {
	l.mu.Lock()
	if len(l.active) == 0 {
		l.mu.Unlock()
		return nil
	}
	if l.empty == nil {
		l.empty = make(chan struct{})
	}
	empty := l.empty
	l.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("openai: %d choices have not been sent: %w", l.total(), context.Cause(ctx))
	}
}

// total counts the choices under all names.
func (l *latencies) total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, a := range l.active {
		n += a.running + a.waiting
	}
	return n
}

// names lists those of a set that have running and waiting choices, separated by commas.
func (l *latencies) names(of []loraModule) (running, waiting string, changed time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var r, w []string
	for _, name := range slices.Sorted(maps.Keys(l.active)) {
		if !slices.ContainsFunc(of, func(m loraModule) bool { return m.name == name }) {
			continue
		}
		if l.active[name].running > 0 {
			r = append(r, name)
		}
		if l.active[name].waiting > 0 {
			w = append(w, name)
		}
	}
	return strings.Join(r, ","), strings.Join(w, ","), l.changed
}

// observer measures one job, and delays its tokens when the server has a latency profile.
type observer struct {
	l       *latencies
	e       *engine.Engine
	name    string
	began   time.Time
	prompts []int // tokens
	n       int
	choices []timing
	pacer   *pacer // nil: nothing is delayed
}

// timing is how far a choice has come.
type timing struct {
	tokens      int
	first, last time.Time
	finished    bool
}

// observe begins to measure a job.
func (s *Server) observe(j *job) *observer {
	o := &observer{
		l: j.m.latencies, e: j.m.engine, name: j.common.modelName(s), began: time.Now(), n: j.n(),
		choices: make([]timing, len(j.reqs)*j.n()),
	}
	for _, q := range j.reqs {
		o.prompts = append(o.prompts, len(q.PromptTokenIDs))
		o.l.choices.observe(float64(o.n))
		o.l.maxTokens.observe(float64(q.Sampling.MaxTokens))
	}
	o.pacer = s.newPacer(o.began, len(o.choices))
	o.l.move(o.name, len(o.choices), 0)
	return o
}

// step waits until a choice's step is due and counts it.
func (o *observer) step(ctx context.Context, choice int, d llm.Delta) error {
	c := &o.choices[choice]
	if n := len(d.TokenIDs); n > 0 {
		if o.pacer != nil {
			if err := o.pacer.wait(ctx, choice, c.tokens+n); err != nil {
				return err
			}
		}
		now := time.Now()
		if c.tokens == 0 {
			c.first = now
			o.l.firstToken.observe(now.Sub(o.began).Seconds())
			o.l.move(o.name, -1, 1)
		} else {
			o.l.interToken.observe(now.Sub(c.last).Seconds())
		}
		c.last = now
		c.tokens += n
	}
	if d.FinishReason != "" {
		o.finish(choice, d.FinishReason)
	}
	return nil
}

func (o *observer) finish(choice int, why llm.FinishReason) {
	c := &o.choices[choice]
	if c.finished {
		return
	}
	c.finished = true
	if c.tokens == 0 {
		o.l.move(o.name, -1, 0)
	} else {
		o.l.move(o.name, 0, -1)
	}
	o.l.mu.Lock()
	o.l.finished[why]++
	o.l.mu.Unlock()
	o.l.whole.observe(time.Since(o.began).Seconds())
	o.l.prompt.observe(float64(o.prompts[choice/o.n]))
	o.l.output.observe(float64(c.tokens))
	if c.tokens > 1 {
		o.l.perToken.observe(c.last.Sub(c.first).Seconds() / float64(c.tokens-1))
	}
}

// end counts the choices that have not finished: their client has left, or the engine has failed.
func (o *observer) end() {
	why := llm.FinishAbort
	if o.e.State() == engine.Failed {
		why = llm.FinishError
	}
	for i := range o.choices {
		o.finish(i, why)
	}
}
