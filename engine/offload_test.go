package engine

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/offload"
	"github.com/enginetest/enginetest/engine/internal/scheduler/fakerunner"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// faulty is a connector whose transfers can fail, hang or give something else.
type faulty struct {
	offload.Connector
	store, load func(ctx context.Context) error
	corrupt     atomic.Bool
}

func (f *faulty) Store(ctx context.Context, k offload.Key, read func([]byte) error) error {
	if f.store != nil {
		if err := f.store(ctx); err != nil {
			return err
		}
	}
	return f.Connector.Store(ctx, k, read)
}

func (f *faulty) Load(ctx context.Context, k offload.Key, write func([]byte) error) error {
	if f.load != nil {
		if err := f.load(ctx); err != nil {
			return err
		}
	}
	return f.Connector.Load(ctx, k, func(src []byte) error {
		if f.corrupt.Load() {
			src = bytes.Clone(src)
			for i := 3; i < len(src); i += 4 {
				src[i] ^= 0x80 // the sign
			}
		}
		return write(src)
	})
}

// openFaulty opens an engine of the tiny Llama whose host memory can fail, with room for 24 blocks
// on the device.
func openFaulty(t *testing.T, d testDevice, f *faulty, cfg Config, timeout time.Duration) *Engine {
	t.Helper()
	cfg.Model, cfg.Device, cfg.OffloadBytes = tinyLlama, d.config, 4<<20
	cfg.KVCacheBytes, cfg.MaxModelLen = 24*16*1024, 160
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	e, err := open(t.Context(), cfg, func(c *core) (model, error) {
		c.offload.options.Timeout = timeout
		c.offload.connect = func(size int64) (offload.Connector, error) {
			var err error
			f.Connector, err = c.offload.hostMemory(size)
			return f, err
		}
		return loadCheckpoint(c)
	})
	require.NoError(t, err)
	shutdownAfter(t, e)
	return e
}

// quietTransfers waits until all copies are done.
func quietTransfers(t *testing.T, e *Engine) {
	t.Helper()
	require.Eventually(t, func() bool {
		s := e.Stats()
		return s.OffloadPending == 0 && s.KVBlocksUsed == 0
	}, time.Minute, time.Millisecond)
}

// evict fills the device with other prompts.
func evict(t *testing.T, e *Engine) {
	t.Helper()
	for i := range 6 {
		one(t, e, ids(100, 7*i+1), SamplingParams{MaxTokens: 1})
		quietTransfers(t, e)
	}
}

// prompt100 is a prompt of six full blocks and a bit, and what the engine makes of it.
var prompt100 = append(ids(99, 0), 40)

func ask12(t *testing.T, e *Engine) Output {
	t.Helper()
	outs, err := e.Generate(t.Context(), Request{
		PromptTokenIDs: prompt100,
		Sampling:       SamplingParams{MaxTokens: 12, IgnoreEOS: true},
	})
	require.NoError(t, err)
	return outs[0]
}

// expected is what an engine without a second tier makes of it.
func expected(t *testing.T, d testDevice) []int32 {
	t.Helper()
	if d.blank {
		return make([]int32, 12)
	}
	return one(t, openTiny(t, Config{Device: "cpu", MaxModelLen: 160}), prompt100,
		SamplingParams{MaxTokens: 12, IgnoreEOS: true}).TokenIDs
}

// A prefix that the device has lost comes back from host memory, and the output is the same;
// rubbish there would be noticed.
func TestOffloadHit(t *testing.T) { onDevices(t, testOffloadHit) }

func testOffloadHit(t *testing.T, d testDevice) {
	want := expected(t, d)
	f := &faulty{}
	e := openFaulty(t, d, f, Config{}, 0)
	assert.EqualValues(t, 4<<20, ledger.ByOwner(e.Holdings())["kv_offload"])
	cold := ask12(t, e)
	quietTransfers(t, e)
	s := e.Stats()
	assert.Equal(t, want, cold.Completions[0].TokenIDs)
	assert.Equal(t, 256, s.OffloadBlocks)
	assert.Equal(t, 6, s.OffloadStores, "the full blocks of 111 tokens that were computed")
	assert.Equal(t, 6, s.OffloadBlocksUsed)
	assert.EqualValues(t, 6*16*1024, s.OffloadBytes)

	assert.Equal(t, 96, ask12(t, e).CachedTokens, "it is on the device")
	assert.Zero(t, e.Stats().OffloadHits)
	evict(t, e)
	warm := ask12(t, e)
	s = e.Stats()
	assert.Equal(t, want, warm.Completions[0].TokenIDs)
	assert.Equal(t, 96, warm.CachedTokens)
	assert.Equal(t, 96, s.OffloadHits)
	assert.Zero(t, s.OffloadErrors)

	evict(t, e)
	f.corrupt.Store(true)
	got := ask12(t, e).Completions[0].TokenIDs
	assert.Equal(t, d.blank, slices.Equal(want, got), "the comparison above can fail")
}

