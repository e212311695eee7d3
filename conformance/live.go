package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
)

// live is an engine that runs.
type live struct {
	fixture *harness.Fixture
	limit   time.Duration
	killed  bool // by the suite: that its shutdown reports it is right
}

// The capabilities that package harness has no interface for.
type (
	drainer interface {
		Drain(ctx context.Context) error
	}
	aborter  interface{ Abort(id string) bool }
	endpoint interface{ URL() string }
)

// engine is the engine itself: not to be kept beyond the property.
func (l *live) engine() harness.Engine { return l.fixture.Engine() }

// close ends the engine and proves it gone.
func (l *live) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), l.limit)
	defer cancel()
	report := l.fixture.Close(ctx)
	if l.killed && onlyShutdown(report) {
		return nil
	}
	return report.Err()
}

// onlyShutdown reports whether the shutdown is all that failed: what the engine held is gone.
func onlyShutdown(r harness.Report) bool {
	for i, s := range r.Steps {
		if i > 0 && s.Err != nil {
			return false
		}
	}
	return true
}

// generate answers requests, and checks that there is one output for each with its number of
// completions.
func (l *live) generate(ctx context.Context, reqs ...llm.Request) (outs []llm.Output, err error) {
	e := l.engine()
	if e == nil {
		return nil, fmt.Errorf("the fixture is closed: %w", llm.ErrStopped)
	}
	l.fixture.Do(func() { outs, err = e.Generate(ctx, reqs...) })
	if err != nil {
		return outs, fmt.Errorf("generate: %w\n%s", err, requests(reqs))
	}
	if len(outs) != len(reqs) {
		return nil, fmt.Errorf("%d outputs for %d requests\n%s", len(outs), len(reqs), requests(reqs))
	}
	for i, o := range outs {
		if want := max(reqs[i].Sampling.N, 1); len(o.Completions) != want {
			return nil, fmt.Errorf("%d completions, want %d\n%s", len(o.Completions), want, requests(reqs[i:i+1]))
		}
	}
	return outs, nil
}

// one answers one request that has one completion.
func (l *live) one(ctx context.Context, req llm.Request) (llm.Completion, error) {
	outs, err := l.generate(ctx, req)
	if err != nil {
		return llm.Completion{}, err
	}
	return outs[0].Completions[0], nil
}

// each answers requests one after the other.
func (l *live) each(ctx context.Context, reqs ...llm.Request) (outs []llm.Output, err error) {
	for _, q := range reqs {
		o, err := l.generate(ctx, q)
		if err != nil {
			return nil, err
		}
		outs = append(outs, o...)
	}
	return outs, nil
}

// stream joins a streamed answer's deltas, per completion. It stops after the delta at which enough
// answers true.
func (l *live) stream(ctx context.Context, req llm.Request,
	enough func(llm.Delta) bool,
) (cs []llm.Completion, err error) {
	s, ok := l.engine().(harness.Streamer)
	if !ok {
		return nil, lacks(Streaming, "%s does not implement harness.Streamer", typeName(l.engine()))
	}
	text := make([]strings.Builder, max(req.Sampling.N, 1))
	cs = make([]llm.Completion, len(text))
	l.fixture.Do(func() {
		for d, streamErr := range s.Stream(ctx, req) {
			if streamErr != nil {
				err = streamErr
				return
			}
			if d.Index < 0 || d.Index >= len(cs) {
				err = fmt.Errorf("a delta of completion %d, of %d", d.Index, len(cs))
				return
			}
			c := &cs[d.Index]
			if c.FinishReason != "" {
				err = fmt.Errorf("a delta of completion %d after its finish reason", d.Index)
				return
			}
			text[d.Index].WriteString(d.Text)
			c.Index, c.FinishReason, c.StopReason = d.Index, d.FinishReason, d.StopReason
			c.TokenIDs, c.Logprobs = append(c.TokenIDs, d.TokenIDs...), append(c.Logprobs, d.Logprobs...)
			if enough(d) {
				return
			}
		}
	})
	for i := range cs {
		cs[i].Text = text[i].String()
	}
	if err != nil {
		err = fmt.Errorf("stream: %w\n%s", err, requests([]llm.Request{req}))
	}
	return cs, err
}

