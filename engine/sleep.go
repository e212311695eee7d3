package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/ledger"
)

// What Wake can bring back by itself.
const (
	TagWeights = "weights"  // and whatever else the device holds besides the KV cache
	TagKVCache = "kv_cache" // empty
)

// Sleep releases all device memory until Wake. Level 1 keeps the weights on the host: on a GPU as
// a copy in page-locked memory, on the CPU device as the mapped files of the checkpoint; the ledger
// lists either under "host". Level 2 keeps nothing: Wake loads the checkpoint again. An engine that
// sleeps at level 1 can go to level 2; otherwise a second Sleep releases what a Wake has brought
// back.
//
// Running requests end with FinishAbort and what they have, and their callers get [ErrSleeping], as
// does who comes while the engine sleeps: wait for your requests before, when they are to finish.
// The prefix cache is emptied, in host memory too, because Wake may find other weights there.
// Stats, Holdings, Encode and Decode work as ever.
//
// Errors: [*ParamError], a state's refusal, [errors.ErrUnsupported] when the device cannot. Memory
// that would not go is another, which Holdings lists: the engine sleeps all the same, and Wake,
// Sleep and Shutdown try again. When ctx ends first, the engine falls asleep later.
func (e *Engine) Sleep(ctx context.Context, level int) error {
	defer runtime.KeepAlive(e)
	if err := checkContext(ctx); err != nil {
		return err
	}
	return e.b.sleep(ctx, level)
}

// Wake undoes Sleep: for the given tags ([TagWeights], [TagKVCache]), or for all. The engine takes
// work again once nothing sleeps. Of an engine that does not sleep it asks nothing.
//
// A call that fails has changed nothing: the engine sleeps as before, holds what it held, and can
// be woken again. Errors: [*ParamError] for a tag, [ErrOutOfMemory], [*CheckpointError] when the
// files of level 2 are gone or not what they were, a state's refusal. When ctx ends first, the
// engine wakes later.
func (e *Engine) Wake(ctx context.Context, tags ...string) error {
	defer runtime.KeepAlive(e)
	if err := checkContext(ctx); err != nil {
		return err
	}
	return e.b.wakeUp(ctx, tags)
}

func (c *core) sleep(ctx context.Context, level int) error {
	if level != 1 && level != 2 {
		return paramError("level", level, "1 (weights stay on the host) or 2 (nothing stays)")
	}
	return c.ask(ctx, "falling asleep", func() error {
		if c.state == Running {
			if _, ok := c.runner.(modelrunner.Sleeper); !ok {
				return fmt.Errorf("engine: sleep: %w by device %s", errors.ErrUnsupported, c.cfg.Device)
			}
			c.state.to(Sleeping) // before the loop comes to it: no one starts a request any more
		}
		return c.sleepRefusal()
	}, func(ctx context.Context) error { return c.fallAsleep(ctx, level) })
}

func (c *core) wakeUp(ctx context.Context, tags []string) error {
	for _, t := range tags {
		if t != TagWeights && t != TagKVCache {
			return paramError("tag", fmt.Sprintf("%q", t), fmt.Sprintf("%q or %q", TagWeights, TagKVCache))
		}
	}
	wanted := func(tag string) bool { return len(tags) == 0 || slices.Contains(tags, tag) }
	return c.ask(ctx, "waking up", func() error {
		if c.state == Running {
			return nil
		}
		return c.sleepRefusal()
	}, func(context.Context) error { return c.getUp(wanted(TagWeights), wanted(TagKVCache)) })
}

// sleepRefusal is why an engine can neither sleep nor wake; the caller holds the lock.
func (c *core) sleepRefusal() error {
	if err := c.state.refusal(c.cause); !errors.Is(err, ErrSleeping) {
		return err
	}
	return nil
}

// ask has the loop do something, and waits for its answer. check runs at once, with the lock held.
// The context of do ends with ctx and with the engine.
func (c *core) ask(ctx context.Context, what string, check func() error, do func(context.Context) error) error {
	result := make(chan error, 1)
	c.mu.Lock()
	if err := check(); err != nil {
		c.mu.Unlock()
		return err
	}
	c.post(func() {
		c.enter(what)
		ctx, cancel := context.WithCancel(ctx)
		defer context.AfterFunc(c.ctx, cancel)()
		defer cancel()
		err := public(do(ctx))
		if fatal(err) {
			c.broken = err // who asked is told with everybody
			return
		}
		c.answers = append(c.answers, func() { result <- err })
	})
	c.mu.Unlock()
	select {
	case err := <-result:
		return err
	case <-c.done:
		return c.err()
	case <-ctx.Done():
	}
	select {
	case err := <-result: // just in time
		return err
	default:
		return c.unfinished(what, ctx.Err())
	}
}

