// Package engine is the bundled inference engine: vLLM V1's shape in Go, small enough to be read,
// with a life that can be checked.
//
// [Open] loads a Hugging Face checkpoint and starts one goroutine that computes in steps: a
// scheduler with continuous batching, chunked prefill and preemption, a paged KV cache with a
// prefix cache, a model runner on one device or on several that share the model
// (Config.TensorParallel), a sampler. [Engine.Generate] and [Engine.Stream] hand requests to it.
// [Engine.Shutdown] ends it and proves that the device memory is back.
//
// What it prints when it fails:
//
//	engine: Temperature is 3, must be in [0, 2]
//	engine: TensorParallel is 3, must be a number of devices that can share the model: num_attention_heads is 8 (possible: 1, 2, 4 or 8)
//	engine: prompt does not fit: 1200 tokens, at most 1023 with MaxModelLen 1024 and one token of output
//	engine: out of device memory: one sequence of MaxModelLen 512 needs 32 KV blocks (512.0 KiB), KVCacheBytes gives 4 (64.0 KiB): lower …
//	engine: dead: step 11 (4 tokens, 4 sequences): engine: injected fault at forward
//	engine: dead: step 11 (4 tokens, 4 sequences): rank 1 (cpu:1): engine: injected fault at forward
//	engine: prefix cache not reset: kvcache: 3 of 64 blocks are in use by running sequences
//	engine: prefix cache not reset: offload: not idle after 50ms, transfers under way: 1: store of block 9f86d081 for 12ms: context deadline exceeded
//	engine: flush: offload: 1 of 6 blocks were not stored: connector: every place for the block is being written
//	engine: weights not woken: checkpoint: m/model.safetensors: changed since it was first loaded: got 7.3 MiB of 2026-…, want 7.3 MiB of 2026-…
//	engine: KV cache not woken: engine: out of device memory: the KV cache has 1.0 GiB, and 512.0 MiB of 2.0 GiB are free
//	engine: shutdown not finished: a forward pass has been running for 30s: context deadline exceeded
//	engine: drain: 3 of 10 requests aborted after 2s: context deadline exceeded
//	engine: dead: step 11 hangs: a forward pass on rank 1 (cpu:1) has been running for 5m0s; Config.StepTimeout is 5m0s
//	engine: dead: core process 4711 was killed by SIGKILL; its log: …
//	engine: core process killed: SIGKILL ended it, because it did not shut down by itself: …
//	opening MODEL: loading: the engine has not started within Config.StartTimeout (10m0s): context deadline exceeded
//	engine: 64.0 MiB of device memory still held after shutdown, allocations: 1
//	      64.0 MiB  kv_cache     cpu:0 (mapped)
package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/enginetest/enginetest/internal/engines"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// Engine serves one model. Its methods are safe for concurrent use. Shut it down when done: one
// that is dropped is reported through Config.Logger, and keeps its memory.
type Engine struct {
	b       backend
	dropped runtime.Cleanup
	chats   chatTemplates
}

// Open loads a model and starts an engine. The context is for the loading only: when it ends, Open
// gives up and releases what it has.
//
// Errors: [*llm.ParamError], [llm.ErrOutOfMemory] with the numbers, [*CheckpointError], the
// context's, or [llm.ErrEngineDead] when a child core died of it.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	if cfg.Core == ChildProcess {
		return openChild(ctx, cfg)
	}
	return open(ctx, cfg, loadCheckpoint)
}

func open(ctx context.Context, cfg Config, load loader) (*Engine, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.StartTimeout, startTimeoutError{cfg.StartTimeout})
	defer cancel()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("opening %s: %w", cfg.Model, context.Cause(ctx))
	}
	c := newCore(cfg)
	c.openedAt = callers(3)
	stop := context.AfterFunc(ctx, c.cancel)
	err = c.build(ctx, load)
	if !stop() || err != nil {
		if ctx.Err() != nil {
			_, where, _ := c.loop.phase.now()
			cause := fmt.Errorf("%s: %w", where, context.Cause(ctx))
			if err == nil || err == ctx.Err() { //nolint:errorlint // itself: what wraps it says more
				err = cause
			} else {
				err = errors.Join(cause, err)
			}
		}
		c.release()
		return nil, errors.Join(fmt.Errorf("opening %s: %w", cfg.Model, err), c.result)
	}
	books := c.ledger.Books()
	c.entry = engines.Open(engines.Entry{Place: engines.Place(), Holdings: books.Holdings})
	go c.run()
	return newEngine(c, c.entry), nil
}

