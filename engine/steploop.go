package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/enginetest/enginetest/engine/internal/kvcache"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/engine/internal/scheduler"
	"github.com/enginetest/enginetest/llm"
)

// stepLoop runs the engine's steps: schedule, execute, take the results to the requests. One
// goroutine owns it; before that, Open does.
type stepLoop struct {
	ctx      context.Context // ends when the engine is to stop
	cfg      *Config
	log      *slog.Logger
	faults   *faults
	life     *lifecycle
	phase    *phase
	box      *mailbox
	reqs     *requestTable
	out      *outputProcessor
	drains   *drainer
	watchdog watchdog

	runner  modelrunner.Runner
	sched   *scheduler.Scheduler
	cache   *kvcache.Cache
	offload *kvOffload

	counts    Stats
	answers   []func() // to callers of ask
	broken    error    // what the engine is to end with
	published func()   // after everything that the loop tells callers; nil: no one needs it

	stats Stats // counts, as callers see them; guarded by the lifecycle's lock
}

// run serves until the engine is to stop; an engine that fails waits for that. A step needs no hop
// to the runner's thread, because the loop is there already.
func (l *stepLoop) run() {
	if err := modelrunner.OnThread(l.runner, l.serve); err != nil && l.ctx.Err() == nil {
		l.fail(err)
		<-l.ctx.Done()
	} else if err != nil && !errors.Is(err, llm.ErrInjected) {
		l.fail(err) // it broke while it was being stopped
	}
}

// serve runs steps; nil when the engine is to stop. A panic is an error like any other.
func (l *stepLoop) serve() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = l.phase.recovered(v)
		}
		err = public(err)
	}()
	for {
		if l.runPosted(); l.broken != nil {
			return l.broken
		}
		if l.ctx.Err() != nil {
			return nil
		}
		batch, seqs := l.sched.Schedule()
		if batch == nil {
			if l.offload.tier != nil {
				l.publish() // a transfer may have ended
			}
			l.phase.enter("waiting for work")
			select {
			case <-l.box.wake:
			case <-l.ctx.Done():
			}
			continue
		}
		if err := l.step(batch, seqs); err != nil {
			return err
		}
		l.publish()
	}
}

// runPosted does what was posted, in order.
func (l *stepLoop) runPosted() {
	posted := l.box.take()
	for _, f := range posted {
		if f(); l.broken != nil {
			return
		}
	}
	if len(posted) > 0 {
		l.publish()
	}
}

// step executes a batch and takes its results to the requests.
func (l *stepLoop) step(batch *modelrunner.Batch, seqs []*scheduler.Seq) error {
	l.counts.Steps++
	l.phase.enter("a forward pass")
	end := l.watchdog.watch(l.counts.Steps)
	err := l.compute(batch, seqs)
	if late := end(); late != nil {
		return late
	}
	return err
}

func (l *stepLoop) compute(batch *modelrunner.Batch, seqs []*scheduler.Seq) error {
	results, err := l.runner.Execute(batch)
	if err == nil && len(results) != len(seqs) {
		err = fmt.Errorf("the runner gave %d results for %d sequences", len(results), len(seqs))
	}
	if err != nil {
		return fmt.Errorf("step %d (%d tokens, %d sequences): %w", l.counts.Steps, len(batch.Tokens), len(seqs), err)
	}
	l.phase.enter("output processing")
	for i, q := range seqs {
		if p := q.Owner.(*completion); !p.finished() { // a sibling's error may have ended it in this step
			if err := l.out.take(p, &batch.Seqs[i], &results[i]); err != nil {
				return fmt.Errorf("output of request %s: %w", p.req.id, err)
			}
		}
	}
	return nil
}

// admit queues requests; it runs in the loop.
func (l *stepLoop) admit(rs []*request) {
	for _, r := range rs {
		if r.live == 0 { // the engine fell asleep before it came to it
			continue
		}
		l.counts.PromptTokens += int64(r.seqs[0].seq.PromptLen)
		for _, p := range r.seqs {
			if err := l.sched.Add(&p.seq); err != nil { // Open has made sure that MaxModelLen fits
				l.out.end(r, llm.FinishError, fmt.Errorf("%w: %w", llm.ErrPromptTooBig, err))
				break
			}
		}
	}
}

// publish makes the counters visible, and then wakes the callers: what they see afterwards has
// their own request in it.
func (l *stepLoop) publish() {
	l.counts.Waiting, l.counts.Running, l.counts.Preemptions = l.sched.Waiting(), l.sched.Running(), l.sched.Preemptions()
	kv := l.cache.Stats()
	l.counts.KVBlocks, l.counts.KVBlocksUsed, l.counts.KVBlocksCached = kv.Blocks, kv.Used, kv.Cached
	l.counts.PrefixQueries, l.counts.PrefixHits = kv.Queries, kv.Hits
	l.offload.count(&l.counts)
	l.life.mu.Lock()
	l.stats = l.counts.clone()
	for _, r := range l.out.dirty {
		if r.live == 0 {
			l.reqs.remove(r)
		}
	}
	drained := l.drains.now != nil && len(l.reqs.live) == 0
	l.life.mu.Unlock()
	l.out.deliver()
	for _, answer := range l.answers {
		answer()
	}
	l.answers = nil
	if l.published != nil {
		l.published()
	}
	if drained {
		l.life.mu.Lock()
		l.drains.finish(nil)
		l.life.mu.Unlock()
	}
}