// Nothing that goes wrong in a transfer is more than a prefix that is computed again.
func TestOffloadFails(t *testing.T) { onDevices(t, testOffloadFails) }

func testOffloadFails(t *testing.T, d testDevice) {
	want := expected(t, d)
	boom := errors.New("boom")
	for name, fault := range map[string]func(context.Context) error{
		"error": func(context.Context) error { return boom },
		"panic": func(context.Context) error { panic(boom) },
		"slow":  func(context.Context) error { time.Sleep(time.Millisecond); return nil },
		"hang":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		for _, store := range []bool{true, false} {
			t.Run(name+map[bool]string{true: " in store", false: " in load"}[store], func(t *testing.T) {
				f := &faulty{}
				if store {
					f.store = fault
				} else {
					f.load = fault
				}
				var log bytes.Buffer
				limit := time.Minute
				if name == "hang" {
					limit = 50 * time.Millisecond
				}
				e := openFaulty(t, d, f, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, limit)
				for range 2 {
					assert.Equal(t, want, ask12(t, e).Completions[0].TokenIDs)
					evict(t, e)
				}
				s := e.Stats()
				assert.Equal(t, name != "slow", s.OffloadErrors > 0)
				assert.Equal(t, name == "slow", s.OffloadHits > 0)
				require.NoError(t, e.ResetPrefixCache(t.Context()), "which puts it back to use")
				assert.Zero(t, e.Stats().OffloadBlocksUsed)
				assert.Equal(t, want, ask12(t, e).Completions[0].TokenIDs)
				require.NoError(t, e.Shutdown(t.Context()))
				if name == "hang" {
					assert.Contains(t, log.String(),
						`level=WARN msg="KV offload is out of use" error="offload: out of use: `)
				} else {
					assert.Empty(t, log.String())
				}
			})
		}
	}
}

// deaf is a transfer that hangs whatever its context says.
func deaf() (fault func(context.Context) error, hung <-chan struct{}, release func()) {
	in, out := make(chan struct{}, 1000), make(chan struct{})
	return func(context.Context) error { in <- struct{}{}; <-out; return nil }, in, sync.OnceFunc(func() { close(out) })
}

// An idle engine with copies under way can be reset: vLLM's cannot, because nothing steps it. See
// its issue 38503.
func TestResetUnderPendingOffload(t *testing.T) { onDevices(t, testResetUnderPendingOffload) }