func newEngine(b backend, entry *engines.Handle) *Engine {
	e := &Engine{b: b}
	entry.Own(e)
	e.dropped = runtime.AddCleanup(e, backend.reportDropped, b)
	return e
}

// startTimeoutError is why Open gave up when its own limit came first.
type startTimeoutError struct{ limit time.Duration }

func (e startTimeoutError) Error() string {
	return fmt.Sprintf("the engine has not started within Config.StartTimeout (%s): %s", e.limit, context.DeadlineExceeded)
}

func (startTimeoutError) Unwrap() error { return context.DeadlineExceeded }

// Config is what Open was given, with every default filled in.
func (e *Engine) Config() Config { return e.b.config() }

// EOSTokenIDs are the tokens that end a sequence, as the checkpoint says: generation_config.json's,
// else config.json's.
func (e *Engine) EOSTokenIDs() []int32 { return slices.Clone(e.b.eosTokenIDs()) }

// State is where the engine stands in its life.
func (e *Engine) State() State { return e.b.counters().State }

// Stats returns the counters of the last step. A request that has been answered is in them.
func (e *Engine) Stats() Stats { return e.b.counters() }

// Holdings lists the device memory that the engine owns now; nothing after a Shutdown that went
// well.
func (e *Engine) Holdings() []ledger.Holding { return e.b.holdings() }

// Faults says which of Config.Faults struck.
func (e *Engine) Faults() []llm.FaultReport { return e.b.faultReports() }

// Done is closed when the engine takes no more work for good: it has failed, or it was shut down.
// Err says which.
func (e *Engine) Done() <-chan struct{} { return e.b.over() }

// Err is nil while the engine lives, [llm.ErrEngineDead] with the cause when it failed, and else
// [llm.ErrStopped].
func (e *Engine) Err() error { return e.b.err() }

// Parts lists what no one may reach after Shutdown, by name, for checks that hold them weakly.
// Nothing is left to list after Shutdown.
func (e *Engine) Parts() map[string]any { return e.b.parts() }

// PIDs lists the engine's own processes: the core of a [ChildProcess] engine until it is reaped,
// else none.
func (e *Engine) PIDs() []int { return e.b.pids() }

// Encode turns text into token ids, with the special tokens that the tokenizer puts around a
// prompt. Errors: [llm.ErrNoTokenizer], [llm.ErrStopped].
func (e *Engine) Encode(text string) ([]int32, error) { return e.b.encode(text) }

// Decode turns token ids into text, without special tokens. Errors: [llm.ErrNoTokenizer],
// [llm.ErrStopped].
func (e *Engine) Decode(ids []int32) (string, error) { return e.b.decode(ids) }

// Abort ends the live request with this ID: its output is what it has so far, with FinishAbort. It
// reports whether there was such a request.
func (e *Engine) Abort(id string) bool { return e.b.abortID(id) }

// ResetPrefixCache forgets all cached prompts. [llm.ErrBlocksInUse], with the number, when
// sequences still use some.
func (e *Engine) ResetPrefixCache(ctx context.Context) error {
	defer runtime.KeepAlive(e)
	if err := checkContext(ctx); err != nil {
		return err
	}
	return e.b.resetPrefixCache(ctx)
}

// checkContext refuses a nil context here, where only its caller is hurt: the loop, which serves
// everybody, would die of it.
func checkContext(ctx context.Context) error {
	if ctx == nil {
		return paramError("ctx", nil, "a context, context.Background() at least")
	}
	return nil
}
