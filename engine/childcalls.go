package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/enginetest/enginetest/engine/internal/wire"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// What an Engine asks of a core in a child process.

func (c *child) start(ctx context.Context, reqs []Request, stream bool) ([]*request, error) {
	rs := make([]*request, len(reqs))
	for i, q := range reqs {
		if err := crosses(&q); err != nil {
			return nil, ofRequest(err, q.ID, i, len(reqs))
		}
		n := 1
		if q.Sampling.Check() == nil { // otherwise the core refuses it
			n = max(q.Sampling.N, 1)
		}
		rs[i] = &request{stream: stream, rules: rules{n: n}, done: make(chan struct{}), more: make(chan struct{}, 1)}
		rs[i].out = Output{Prompt: q.Prompt, PromptTokenIDs: slices.Clone(q.PromptTokenIDs)}
	}
	return c.begin(ctx, rs, startCommand{Stream: stream, Requests: reqs})
}

// crosses refuses what cannot be sent to another process.
func crosses(q *Request) error {
	if len(q.Sampling.LogitsProcessors) == 0 {
		return nil
	}
	return &llm.UnsupportedError{
		Field: "LogitsProcessors", Why: "a function cannot be sent to a core in a child process",
		Advice: "use Config.Core InProcess, or LogitBias, AllowedTokenIDs and the other parameters, which cross",
	}
}

func (c *child) startPooling(ctx context.Context, reqs []llm.PoolingRequest) ([]*request, error) {
	rs := make([]*request, len(reqs))
	for i, q := range reqs {
		rs[i] = &request{rules: rules{n: 1}, done: make(chan struct{}), more: make(chan struct{}, 1)}
		rs[i].out = Output{Prompt: q.Prompt, PromptTokenIDs: slices.Clone(q.PromptTokenIDs)}
	}
	return c.begin(ctx, rs, startCommand{Pooling: reqs})
}

// begin numbers requests and has the core start them.
func (c *child) begin(ctx context.Context, rs []*request, o startCommand) ([]*request, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("engine: not started: %w", ended(ctx))
	}
	handles := make([]uint64, len(rs))
	c.mu.Lock()
	if c.state != Running {
		defer c.mu.Unlock()
		return nil, c.state.refusal(c.cause)
	}
	o.First = c.handle + 1
	for i, r := range rs {
		c.handle++
		c.requests[c.handle], handles[i] = r, c.handle
	}
	c.mu.Unlock()
	ids, err := call[[]string](ctx, c, "start", o)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		for i, id := range ids {
			rs[i].id = id
		}
		return rs, nil
	}
	for _, h := range handles {
		delete(c.requests, h)
	}
	if ctx.Err() != nil { // they may have been started all the same
		go c.abortHandles(handles)
	}
	return nil, err
}

func (c *child) abort(rs ...*request) {
	var handles []uint64
	ours := make(map[*request]bool, len(rs))
	for _, r := range rs {
		ours[r] = true
	}
	c.mu.Lock()
	for h, r := range c.requests {
		if ours[r] {
			handles = append(handles, h)
		}
	}
	c.mu.Unlock()
	c.abortHandles(handles)
}

func (c *child) abortHandles(handles []uint64) {
	if body, err := wire.Append(nil, &handles); err == nil && len(handles) > 0 {
		_ = c.send(&command{Method: "abort", Body: body})
	}
}

// ask is a call without a context of the caller's.
func ask[Out, In any](c *child, name string, in In) (Out, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	return call[Out](ctx, c, name, in)
}

func (c *child) abortID(id string) bool {
	found, _ := ask[bool](c, "abort by id", id)
	return found
}

func (c *child) resetPrefixCache(ctx context.Context) error {
	if err := c.refusal(); err != nil {
		return err
	}
	_, err := call[none](ctx, c, "reset prefix cache", none{})
	return err
}

func (c *child) flush(ctx context.Context) error {
	if err := c.refusal(); err != nil {
		return err
	}
	_, err := call[none](ctx, c, "flush", none{})
	return err
}

func (c *child) sleep(ctx context.Context, level int) error {
	if err := c.refusal(); err != nil {
		return err
	}
	_, err := call[none](ctx, c, "sleep", level)
	return err
}

func (c *child) wakeUp(ctx context.Context, tags []string) error {
	if err := c.refusal(); err != nil {
		return err
	}
	_, err := call[none](ctx, c, "wake", tags)
	return err
}

func (c *child) encode(text string) ([]int32, error) {
	if err := c.refusal(); err != nil {
		return nil, err
	}
	return ask[[]int32](c, "encode", text)
}

func (c *child) decode(ids []int32) (string, error) {
	if err := c.refusal(); err != nil {
		return "", err
	}
	return ask[string](c, "decode", ids)
}

func (c *child) drain(ctx context.Context) error {
	c.mu.Lock()
	over, result, refused := c.drained, c.drainErr, c.state.refusal(c.cause)
	c.mu.Unlock()
	if over {
		return result
	}
	if refused != nil {
		return refused
	}
	_, err := call[none](ctx, c, "drain", none{})
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) { // which does not cross
		err = fmt.Errorf("%w: %w", err, cause)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.drained {
		c.drained, c.drainErr = true, err
	}
	return c.drainErr
}

// refusal is why nothing is asked of the core any more.
func (c *child) refusal() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.refusal(c.cause)
}

func (c *child) holdings() []ledger.Holding {
	if c.gone() {
		return nil
	}
	held, err := ask[[]ledger.Holding](c, "holdings", none{})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.held = held
	}
	if c.ended != "" { // meanwhile
		return nil
	}
	return slices.Clone(c.held)
}

func (c *child) faultReports() []llm.FaultReport {
	if !c.gone() {
		if reports, err := ask[[]llm.FaultReport](c, "faults", none{}); err == nil {
			return reports
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.faults)
}
