package engine

import (
	"context"
	"fmt"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/ledger"
)

// backend does an Engine's work: a core in this process, or the link to one in a child process. It
// never refers to the Engine, so that a handle that was dropped can be noticed. What the methods
// promise is said at those of Engine.
type backend interface {
	start(ctx context.Context, reqs []Request, stream bool) ([]*request, error)
	abort(rs ...*request)
	abortID(id string) bool
	resetPrefixCache(ctx context.Context) error
	sleep(ctx context.Context, level int) error
	wakeUp(ctx context.Context, tags []string) error
	encode(text string) ([]int32, error)
	decode(ids []int32) (string, error)

	drain(ctx context.Context) error
	shutdown(ctx context.Context) error
	shutdownReport() ShutdownReport
	over() <-chan struct{}
	err() error

	config() Config
	eosTokenIDs() []int32
	counters() Stats
	holdings() []ledger.Holding
	faultReports() []FaultReport
	parts() map[string]any
	pids() []int
	reportDropped()
}

var _ backend = (*core)(nil)

func (c *core) config() Config              { return c.cfg }
func (c *core) eosTokenIDs() []int32        { return c.limits.eos }
func (c *core) holdings() []ledger.Holding  { return c.ledger.Holdings() }
func (c *core) faultReports() []FaultReport { return c.faults.report() }
func (c *core) over() <-chan struct{}       { return c.done }
func (c *core) pids() []int                 { return nil }

func (c *core) counters() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.State, s.Devices = c.state, c.cfg.TensorParallel
	return s
}

func (c *core) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.end(c.cause, c.done)
}

func (c *core) parts() map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	parts := map[string]any{}
	if c.runner != nil {
		parts["model runner"] = c.runner
		parts["scheduler"] = c.sched
		parts["kv cache"] = c.cache
		if g, ok := c.runner.(interface{ Ranks() []modelrunner.Rank }); ok {
			for i, r := range g.Ranks() {
				parts[fmt.Sprintf("model runner of rank %d (%s)", i, r.Device())] = r
			}
		}
		if c.tier != nil {
			parts["kv offload"] = c.tier
		}
	}
	return parts
}

func (c *core) abortID(id string) bool {
	c.mu.Lock()
	r := c.requests[id]
	c.mu.Unlock()
	if r == nil {
		return false
	}
	c.abort(r)
	return true
}

func (c *core) resetPrefixCache(ctx context.Context) error {
	return c.ask(ctx, "prefix cache reset", func() error { return c.state.refusal(c.cause) }, c.forget)
}

func (c *core) encode(text string) ([]int32, error) {
	tok, err := c.tokenizer()
	if err != nil {
		return nil, err
	}
	return tok.Encode(text, true), nil
}

func (c *core) decode(ids []int32) (string, error) {
	tok, err := c.tokenizer()
	if err != nil {
		return "", err
	}
	return tok.Decode(ids, true), nil
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
