package shutdown_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/fixtures/fault"
	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// 1. Every moment at which an engine can be ended.

func TestDelete(t *testing.T) {
	everywhere(t, "delete: after nothing", func(t *testing.T, cfg engine.Config) {
		r, _ := start(t, cfg)
		gone(t, r)
	})
	everywhere(t, "delete: after one request", func(t *testing.T, cfg engine.Config) {
		r, _ := start(t, cfg)
		require.Len(t, r.Generate(some(5))[0].Completions[0].TokenIDs, 5)
		gone(t, r)
	})
	everywhere(t, "delete: requests in flight", func(t *testing.T, cfg engine.Config) {
		r, e := start(t, cfg)
		answers := underLoad(t, r, e, 4, 450)
		gone(t, r)
		aborted := 0
		for _, a := range answers() {
			assert.ErrorIs(t, a.err, llm.ErrStopped)
			for _, out := range a.outs { // none of a request that came too late
				aborted++
				assert.Equal(t, llm.FinishAbort, out.Completions[0].FinishReason)
			}
		}
		assert.Positive(t, aborted)
	})
	everywhere(t, "delete: twice", func(t *testing.T, cfg engine.Config) {
		r, e := start(t, cfg)
		require.NoError(t, e.Shutdown(t.Context()))
		require.NoError(t, e.Shutdown(t.Context()))
		_, err := r.TryGenerate(some(1))
		assert.ErrorIs(t, err, llm.ErrStopped)
		gone(t, r)
	})
	everywhere(t, "delete: concurrently, under load", func(t *testing.T, cfg engine.Config) {
		r, e := start(t, cfg)
		answers := underLoad(t, r, e, 4, 450)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { assert.NoError(t, e.Shutdown(context.Background())) })
		}
		wg.Wait()
		answers()
		gone(t, r)
	})
	for _, m := range modes {
		// the handle is dropped: only the end of the process releases its memory, so the process is
		// one of its own
		m.fork = true
		in(t, m, "delete: never, the handle is dropped", func(t *testing.T, cfg engine.Config) {
			var log safeBuffer
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			func() {
				_, err := engine.Open(t.Context(), cfg)
				require.NoError(t, err)
			}()
			eventually(t, "the engine is reported", func() bool { runtime.GC(); return log.String() != "" })
			assert.Equal(t, 1, strings.Count(log.String(), "engine dropped without Shutdown"))
			assert.Contains(t, log.String(), "shutdown_test.go", "where it was opened")
		})
	}
}

type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string { b.mu.Lock(); defer b.mu.Unlock(); return b.buf.String() }

// Draining, as a server does it upon SIGTERM.

func TestDrain(t *testing.T) {
	everywhere(t, "drain: requests finish, new ones refused", func(t *testing.T, cfg engine.Config) {
		r, e := start(t, cfg)
		answers := inFlight(t, r, e, 8, 200)
		drained := make(chan error, 1)
		go func(e *engine.Engine) { drained <- e.Drain(context.Background()) }(e)
		eventually(t, "it drains", func() bool { return e.State() == engine.Draining })
		_, err := r.TryGenerate(some(1))
		assert.ErrorIs(t, err, llm.ErrDraining)
		require.NoError(t, <-drained)
		for _, a := range answers() {
			require.NoError(t, a.err)
			assert.Len(t, a.outs[0].Completions[0].TokenIDs, 200)
		}
		gone(t, r)
	})
	everywhere(t, "drain: a short deadline aborts the rest", func(t *testing.T, cfg engine.Config) {
		r, e := start(t, cfg)
		answers := underLoad(t, r, e, 8, 450)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		assert.ErrorIs(t, e.Drain(ctx), context.DeadlineExceeded)
		for _, a := range answers() {
			assert.ErrorIs(t, a.err, llm.ErrStopped)
		}
		gone(t, r)
	})
}

// 2. The engine fails after ten good passes; all that callers got is still held when it is proven
// gone.

