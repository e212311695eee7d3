package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/enginetest/enginetest/engine/internal/wire"
	"github.com/enginetest/enginetest/internal/engines"
	"github.com/enginetest/enginetest/internal/proc"
	"github.com/enginetest/enginetest/internal/procfs"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// child is the link to a core in a child process. It holds no device memory.
type child struct {
	cfg      Config
	eos      []int32
	info     llm.PoolingInfo
	openedAt string
	entry    *engines.Handle
	log      *slog.Logger
	proc     *proc.Family
	link     *wire.Conn
	tail     *logTail

	ending  sync.Once
	done    chan struct{} // closed when the engine takes no more work, ever
	silent  chan struct{} // closed when nothing more comes over the link
	dead    chan struct{} // closed when the process is reaped and everybody who waited for it has been told
	stopped chan struct{} // closed when Shutdown is over

	mu       sync.Mutex
	state    State  // Running while the core has the say
	ended    string // how the process ended; "" while it lives
	expected bool   // its end: it has begun to shut down, or is being ended
	cause    error  // what the engine failed of
	result   error  // of the shutdown
	report   llm.ShutdownReport
	requests map[uint64]*request // by handle
	handle   uint64
	calls    map[uint64]chan reply
	call     uint64
	stats    Stats
	faults   []llm.FaultReport
	held     []ledger.Holding // when last asked
	drained  bool             // and drainErr is what came of it
	drainErr error
}

var _ backend = (*child)(nil)

const (
	answerGrace = 200 * time.Millisecond // after the caller's context, for the core's own words
	openGrace   = time.Second            // the same for Open, which has to give back what it has
	askLimit    = 5 * time.Second        // for what has no context
	stallLimit  = 30 * time.Second       // a core that reads nothing for so long is taken for dead
)

// openChild starts a core and has it load. One deadline covers all of it.
func openChild(ctx context.Context, cfg Config) (*Engine, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.StartTimeout, startTimeoutError{cfg.StartTimeout})
	defer cancel()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("opening %s: %w", cfg.Model, context.Cause(ctx))
	}
	c, err := startChild(cfg)
	if err != nil {
		return nil, fmt.Errorf("opening %s: starting the core process: %w", cfg.Model, err)
	}
	c.openedAt = callers(3)
	sent := cfg
	sent.Logger = nil
	got, err := call[opened](ctx, c, "open", sent)
	if err != nil {
		grace := exitBudget
		if _, own := err.(*coreError); !own { //nolint:errorlint // the core's own words say what was opened
			err, grace = fmt.Errorf("opening %s: %w", cfg.Model, err), 0
			if errors.Is(err, context.DeadlineExceeded) {
				err = errors.Join(err, c.askForStacks())
			}
		}
		if end, _ := ctx.Deadline(); !time.Now().Before(end) {
			<-ctx.Done() // the core's clock was first
		}
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = errors.Join(fmt.Errorf("opening %s: %w", cfg.Model, cause), err)
		}
		return nil, errors.Join(err, c.giveUp(grace))
	}
	c.mu.Lock()
	c.cfg, c.eos, c.info, c.stats = got.Config, got.EOS, got.Info, got.Stats
	c.cfg.Logger = cfg.Logger
	c.state.to(Running)
	c.mu.Unlock()
	warnUnused(cfg.Logger, got.Config.Model, got.Unused)
	c.entry = engines.Open(engines.Entry{Place: engines.Place(), PIDs: c.pids()})
	return newEngine(c, c.entry), nil
}

func startChild(cfg Config) (*child, error) {
	p, link, log, err := spawn(cfg.Model)
	if err != nil {
		return nil, err
	}
	link.Stall = stallLimit
	c := &child{
		cfg: cfg, log: cfg.Logger, proc: p, link: link, tail: follow(log),
		done: make(chan struct{}), silent: make(chan struct{}), dead: make(chan struct{}), stopped: make(chan struct{}),
		requests: map[uint64]*request{}, calls: map[uint64]chan reply{},
	}
	for _, f := range cfg.Faults {
		c.faults = append(c.faults, llm.FaultReport{Fault: f})
	}
	go c.listen()
	go c.waitProcess()
	return c, nil
}

// listen takes what the core says until it says no more.
func (c *child) listen() {
	defer close(c.silent)
	for {
		var n event
		if c.link.Recv(&n) != nil {
			return
		}
		c.take(&n)
	}
}

