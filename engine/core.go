package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/enginetest/enginetest/engine/internal/kvcache"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/offload"
	"github.com/enginetest/enginetest/engine/internal/scheduler"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/ledger"
)

// core is an engine without its handle: the goroutine that runs the steps (the loop), and what it
// owns. It never refers to the Engine, so that a handle that was dropped can be noticed.
type core struct {
	cfg      Config
	limits   limits
	openedAt string
	log      *slog.Logger
	ledger   *ledger.Ledger
	faults   *faults

	ctx    context.Context // ends when the engine is to stop; a hang ends with it
	cancel context.CancelFunc
	wake   chan struct{} // something was posted

	ending  sync.Once
	done    chan struct{} // closed when the engine takes no more work, ever
	stopped chan struct{} // closed when everything has been given back

	// The loop's own, and Open's before the loop starts.
	runner   modelrunner.Runner
	sched    *scheduler.Scheduler
	cache    *kvcache.Cache
	tier     *offload.Tier // nil: none
	dirty    []*request    // have something for their caller
	answers  []func()      // to callers of something else
	counts   Stats
	unused   []string // tensors of the checkpoint
	watchdog watchdog
	broken   error // what the engine is to end with

	connect      func(bytesPerBlock int64) (offload.Connector, error) // nil: host memory
	tierOptions  offload.Options
	tierReported bool // that it is out of use

	published func() // after everything that the loop tells callers; nil: no one needs it

	mu       sync.Mutex
	state    State
	cause    error // what the engine failed of
	draining *drain
	ordered  time.Time // when it was to stop
	report   ShutdownReport
	result   error // of the shutdown
	posted   []func()
	requests map[string]*request // that have not finished
	held     admission           // what they hold
	number   uint64              // of requests so far
	stats    Stats
	tok      *tokenizer.Tokenizer // nil: none
	phase    string
	since    time.Time
}

func newCore(cfg Config) *core {
	c := &core{
		cfg: cfg, log: cfg.Logger, ledger: ledger.New(cfg.RecordStacks),
		wake: make(chan struct{}, 1), done: make(chan struct{}), stopped: make(chan struct{}),
		requests: map[string]*request{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.held = newAdmission(&cfg)
	c.faults = newFaults(c.ctx, cfg.Faults)
	c.enter("start")
	return c
}

// enter says what the loop does now.
func (c *core) enter(phase string) {
	c.mu.Lock()
	c.phase, c.since = phase, time.Now()
	c.mu.Unlock()
}

// post hands the loop something to do; the caller holds the lock.
func (c *core) post(f func()) {
	c.posted = append(c.posted, f)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// loop is the engine's goroutine: it serves until the engine is to stop or fails, and releases
// everything when it stops. A step needs no hop to the runner's thread, because the loop
// is there already.
func (c *core) loop() {
	if err := modelrunner.OnThread(c.runner, c.serve); err != nil && c.ctx.Err() == nil {
		c.fail(err)
		<-c.ctx.Done()
	} else if err != nil && !errors.Is(err, ErrInjected) {
		c.fail(err) // it broke while it was being stopped
	}
	c.release()
}

// serve runs steps; nil when the engine is to stop. A panic is an error like any other.
func (c *core) serve() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = c.recovered(v)
		}
		err = public(err)
	}()
	for {
		if c.runPosted(); c.broken != nil {
			return c.broken
		}
		if c.ctx.Err() != nil {
			return nil
		}
		batch, seqs := c.sched.Schedule()
		if batch == nil {
			if c.tier != nil {
				c.publish() // a transfer may have ended
			}
			c.enter("waiting for work")
			select {
			case <-c.wake:
			case <-c.ctx.Done():
			}
			continue
		}
		if err := c.step(batch, seqs); err != nil {
			return err
		}
		c.publish()
	}
}

// recovered makes an error of a panic.
func (c *core) recovered(v any) error {
	c.mu.Lock()
	phase := c.phase
	c.mu.Unlock()
	return panicError(phase, v, debug.Stack())
}

// runPosted does what was posted, in order.
func (c *core) runPosted() {
	c.mu.Lock()
	posted := c.posted
	c.posted = nil
	c.mu.Unlock()
	for _, f := range posted {
		if f(); c.broken != nil {
			return
		}
	}
	if len(posted) > 0 {
		c.publish()
	}
}

// step executes a batch and takes its results to the requests.
func (c *core) step(batch *modelrunner.Batch, seqs []*scheduler.Seq) error {
	c.counts.Steps++
	c.enter("a forward pass")
	end := c.watch(c.counts.Steps)
	err := c.compute(batch, seqs)
	if late := end(); late != nil {
		return late
	}
	return err
}