func TestForwardError(t *testing.T) {
	for _, f := range []struct {
		name  string
		fault llm.Fault
		child bool // ends the process, so only a core in a child can have it
	}{
		{"error", fault.Error(llm.FaultForward, 10), false},
		{"panic", fault.Panic(llm.FaultForward, 10), false},
		{"hang, seen by the watchdog", fault.Hang(llm.FaultForward, 10), false},
		{"exit", fault.Exit(llm.FaultForward, 10), true},
		{"kill", fault.Kill(llm.FaultForward, 10), true},
	} {
		body := func(t *testing.T, cfg engine.Config) {
			cfg.Faults = on(cfg, f.fault)
			if f.fault.Action == llm.ActHang {
				cfg.StepTimeout = time.Second
			}
			r, e := start(t, cfg)
			answers := inFlight(t, r, e, 3, 100)
			held := answers()
			for _, a := range held {
				assert.ErrorIs(t, a.err, llm.ErrEngineDead)
			}
			_, err := r.TryGenerate(some(1))
			assert.ErrorIs(t, err, llm.ErrEngineDead)
			assert.Equal(t, engine.Failed, e.State())
			fault.MustFire(t, e)
			gone(t, r)
			runtime.KeepAlive(held)
			runtime.KeepAlive(err)
		}
		if f.child {
			inChildCores(t, "forward: "+f.name, body)
			continue
		}
		everywhere(t, "forward: "+f.name, body)
	}
}

// 3. A request that cannot be processed fails alone.

func TestProcessorError(t *testing.T) {
	everywhere(t, "processor error: the engine goes on", func(t *testing.T, cfg engine.Config) {
		r, e := start(t, cfg)
		answers := inFlight(t, r, e, 2, 100)
		for _, bad := range []engine.Request{
			{PromptTokenIDs: []int32{-1}},
			{Prompt: "x", Sampling: engine.SamplingParams{Temperature: -1}},
			{Prompt: strings.Repeat("too long ", 1000)},
		} {
			_, err := r.TryGenerate(bad)
			assert.Error(t, err)
			assert.NotErrorIs(t, err, llm.ErrEngineDead)
		}
		assert.NoError(t, e.Err())
		assert.Len(t, r.Generate(some(5))[0].Completions[0].TokenIDs, 5)
		for _, a := range answers() {
			assert.NoError(t, a.err)
		}
		gone(t, r)
	})
}

// 4. A start that fails leaves nothing, and says why.

func TestStartupError(t *testing.T) {
	for _, f := range []struct {
		name  string
		fault llm.Fault
	}{
		{"load fails", fault.Error(llm.FaultLoad, 0)},
		{"load panics", fault.Panic(llm.FaultLoad, 0)},
		{"no memory", fault.OutOfMemory(llm.FaultAllocate, 2)},
		{"first forward pass", fault.Error(llm.FaultProfile, 0)},
	} {
		everywhere(t, "start: "+f.name, func(t *testing.T, cfg engine.Config) {
			cfg.Faults = on(cfg, f.fault)
			err := failedStart(t, t.Context(), cfg)
			assert.ErrorIs(t, err, llm.ErrInjected, "the fault has fired")
			if f.fault.Action == llm.ActOOM {
				assert.ErrorIs(t, err, llm.ErrOutOfMemory)
			}
		})
	}
	everywhere(t, "start: a corrupt shard", func(t *testing.T, cfg engine.Config) {
		cfg.Model = fixtures.Checkpoint(t, fixtures.Spec{Shards: 2})
		cfg.MaxModelLen, cfg.KVCacheBytes = 0, 0
		fixtures.Break(t, cfg.Model, "missing_shard")
		err := failedStart(t, t.Context(), cfg)
		var c *engine.CheckpointError
		assert.ErrorAs(t, err, &c)
		assert.ErrorContains(t, err, fixtures.Damage("missing_shard").Message())
	})
	everywhere(t, "start: cancelled", func(t *testing.T, cfg engine.Config) {
		cfg.Faults = on(cfg, fault.Hang(llm.FaultLoad, 0))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		assert.ErrorIs(t, failedStart(t, ctx, cfg), context.Canceled)
	})
	everywhere(t, "start: it never comes", func(t *testing.T, cfg engine.Config) {
		cfg.Faults = on(cfg, fault.Hang(llm.FaultProfile, 0))
		cfg.StartTimeout = 300 * time.Millisecond
		assert.ErrorContains(t, failedStart(t, t.Context(), cfg), "Config.StartTimeout (300ms)")
	})
	for _, f := range []struct {
		name  string
		fault llm.Fault
	}{{"the core exits", fault.Exit(llm.FaultLoad, 0)}, {"the core is killed", fault.Kill(llm.FaultProfile, 0)}} {
		inChildCores(t, "start: "+f.name, func(t *testing.T, cfg engine.Config) {
			cfg.Faults = on(cfg, f.fault)
			err := failedStart(t, t.Context(), cfg)
			assert.ErrorIs(t, err, llm.ErrEngineDead)
			assert.ErrorContains(t, err, "core process ")
		})
	}
}

// 7. Sleep and the prefix cache.