// forget empties the prefix cache, both tiers of it. Transfers under way are given up and waited
// for, so that it works in an idle engine too.
func (l *stepLoop) forget(ctx context.Context) error {
	if l.offload.tier != nil && l.sched.Running()+l.sched.Fetching() == 0 {
		if err := l.offload.tier.Reset(ctx); err != nil {
			return fmt.Errorf("engine: prefix cache not reset: %w", err)
		}
	}
	if err := l.cache.Reset(); err != nil {
		return fmt.Errorf("%w: %w", llm.ErrBlocksInUse, err)
	}
	return nil
}

// ask has the loop do something, and waits for its answer. check runs at once, with the lock held.
// The context of do ends with ctx and with the engine.
func (l *stepLoop) ask(ctx context.Context, what string, check func() error, do func(context.Context) error) error {
	result := make(chan error, 1)
	l.life.mu.Lock()
	if err := check(); err != nil {
		l.life.mu.Unlock()
		return err
	}
	l.box.post(func() {
		l.phase.enter(what)
		ctx, cancel := context.WithCancel(ctx)
		defer context.AfterFunc(l.ctx, cancel)()
		defer cancel()
		err := public(do(ctx))
		if fatal(err) {
			l.broken = err // who asked is told with everybody
			return
		}
		l.answers = append(l.answers, func() { result <- err })
	})
	l.life.mu.Unlock()
	select {
	case err := <-result:
		return err
	case <-l.life.done:
		return l.life.err()
	case <-ctx.Done():
	}
	select {
	case err := <-result: // just in time
		return err
	default:
		return l.phase.unfinished(what, ctx.Err())
	}
}

// fail ends every request with the cause, and refuses later ones.
func (l *stepLoop) fail(cause error) {
	if l.life.fail(cause) {
		l.log.Error("engine failed", "model", l.cfg.Model, "error", cause)
	}
	l.endAll(llm.FinishError, dead(cause))
}

// endAll ends every request. It must work after any failure, so it asks nothing of the scheduler.
func (l *stepLoop) endAll(why llm.FinishReason, err error) {
	l.life.mu.Lock()
	live := l.reqs.clear()
	l.box.take()
	l.life.mu.Unlock()
	for _, r := range live {
		if r.live > 0 {
			r.err, r.cut = err, why
			for _, p := range r.seqs {
				if !p.finished() {
					p.end(why, "")
				}
			}
			r.live = 0
			l.out.count(r)
		}
	}
	l.counts.over()
	l.life.mu.Lock()
	l.stats = l.counts.clone()
	l.life.mu.Unlock()
	for _, r := range live {
		r.deliver()
	}
	if l.published != nil {
		l.published()
	}
	l.life.mu.Lock()
	l.drains.finish(fmt.Errorf("engine: drain: %d requests not finished: %w", len(live), err))
	l.life.mu.Unlock()
	// All of them were live; who waits for an answer sees that the engine is done.
	l.out.dirty, l.answers = nil, nil
	l.life.end()
}

// profile runs one forward pass, so that what cannot run fails here and not in the first request.
func (l *stepLoop) profile() error {
	l.phase.enter("the profiling pass")
	l.faults.profiling.Store(true)
	defer l.faults.profiling.Store(false)
	n := min(l.cfg.BlockSize, l.cfg.MaxModelLen, l.cfg.MaxNumBatchedTokens)
	b := &modelrunner.Batch{Tokens: make([]int32, n), Positions: make([]int32, n), Slots: make([]int32, n)}
	for i := range n {
		b.Positions[i], b.Slots[i] = int32(i), int32(i)
	}
	if l.cfg.Task != llm.TaskGenerate {
		b.Seqs = []modelrunner.Seq{{Len: n, Context: n, Blocks: []int32{0}, PromptLogprobs: -1, Pool: true}}
		return l.profilePooling(b)
	}
	b.Seqs = []modelrunner.Seq{{
		Len: n, Context: n, Blocks: []int32{0}, PromptLogprobs: -1,
		Sampler: &sample.State{Prompt: b.Tokens, Params: sample.Params{
			TopP: 1, TypicalP: 1, RepetitionPenalty: 1,
			Logprobs: -1,
		}},
	}}
	res, err := l.runner.Execute(b)
	if err != nil {
		return err
	}
	if len(res) != 1 {
		return fmt.Errorf("the runner gave %d results for one sequence", len(res))
	}
	if errors.Is(res[0].Err, sample.ErrNoToken) {
		return &CheckpointError{
			File: l.cfg.Model, Reason: "its weights make no token possible, for a prompt of zeros",
			Want: "finite weights, and logits that are numbers", Err: res[0].Err,
		}
	}
	return res[0].Err
}

func (l *stepLoop) closeRunner() (err error) {
	if l.runner == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = panicError("release of the model runner", v, debug.Stack())
		}
		if err != nil {
			err = fmt.Errorf("engine: shutdown: %w", err)
		}
	}()
	return l.runner.Close()
}

// forgetRunner lets go of what no one may reach after Shutdown. The caller holds the lifecycle's
// lock.
func (l *stepLoop) forgetRunner() {
	l.runner, l.sched, l.cache, l.counts = nil, nil, nil, Stats{}
	l.out.sched, l.out.limits.tok = nil, nil
	l.phase.on(nil)
}