func (c *core) compute(batch *modelrunner.Batch, seqs []*scheduler.Seq) error {
	results, err := c.runner.Execute(batch)
	if err == nil && len(results) != len(seqs) {
		err = fmt.Errorf("the runner gave %d results for %d sequences", len(results), len(seqs))
	}
	if err != nil {
		return fmt.Errorf("step %d (%d tokens, %d sequences): %w", c.counts.Steps, len(batch.Tokens), len(seqs), err)
	}
	c.enter("output processing")
	for i, q := range seqs {
		if p := q.Owner.(*completion); !p.finished() { // a sibling's error may have ended it in this step
			if err := c.output(p, &batch.Seqs[i], &results[i]); err != nil {
				return fmt.Errorf("output of request %s: %w", p.req.id, err)
			}
		}
	}
	return nil
}

// output takes one sequence's result to its request.
func (c *core) output(p *completion, seq *modelrunner.Seq, res *modelrunner.SeqResult) error {
	if res.Err != nil {
		c.endRequest(p.req, FinishError, fmt.Errorf("engine: request %s: %w", p.req.id, res.Err))
		return nil
	}
	first := c.sched.Computed(&p.seq)
	p.req.addPromptLogprobs(first, res.PromptLogprobs, c.limits.tok)
	if seq.Sampler == nil {
		return nil
	}
	if err := c.faults.pass(FaultOutput, 0); err != nil {
		return err
	}
	c.counts.OutputTokens++
	if p.accept(res.Token, res.Logprobs, c.limits) {
		c.finish(p)
	}
	c.touch(p.req)
	return nil
}

// finish takes a completion that is over out of the schedule.
func (c *core) finish(p *completion) {
	c.sched.Finish(&p.seq)
	p.req.live--
	if p.req.live == 0 {
		c.count(p.req)
	}
}

func (c *core) count(r *request) {
	switch r.cut {
	case FinishError:
		c.counts.Errored++
	case FinishAbort:
		c.counts.Aborted++
	default:
		c.counts.Finished++
	}
}

// endRequest ends whatever of a request still runs.
func (c *core) endRequest(r *request, why FinishReason, err error) {
	if r.live == 0 {
		return
	}
	r.err, r.cut = err, why
	for _, p := range r.seqs {
		if !p.finished() {
			p.end(why, "")
			c.finish(p)
		}
	}
	c.touch(r)
}

// touch notes that a request has something for its caller.
func (c *core) touch(r *request) {
	if !r.touched {
		r.touched = true
		c.dirty = append(c.dirty, r)
	}
}

// publish makes the counters visible, and then wakes the callers: what they see afterwards has
// their own request in it.
func (c *core) publish() {
	c.counts.Waiting, c.counts.Running, c.counts.Preemptions = c.sched.Waiting(), c.sched.Running(), c.sched.Preemptions()
	kv := c.cache.Stats()
	c.counts.KVBlocks, c.counts.KVBlocksUsed, c.counts.KVBlocksCached = kv.Blocks, kv.Used, kv.Cached
	c.counts.PrefixQueries, c.counts.PrefixHits = kv.Queries, kv.Hits
	c.countOffload()
	c.mu.Lock()
	c.stats = c.counts
	for _, r := range c.dirty {
		if r.live == 0 && c.requests[r.id] == r {
			delete(c.requests, r.id)
			c.held.release(r.client, r.load)
		}
	}
	drained := c.draining != nil && len(c.requests) == 0
	c.mu.Unlock()
	for i, r := range c.dirty {
		r.touched = false
		r.deliver()
		c.dirty[i] = nil
	}
	c.dirty = c.dirty[:0]
	for _, answer := range c.answers {
		answer()
	}
	c.answers = nil
	if c.published != nil {
		c.published()
	}
	if drained {
		c.mu.Lock()
		c.drained(nil)
		c.mu.Unlock()
	}
}

// fail ends every request with the cause, and refuses later ones.
func (c *core) fail(cause error) {
	c.mu.Lock()
	known := c.cause != nil // the watchdog was first
	if !known {
		c.cause = cause
		c.state.to(Failed) // it stays at ShuttingDown when that came first
	}
	c.mu.Unlock()
	if !known {
		c.log.Error("engine failed", "model", c.cfg.Model, "error", cause)
	}
	c.endAll(FinishError, dead(cause))
}

// endAll ends every request. It must work after any failure, so it asks nothing of the scheduler.
func (c *core) endAll(why FinishReason, err error) {
	c.mu.Lock()
	live := c.requests
	c.requests, c.posted, c.held = map[string]*request{}, nil, newAdmission(&c.cfg)
	c.mu.Unlock()
	for _, r := range live {
		if r.live > 0 {
			r.err, r.cut = err, why
			for _, p := range r.seqs {
				if !p.finished() {
					p.end(why, "")
				}
			}
			r.live = 0
			c.count(r)
		}
	}
	c.counts.over()
	c.mu.Lock()
	c.stats = c.counts
	c.mu.Unlock()
	for _, r := range live {
		r.deliver()
	}
	if c.published != nil {
		c.published()
	}
	c.mu.Lock()
	c.drained(fmt.Errorf("engine: drain: %d requests not finished: %w", len(live), err))
	c.mu.Unlock()
	c.dirty, c.answers = nil, nil // all of them were live; who waits for an answer sees that the engine is done
	c.ending.Do(func() { close(c.done) })
}