func TestSleep(t *testing.T) {
	everywhere(t, "sleep: fail, wake, work", func(t *testing.T, cfg engine.Config) {
		r, e := start(t, cfg)
		before := r.GenerateGreedy("The lighthouse", 20).Text
		for level := 1; level <= 2; level++ {
			require.NoError(t, e.Sleep(t.Context(), level))
			_, err := r.TryGenerate(some(1))
			assert.ErrorIs(t, err, llm.ErrSleeping)
			assert.NoError(t, e.Err(), "it can recover")
			require.NoError(t, e.Wake(t.Context()))
			assert.Equal(t, before, r.GenerateGreedy("The lighthouse", 20).Text)
		}
		gone(t, r)
	})
	everywhere(t, "sleep: shut down asleep", func(t *testing.T, cfg engine.Config) {
		r, e := start(t, cfg)
		require.NoError(t, e.Sleep(t.Context(), 1))
		gone(t, r)
	})
	everywhere(t, "reset: refused under load, then done", func(t *testing.T, cfg engine.Config) {
		r, e := start(t, cfg)
		answers := underLoad(t, r, e, 2, 200)
		eventually(t, "a reset finds blocks in use", func() bool {
			return errors.Is(e.ResetPrefixCache(t.Context()), llm.ErrBlocksInUse)
		})
		answers()
		assert.NoError(t, e.ResetPrefixCache(t.Context()))
		assert.Zero(t, e.Stats().KVBlocksCached)
		gone(t, r)
	})
	everywhere(t, "reset: with offloads under way", func(t *testing.T, cfg engine.Config) {
		cfg.OffloadBytes, cfg.KVCacheBytes = 64<<20, cfg.KVCacheBytes/2
		r, e := start(t, cfg)
		for i := range 4 { // more than the device has room for
			req := some(200)
			req.Prompt = strings.Repeat("x", 100+i)
			r.Generate(req)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		assert.NoError(t, e.ResetPrefixCache(ctx))
		gone(t, r)
	})
}

// 8. Several engines.

func TestSeveral(t *testing.T) {
	everywhere(t, "two side by side", func(t *testing.T, cfg engine.Config) {
		alone, e := start(t, cfg)
		want, blocks := alone.GenerateGreedy("The lighthouse", 30).Text, e.Stats().KVBlocks
		gone(t, alone)

		half := cfg
		half.KVCacheBytes /= 2
		a, first := start(t, cfg)
		b, second := start(t, half)
		assert.Equal(t, blocks, first.Stats().KVBlocks)
		assert.Equal(t, blocks/2, second.Stats().KVBlocks)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				assert.Equal(t, want, a.GenerateGreedy("The lighthouse", 30).Text)
				assert.Equal(t, want, b.GenerateGreedy("The lighthouse", 30).Text)
			})
		}
		wg.Wait()
		require.NoError(t, first.Shutdown(t.Context()))
		assert.Equal(t, want, b.GenerateGreedy("The lighthouse", 30).Text, "it does not miss its neighbour")
		require.NoError(t, b.Stop().Err())
		require.NoError(t, a.Stop().Err())
	})
	for _, m := range modes {
		if m.devices == 1 {
			continue
		}
		in(t, m, "several devices say what one says", func(t *testing.T, cfg engine.Config) {
			r, e := start(t, cfg)
			assert.Equal(t, cfg.TensorParallel, e.Stats().Devices)
			on := ledger.ByDevice(e.Holdings())
			delete(on, "host") // staging
			assert.Len(t, on, cfg.TensorParallel, "each has memory")
			cfg.TensorParallel = 1
			single, _ := start(t, cfg)
			for _, prompt := range []string{"The lighthouse", "12 + 30 = ", "Once"} {
				assert.Equal(t, single.GenerateGreedy(prompt, 60).Text, r.GenerateGreedy(prompt, 60).Text)
			}
			require.NoError(t, single.Stop().Err())
			require.NoError(t, r.Stop().Err())
		})
	}
	everywhere(t, "one after the other: nothing grows", func(t *testing.T, cfg engine.Config) {
		var opts []leakcheck.Option
		if gpus() > 0 && os.Getenv("MALLOC_ARENA_MAX") == "" {
			// What the driver has freed stays with the C library, up to 64 MiB in each of 8 arenas
			// a core, and which one an engine's thread gets is chance.
			opts = append(opts, leakcheck.Allow("memory: growth of memory outside the Go heap",
				"the C library keeps what the driver has freed"))
		}
		leakcheck.Growth(t, rounds(10, 50), func(int) {
			e, err := engine.Open(t.Context(), cfg)
			require.NoError(t, err)
			_, err = e.Generate(t.Context(), some(3))
			require.NoError(t, err)
			require.NoError(t, e.Shutdown(t.Context()))
		}, opts...)
	})
}