// unfinished says how far the loop has come with what it was asked for.
func (c *core) unfinished(what string, cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	how, phase := "not begun", c.current()
	if c.phase == what {
		how = "not finished"
	}
	return fmt.Errorf("engine: %s %s (%s, for %s): %w", what, how, phase, time.Since(c.since).Round(time.Millisecond),
		cause)
}

// fallAsleep ends all requests, forgets all prefixes and releases the device memory.
func (c *core) fallAsleep(ctx context.Context, level int) error {
	c.mu.Lock()
	c.state.to(Sleeping) // again, when a Wake came first
	if err := c.sleepRefusal(); err != nil {
		c.mu.Unlock()
		return err
	}
	var live []*request
	for _, r := range c.requests {
		live = append(live, r)
	}
	c.mu.Unlock()
	for _, r := range live {
		c.endRequest(r, FinishAbort, ErrSleeping)
	}
	if c.tier != nil {
		if err := c.tier.Reset(ctx); err != nil { // it is out of use then
			c.log.Warn("KV offload is out of use", "error", err)
		}
	}
	if err := c.cache.Reset(); err != nil {
		panic(err) // every request has ended, and every copy was given up
	}
	s := c.runner.(modelrunner.Sleeper)
	held := c.ledger.Bytes()
	if c.counts.WeightsAsleep { // what is not there cannot be kept
		level = max(level, c.counts.SleepLevel)
	}
	err := s.Sleep(level == 1)
	c.counts.SleepLevel = level
	c.counts.WeightsAsleep, c.counts.KVCacheAsleep = true, true
	c.log.Debug("engine asleep", "level", level, "ended", len(live), "held_before", ledger.FormatBytes(held),
		"holds", ledger.FormatBytes(c.ledger.Bytes()))
	if err != nil {
		return fmt.Errorf("engine: asleep, but not all memory was given back: %w", err)
	}
	return nil
}

// getUp wakes parts; those that it woke sleep again when a later one does not wake.
func (c *core) getUp(weights, kv bool) error {
	weights, kv = weights && c.counts.WeightsAsleep, kv && c.counts.KVCacheAsleep
	if !weights && !kv {
		return nil
	}
	s := c.runner.(modelrunner.Sleeper)
	if weights {
		if err := s.WakeWeights(); err != nil {
			return fmt.Errorf("engine: weights not woken: %w", err)
		}
	}
	if kv {
		if err := c.wakeKV(); err != nil {
			err = fmt.Errorf("engine: KV cache not woken: %w", err)
			if weights {
				err = errors.Join(err, s.Sleep(c.counts.SleepLevel == 1))
			}
			return err
		}
	}
	c.counts.WeightsAsleep = c.counts.WeightsAsleep && !weights
	c.counts.KVCacheAsleep = c.counts.KVCacheAsleep && !kv
	if !c.counts.WeightsAsleep && !c.counts.KVCacheAsleep {
		c.counts.SleepLevel = 0
		c.mu.Lock()
		if c.state == Sleeping { // not Draining or ShuttingDown meanwhile
			c.state.to(Running)
		}
		c.mu.Unlock()
	}
	return nil
}

// wakeKV allocates a KV cache as large as before, when there is room for it.
func (c *core) wakeKV() error {
	blocks := c.cache.Stats().Blocks
	free, total, err := c.runner.FreeMemory()
	if err != nil {
		return fmt.Errorf("cannot measure device memory: %w", err)
	}
	if need := int64(blocks) * c.runner.KVBytesPerBlock(); need > free {
		return fmt.Errorf("%w: the KV cache has %s, and %s of %s are free", ErrOutOfMemory,
			ledger.FormatBytes(need), ledger.FormatBytes(free), ledger.FormatBytes(total))
	}
	return c.runner.AllocateKV(blocks)
}