func testResetUnderPendingOffload(t *testing.T, d testDevice) {
	f := &faulty{store: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
	e := openFaulty(t, d, f, Config{}, time.Hour) // a reset that waits for the copies hangs
	ask12(t, e)
	require.Positive(t, e.Stats().KVBlocksUsed, "copies hold blocks")
	require.Positive(t, e.Stats().OffloadPending)
	require.NoError(t, e.ResetPrefixCache(t.Context()))
	s := e.Stats()
	assert.Zero(t, s.KVBlocksUsed+s.KVBlocksCached+s.OffloadBlocksUsed)
}

// A copy that cannot be ended bounds nothing but its own place: the reset says what it is and ends
// with its context, the engine serves on.
func TestResetEndsWithItsContext(t *testing.T) { onDevices(t, testResetEndsWithItsContext) }

func testResetEndsWithItsContext(t *testing.T, d testDevice) {
	want := expected(t, d)
	store, hung, release := deaf()
	e := openFaulty(t, d, &faulty{store: store}, Config{}, time.Minute)
	defer release()
	ask12(t, e)
	<-hung
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := e.ResetPrefixCache(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Regexp(t, `^engine: prefix cache (reset not (begun|finished) \(|not reset: offload: not idle after)`,
		err.Error())
	assert.Equal(t, want, ask12(t, e).Completions[0].TokenIDs)
	release()
	require.Eventually(t, func() bool { return e.ResetPrefixCache(t.Context()) == nil }, time.Minute, time.Millisecond)
}

func TestResetUnderLoadRefuses(t *testing.T) { onDevices(t, testResetUnderLoadRefuses) }

func testResetUnderLoadRefuses(t *testing.T, d testDevice) {
	e := openFaulty(t, d, &faulty{}, Config{}, 0)
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for range 2 {
		load.Go(func() {
			for ctx.Err() == nil {
				_, err := e.Generate(ctx, Request{
					PromptTokenIDs: prompt100,
					Sampling:       SamplingParams{MaxTokens: 50, IgnoreEOS: true},
				})
				if ctx.Err() == nil {
					assert.NoError(t, err)
				}
			}
		})
	}
	// The load goes on until a reset has come to the loop while a request held blocks.
	require.Eventually(t, func() bool {
		err := e.ResetPrefixCache(t.Context())
		if err != nil {
			assert.ErrorIs(t, err, llm.ErrBlocksInUse)
		}
		return err != nil
	}, time.Minute, time.Microsecond)
	stop()
	load.Wait()
	require.Eventually(t, func() bool { return e.ResetPrefixCache(t.Context()) == nil }, time.Minute, time.Millisecond)
	assert.Zero(t, e.Stats().OffloadBlocksUsed)
}

// Shutdown with copies under way ends them first. One that cannot be ended is waited for within a
// bound, and its memory is named.
func TestShutdownUnderPendingOffload(t *testing.T) { onDevices(t, testShutdownUnderPendingOffload) }

func testShutdownUnderPendingOffload(t *testing.T, d testDevice) {
	f := &faulty{store: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
	e := openFaulty(t, d, f, Config{}, time.Minute)
	ask12(t, e)
	require.NoError(t, e.Shutdown(t.Context()))
	assert.Empty(t, e.Holdings())

	store, hung, release := deaf()
	defer release()
	e, err := open(t.Context(), Config{Model: tinyLlama, Device: d.config, OffloadBytes: 1 << 20, Logger: quiet},
		func(c *core) (model, error) {
			c.offload.options.Timeout = 50 * time.Millisecond
			c.offload.connect = func(size int64) (offload.Connector, error) {
				h, err := c.offload.hostMemory(size)
				return &faulty{Connector: h, store: store}, err
			}
			return loadCheckpoint(c)
		})
	require.NoError(t, err)
	ask12(t, e)
	<-hung
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	var late *ShutdownTimeoutError
	require.ErrorAs(t, e.Shutdown(ctx), &late)
	assert.Equal(t, "end of the KV transfers", late.Phase)
	err = e.Shutdown(t.Context())
	var leak *LeakError
	require.ErrorAs(t, err, &leak)
	require.Len(t, leak.Holdings, 1)
	assert.Equal(t, "kv_offload", leak.Holdings[0].Owner)
	var busy *offload.BusyError
	require.ErrorAs(t, err, &busy)
	assert.ErrorContains(t, err, "engine: shutdown: offload: not idle after ")
}

// Requests that end in any way while their prefix is on its way hold nothing.
func TestAbortWhileLoading(t *testing.T) { onDevices(t, testAbortWhileLoading) }

func testAbortWhileLoading(t *testing.T, d testDevice) {
	load, hung, release := deaf()
	defer release()
	f := &faulty{}
	e := openFaulty(t, d, f, Config{}, time.Minute)
	ask12(t, e)
	evict(t, e)
	f.load = load
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := e.Generate(ctx, Request{PromptTokenIDs: prompt100})
		done <- err
	}()
	<-hung
	assert.ErrorIs(t, e.ResetPrefixCache(t.Context()), llm.ErrBlocksInUse, "a load is for a request")
	one(t, e, ids(20, 5), SamplingParams{MaxTokens: 3}) // others go on
	cancel()
	assert.ErrorIs(t, <-done, context.Canceled)
	require.Eventually(t, func() bool { return e.Stats().KVBlocksUsed == 0 }, time.Minute, time.Millisecond)
	release()
}

// An engine that fails with copies under way still releases everything.
func TestFailureUnderPendingOffload(t *testing.T) { onDevices(t, testFailureUnderPendingOffload) }

func testFailureUnderPendingOffload(t *testing.T, d testDevice) {
	for _, action := range []llm.FaultAction{llm.ActError, llm.ActPanic} {
		f := &faulty{store: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		e := openFaulty(t, d, f, Config{Faults: []llm.Fault{{Point: llm.FaultForward, Action: action, After: 5}}}, time.Minute)
		_, err := e.Generate(t.Context(), Request{
			PromptTokenIDs: prompt100,
			Sampling:       SamplingParams{MaxTokens: 12, IgnoreEOS: true},
		})
		require.ErrorIs(t, err, llm.ErrEngineDead)
		require.NoError(t, e.Shutdown(t.Context()))
		assert.Empty(t, e.Holdings())
	}
}

func TestOffloadConfig(t *testing.T) { onDevices(t, testOffloadConfig) }

func testOffloadConfig(t *testing.T, d testDevice) {
	for _, tc := range []struct {
		cfg  Config
		want string
	}{
		{Config{OffloadBytes: -1}, "engine: OffloadBytes is -1, must be ≥ 0"},
		{
			Config{OffloadBytes: 1, DisablePrefixCache: true},
			"engine: OffloadBytes is 1, must be 0 with DisablePrefixCache: it keeps prefixes",
		},
		{Config{OffloadBytes: 16383}, "engine: OffloadBytes is 16383, must be at least 16384, one KV block"},
		{Config{OffloadBytes: 1 << 60}, "engine: out of device memory: OffloadBytes is 1.0 EiB, and "},
	} {
		tc.cfg.Model, tc.cfg.Device, tc.cfg.Logger = tinyLlama, d.config, quiet
		_, err := Open(t.Context(), tc.cfg)
		assert.ErrorContains(t, err, tc.want)
		var leak *LeakError
		assert.NotErrorAs(t, err, &leak)
	}
	_, err := Open(t.Context(), Config{
		Model: tinyLlama, Device: d.config, Logger: quiet, OffloadBytes: 1 << 20,
		Faults: []llm.Fault{{Point: llm.FaultAllocate, Action: llm.ActOOM, After: len(d.opens)}},
	})
	assert.ErrorIs(t, err, llm.ErrOutOfMemory)
}

// Many requests with few prompts on a device that holds one or two of them: every output is what
// the prompt gives alone.
func TestOffloadUnderLoad(t *testing.T) {
	r := &fakerunner.Runner{}
	e := openFake(t, Config{
		Model: "fake", MaxModelLen: 256, KVCacheBytes: 24 * fakerunner.BytesPerBlock,
		OffloadBytes: 100 * fakerunner.BytesPerBlock,
	}, r, false)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 40 {
				prompt := ids(60+30*(n%4), 11*(n%5))
				p := SamplingParams{MaxTokens: 1 + rand.IntN(30), IgnoreEOS: true}
				ctx, cancel := context.WithCancel(t.Context())
				if n%7 == i%7 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(rand.IntN(300))*time.Microsecond)
				}
				outs, err := e.Generate(ctx, Request{PromptTokenIDs: prompt, Sampling: p})
				cancel()
				if err != nil {
					assert.ErrorIs(t, err, context.DeadlineExceeded)
					continue
				}
				got, all := outs[0].Completions[0].TokenIDs, append([]int32(nil), prompt...)
				for _, id := range got {
					if !assert.Equal(t, r.Next(all, nil), id, "a prompt of %d, token %d", len(prompt), len(all)) {
						return
					}
					all = append(all, id)
				}
			}
		})
	}
	wg.Wait()
	quietTransfers(t, e)
	s := e.Stats()
	t.Logf("%d blocks stored, %d tokens loaded, %d errors, %d preemptions", s.OffloadStores, s.OffloadHits,
		s.OffloadErrors, s.Preemptions)
	assert.Positive(t, s.OffloadHits)
	assert.LessOrEqual(t, s.OffloadBlocksUsed, s.OffloadBlocks)
	require.NoError(t, e.ResetPrefixCache(t.Context()))
}

// A sleep drops the KV cache whatever becomes of the copies: after Wake no prefix is found that is
// not there any more.
func TestSleepUnderHangingOffload(t *testing.T) { onDevices(t, testSleepUnderHangingOffload) }

func testSleepUnderHangingOffload(t *testing.T, d testDevice) {
	want := expected(t, d)
	store, hung, release := deaf()
	e := openFaulty(t, d, &faulty{store: store}, Config{}, 50*time.Millisecond)
	defer release()
	assert.Equal(t, want, ask12(t, e).Completions[0].TokenIDs)
	<-hung
	require.NoError(t, e.Sleep(t.Context(), 1))
	require.NoError(t, e.Wake(t.Context()))
	again := ask12(t, e)
	assert.Zero(t, again.CachedTokens)
	assert.Equal(t, want, again.Completions[0].TokenIDs)
}