// whole is enough for a stream that runs to its end.
func whole(llm.Delta) bool { return false }

// activity is what the engine works on; known is false when it does not tell.
func (l *live) activity(ctx context.Context) (now llm.Activity, known bool, err error) {
	a, ok := l.engine().(harness.ActivityReporter)
	if !ok {
		return now, false, nil
	}
	if now, err = a.Activity(ctx); lackOf(err, nil) != nil {
		return now, false, nil
	}
	return now, true, err
}

// idle waits until the engine works on nothing; at once when it cannot tell.
func (l *live) idle(ctx context.Context) error {
	for {
		now, known, err := l.activity(ctx)
		if err != nil || !known || now.Idle() && now.KVUsage == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d sequences run, %d wait and %.0f %% of the KV cache is in use, with no caller left: %w",
				now.Running, now.Waiting, 100*now.KVUsage, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// idleSoon is idle with a limit of its own.
func (c *check) idleSoon(l *live) error {
	ctx, cancel := context.WithTimeout(c, graceAfterLimit)
	defer cancel()
	return l.idle(ctx)
}

// call is a request in flight.
type call struct {
	done chan struct{}
	outs []llm.Output
	err  error
	took time.Duration
}

// background sends each request in a call of its own.
func (l *live) background(ctx context.Context, reqs ...llm.Request) []*call {
	calls := make([]*call, len(reqs))
	for i, q := range reqs {
		c := &call{done: make(chan struct{})}
		calls[i] = c
		go func() {
			defer close(c.done)
			began := time.Now()
			c.outs, c.err = l.generate(ctx, q)
			c.took = time.Since(began)
		}()
	}
	return calls
}

// running waits until the engine works on n sequences, if it can tell, or until a call has
// returned.
func (l *live) running(ctx context.Context, n int, calls []*call) error {
	for {
		now, known, err := l.activity(ctx)
		if !known && err == nil {
			time.Sleep(5 * time.Millisecond)
			return nil
		}
		if err != nil || now.Running >= n || slices.ContainsFunc(calls, (*call).returned) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d requests run: %w", now.Running, n, context.Cause(ctx))
		case <-time.After(100 * time.Microsecond):
		}
	}
}

func (c *call) returned() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// wait waits for all calls.
func wait(ctx context.Context, calls []*call) error {
	for i, c := range calls {
		select {
		case <-c.done:
		case <-ctx.Done():
			return fmt.Errorf("request %d of %d has not returned: %w", i+1, len(calls), context.Cause(ctx))
		}
	}
	return nil
}

// honest reports a call that lost tokens without saying so: it has neither an error, nor its whole
// answer, nor the finish reason "abort".
func (c *check) honest(x *call, req llm.Request, whole llm.Output) error {
	if x.err != nil || x.outs[0].Completions[0].FinishReason == llm.FinishAbort {
		return nil
	}
	if d := c.s.difference([]llm.Request{req}, []llm.Output{whole}, x.outs); d != "" {
		return errors.New("an answer has neither an error nor the finish reason \"abort\", and is not the whole answer: " + d)
	}
	return nil
}

// interrupted returns n long requests and their whole answers, to be asked for again and
// interrupted.
func (c *check) interrupted(l *live, n int) (reqs []llm.Request, whole []llm.Output, err error) {
	reqs = c.long(n, longAnswer)
	for i := len(c.s.whole); i < n; i++ {
		outs, err := l.generate(c, reqs[i])
		if err != nil {
			return nil, nil, err
		}
		c.s.whole = append(c.s.whole, outs...)
	}
	return reqs, c.s.whole[:n], nil
}

// cancellable is a context for calls that are to be given up.
func cancellable(c *check) (context.Context, context.CancelFunc) { return context.WithCancel(c) }

// refused is generate without a look at the outputs, for requests that must be refused.
func (l *live) refused(ctx context.Context, q llm.Request) (outs []llm.Output, err error) {
	e := l.engine()
	if e == nil {
		return nil, llm.ErrStopped
	}
	l.fixture.Do(func() { outs, err = e.Generate(ctx, q) })
	return outs, err
}