// 9. An engine that embeds: the pooler is one more owner that must be gone.

func TestPooling(t *testing.T) {
	pools := func(cfg engine.Config) engine.Config {
		cfg.Task, cfg.Pooling = llm.TaskEmbed, engine.PoolingMean
		return cfg
	}
	everywhere(t, "pooling: embed, sleep, wake, delete", func(t *testing.T, cfg engine.Config) {
		r, e := start(t, pools(cfg))
		before := r.Embed("The lighthouse", "2+3=")
		assert.Positive(t, ledger.ByOwner(e.Holdings())["pooling"], "the pooler has an owner")
		assert.True(t, cfg.Core == engine.ChildProcess || e.Parts()["pooler"] != nil, "and is watched")
		for level := 1; level <= 2; level++ {
			require.NoError(t, e.Sleep(t.Context(), level))
			assert.Zero(t, ledger.ByOwner(e.Holdings())["pooling"])
			require.NoError(t, e.Wake(t.Context()))
		}
		for i, v := range r.Embed("The lighthouse", "2+3=") {
			assert.InDeltaSlice(t, before[i], v, 1e-5)
		}
		gone(t, r)
	})
	everywhere(t, "pooling: requests in flight", func(t *testing.T, cfg engine.Config) {
		r, e := start(t, pools(cfg))
		text := strings.Repeat("The lighthouse keeper wrote. ", 10)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				var err error
				for err == nil {
					_, err = e.Embed(context.Background(), text, text)
				}
				assert.ErrorIs(t, err, llm.ErrStopped)
			})
		}
		eventually(t, "the requests run", func() bool { return e.Stats().Finished > 8 })
		require.NoError(t, e.Shutdown(t.Context()))
		wg.Wait()
		gone(t, r)
	})
	everywhere(t, "pooling: a forward pass fails", func(t *testing.T, cfg engine.Config) {
		cfg.Faults = on(cfg, fault.Error(llm.FaultForward, 2))
		r, e := start(t, pools(cfg))
		var err error
		for err == nil {
			_, err = e.Embed(t.Context(), "The lighthouse")
		}
		assert.ErrorIs(t, err, llm.ErrEngineDead)
		fault.MustFire(t, e)
		gone(t, r)
		runtime.KeepAlive(err)
	})
}

// 10. An engine that speculates: the draft model's weights and KV cache are owners that must be gone,
// also when it fails in the middle of a draft.

func TestSpeculation(t *testing.T) {
	drafts := func(cfg engine.Config) engine.Config {
		cfg.Speculative = engine.Speculative{Model: fixtures.Bundled(), NumTokens: 3}
		return cfg
	}
	everywhere(t, "speculation: generate, sleep, wake, delete", func(t *testing.T, cfg engine.Config) {
		r, e := start(t, drafts(cfg))
		before := r.Generate(some(40))[0].Completions[0].TokenIDs
		assert.Positive(t, e.Stats().SpecAcceptedTokens)
		assert.True(t, cfg.Core == engine.ChildProcess || e.Parts()["draft model runner"] != nil, "it is watched")
		for level := 1; level <= 2; level++ {
			held := ledger.ByOwner(e.Holdings())
			assert.Positive(t, held["draft_weights"])
			assert.Positive(t, held["draft_kv_cache"])
			require.NoError(t, e.Sleep(t.Context(), level))
			assert.Zero(t, ledger.ByOwner(e.Holdings())["draft_kv_cache"])
			require.NoError(t, e.Wake(t.Context()))
		}
		assert.Equal(t, before, r.Generate(some(40))[0].Completions[0].TokenIDs)
		gone(t, r)
	})
	dies := func(of llm.Fault) func(t *testing.T, cfg engine.Config) {
		return func(t *testing.T, cfg engine.Config) {
			cfg.Faults = on(cfg, of)
			r, e := start(t, drafts(cfg))
			for _, a := range inFlight(t, r, e, 3, 100)() {
				assert.ErrorIs(t, a.err, llm.ErrEngineDead)
			}
			fault.MustFire(t, e)
			gone(t, r)
		}
	}
	everywhere(t, "speculation: a draft fails in the middle", dies(fault.Error(llm.FaultDraft, 10)))
	inChildCores(t, "speculation: killed in the middle of a draft", dies(fault.Kill(llm.FaultDraft, 10)))
}