// take applies an event: first the state that every caller sees, then what wakes a caller.
func (c *child) take(n *event) {
	c.mu.Lock()
	c.stats = n.Stats
	if n.Faults != nil {
		c.faults = n.Faults
	}
	c.expected = c.expected || n.Closing
	failed := n.Failed != nil && c.cause == nil
	if failed {
		c.cause = n.Failed.unpack()
		c.state.to(Failed)
	}
	cause, model := c.cause, c.cfg.Model
	targets := make([]*request, len(n.Updates))
	for i, u := range n.Updates {
		targets[i] = c.requests[u.Handle]
		if u.Over {
			delete(c.requests, u.Handle)
		}
	}
	answers := make([]chan reply, len(n.Replies))
	for i, r := range n.Replies {
		answers[i] = c.calls[r.ID]
		delete(c.calls, r.ID)
	}
	c.mu.Unlock()
	if failed {
		c.log.Error("engine failed", "model", model, "error", cause)
	}
	for i, u := range n.Updates {
		if r := targets[i]; r != nil {
			r.update(u)
		}
	}
	for i, r := range n.Replies {
		if answers[i] != nil {
			answers[i] <- r
		}
	}
	if n.Done {
		c.ending.Do(func() { close(c.done) })
	}
}

// update is deliver for a request whose core is in a child.
func (r *request) update(u update) {
	r.mu.Lock()
	r.deltas = append(r.deltas, u.Deltas...)
	r.mu.Unlock()
	if !u.Over {
		r.notify()
		return
	}
	if u.Out != nil {
		r.out, r.data = *u.Out, u.Data
	}
	r.err = u.Err.unpack()
	close(r.done)
}

// roundTrip sends a command and waits for its reply.
func (c *child) roundTrip(ctx context.Context, name string, body []byte) ([]byte, error) {
	o := command{Method: name, Body: body}
	if deadline, ok := ctx.Deadline(); ok {
		o.Within = max(time.Until(deadline), 1)
	}
	answer, began := make(chan reply, 1), time.Now()
	c.mu.Lock()
	c.call++
	o.ID = c.call
	c.calls[o.ID] = answer
	c.mu.Unlock()
	if err := c.send(&o); err != nil {
		return nil, err
	}
	select {
	case r := <-answer:
		return r.Body, r.Err.unpack()
	case <-c.dead:
		return nil, c.exitError(answer)
	case <-ctx.Done():
	}
	grace := answerGrace
	if name == "open" {
		grace = openGrace
	}
	if errors.Is(ctx.Err(), context.Canceled) { // a deadline the core knows itself
		_ = c.send(&command{ID: o.ID, Cancel: true})
	}
	select {
	case r := <-answer:
		return r.Body, r.Err.unpack()
	case <-c.dead:
		return nil, c.exitError(answer)
	case <-time.After(grace):
		return nil, fmt.Errorf("engine: core process %d%s has not answered %q for %s: %w%s",
			c.proc.Leader(), processState(c.proc.Leader()), name, time.Since(began).Round(time.Millisecond), ctx.Err(), c.tail.quote())
	}
}

// processState is the kernel's word for what a process does now, " (T (stopped))"; "" when it says
// nothing.
func processState(pid int) string {
	_, after, _ := strings.Cut(string(procfs.Read(pid, "status")), "\nState:\t")
	state, _, found := strings.Cut(after, "\n")
	if !found {
		return ""
	}
	return " (" + state + ")"
}

// exitError is what a call gets when the process ended: the answer it still gave, or why it ended.
func (c *child) exitError(answer chan reply) error {
	select {
	case r := <-answer:
		if err := r.Err.unpack(); err != nil {
			return err
		}
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return dead(c.cause)
	}
	return fmt.Errorf("%w: %s", llm.ErrStopped, c.ended)
}

// send sends a command. When the link is broken, it waits until it is known why.
func (c *child) send(o *command) error {
	err := c.link.Send(o)
	var tooBig *wire.TooBigError
	if err == nil || errors.As(err, &tooBig) {
		return err
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		_ = c.proc.Signal(syscall.SIGKILL) // half a message is out: no more can follow
	}
	<-c.dead
	return c.exitError(nil)
}

func (c *child) gone() bool {
	select {
	case <-c.dead:
		return true
	default:
		return false
	}
}

func (c *child) counters() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	if c.state != Running {
		s.State = c.state
	}
	return s
}

func (c *child) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.end(c.cause, c.done)
}

func (c *child) pids() []int {
	if c.gone() {
		return nil
	}
	return []int{c.proc.Leader()}
}

func (c *child) config() Config               { return c.cfg }
func (c *child) eosTokenIDs() []int32         { return c.eos }
func (c *child) poolingInfo() llm.PoolingInfo { return c.info }
func (c *child) over() <-chan struct{}        { return c.done }
func (c *child) parts() map[string]any        { return nil }

func (c *child) shutdownReport() llm.ShutdownReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	return llm.ShutdownReport{Phases: slices.Clone(c.report.Phases)}
}

func (c *child) reportDropped() {
	if state := c.counters().State; state != Stopped {
		c.log.Error("engine dropped without Shutdown: its core process lives until this one ends",
			"model", c.cfg.Model, "state", state.String(), "pid", c.proc.Leader(), "opened_at", c.openedAt)
	}
}
