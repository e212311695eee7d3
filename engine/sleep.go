package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
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
// Running requests end with FinishAbort and what they have, and their callers get
// [llm.ErrSleeping], as does who comes while the engine sleeps: wait for your requests before, when
// they are to finish. The prefix cache is emptied, in host memory too, because Wake may find other
// weights there. Stats, Holdings, Encode and Decode work as ever.
//
// Errors: [*llm.ParamError], a state's refusal, [errors.ErrUnsupported] when the device cannot.
// Memory that would not go is another, which Holdings lists: the engine sleeps all the same, and
// Wake, Sleep and Shutdown try again. When ctx ends first, the engine falls asleep later.
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
// be woken again. Errors: [*llm.ParamError] for a tag, [llm.ErrOutOfMemory], [*CheckpointError]
// when the files of level 2 are gone or not what they were, a state's refusal. When ctx ends first,
// the engine wakes later.
func (e *Engine) Wake(ctx context.Context, tags ...string) error {
	defer runtime.KeepAlive(e)
	if err := checkContext(ctx); err != nil {
		return err
	}
	return e.b.wakeUp(ctx, tags)
}

// sleeper puts an engine to sleep and wakes it.
type sleeper struct {
	cfg    *Config
	log    *slog.Logger
	ledger *ledger.Ledger
	life   *lifecycle
	reqs   *requestTable
	loop   *stepLoop

	grammars *grammars
}

func (s *sleeper) sleep(ctx context.Context, level int) error {
	if level != 1 && level != 2 {
		return paramError("level", level, "1 (weights stay on the host) or 2 (nothing stays)")
	}
	return s.loop.ask(ctx, "falling asleep", func() error {
		if s.life.state == Running {
			if _, ok := s.loop.runner.(modelrunner.Sleeper); !ok {
				return fmt.Errorf("engine: sleep: %w by device %s", errors.ErrUnsupported, s.cfg.Device)
			}
			s.life.state.to(Sleeping) // before the loop comes to it: no one starts a request any more
		}
		return s.sleepRefusal()
	}, func(ctx context.Context) error { return s.fallAsleep(ctx, level) })
}

func (s *sleeper) wakeUp(ctx context.Context, tags []string) error {
	for _, t := range tags {
		if t != TagWeights && t != TagKVCache {
			return paramError("tag", fmt.Sprintf("%q", t), fmt.Sprintf("%q or %q", TagWeights, TagKVCache))
		}
	}
	wanted := func(tag string) bool { return len(tags) == 0 || slices.Contains(tags, tag) }
	return s.loop.ask(ctx, "waking up", func() error {
		if s.life.state == Running {
			return nil
		}
		return s.sleepRefusal()
	}, func(context.Context) error { return s.getUp(wanted(TagWeights), wanted(TagKVCache)) })
}

// sleepRefusal is why an engine can neither sleep nor wake; the caller holds the lock.
func (s *sleeper) sleepRefusal() error {
	if err := s.life.refusal(); !errors.Is(err, llm.ErrSleeping) {
		return err
	}
	return nil
}

// fallAsleep ends all requests, forgets all prefixes and releases the device memory.
func (s *sleeper) fallAsleep(ctx context.Context, level int) error {
	s.life.mu.Lock()
	s.life.state.to(Sleeping) // again, when a Wake came first
	if err := s.sleepRefusal(); err != nil {
		s.life.mu.Unlock()
		return err
	}
	live := s.reqs.list()
	s.life.mu.Unlock()
	for _, r := range live {
		s.loop.out.end(r, llm.FinishAbort, llm.ErrSleeping)
	}
	if err := s.grammars.drop(false); err != nil {
		s.log.Warn("compiled grammars are not in the ledger", "error", err)
	}
	if s.loop.offload.tier != nil {
		if err := s.loop.offload.tier.Reset(ctx); err != nil { // it is out of use then
			s.loop.offload.warn(err)
		}
	}
	if err := s.loop.cache.Reset(); err != nil {
		panic(err) // every request has ended, and every copy was given up
	}
	runner, counts := s.loop.runner.(modelrunner.Sleeper), &s.loop.counts
	held := s.ledger.Bytes()
	if counts.WeightsAsleep { // what is not there cannot be kept
		level = max(level, counts.SleepLevel)
	}
	err := runner.Sleep(level == 1)
	counts.SleepLevel = level
	counts.WeightsAsleep, counts.KVCacheAsleep = true, true
	s.log.Debug("engine asleep", "level", level, "ended", len(live), "held_before", ledger.FormatBytes(held),
		"holds", ledger.FormatBytes(s.ledger.Bytes()))
	if err != nil {
		return fmt.Errorf("engine: asleep, but not all memory was given back: %w", err)
	}
	return nil
}

// getUp wakes parts; those that it woke sleep again when a later one does not wake.
func (s *sleeper) getUp(weights, kv bool) error {
	counts := &s.loop.counts
	weights, kv = weights && counts.WeightsAsleep, kv && counts.KVCacheAsleep
	if !weights && !kv {
		return nil
	}
	runner := s.loop.runner.(modelrunner.Sleeper)
	if weights {
		if err := runner.WakeWeights(); err != nil {
			return fmt.Errorf("engine: weights not woken: %w", err)
		}
	}
	if kv {
		if err := s.wakeKV(); err != nil {
			err = fmt.Errorf("engine: KV cache not woken: %w", err)
			if weights {
				err = errors.Join(err, runner.Sleep(counts.SleepLevel == 1))
			}
			return err
		}
	}
	counts.WeightsAsleep = counts.WeightsAsleep && !weights
	counts.KVCacheAsleep = counts.KVCacheAsleep && !kv
	if !counts.WeightsAsleep && !counts.KVCacheAsleep {
		counts.SleepLevel = 0
		s.life.mu.Lock()
		if s.life.state == Sleeping { // not Draining or ShuttingDown meanwhile
			s.life.state.to(Running)
		}
		s.life.mu.Unlock()
	}
	return nil
}

// wakeKV allocates a KV cache as large as before, when there is room for it.
func (s *sleeper) wakeKV() error {
	blocks := s.loop.cache.Stats().Blocks
	free, total, err := s.loop.runner.FreeMemory()
	if err != nil {
		return fmt.Errorf("cannot measure device memory: %w", err)
	}
	if need := int64(blocks) * s.loop.runner.KVBytesPerBlock(); need > free {
		return fmt.Errorf("%w: the KV cache has %s, and %s of %s are free", llm.ErrOutOfMemory,
			ledger.FormatBytes(need), ledger.FormatBytes(free), ledger.FormatBytes(total))
	}
	return s.loop.runner.AllocateKV(blocks)
}
