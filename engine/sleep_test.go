package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/scheduler/fakerunner"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// greedy returns what every golden prompt makes, and checks it.
func (g golden) check(t *testing.T, e *Engine) {
	t.Helper()
	outs, err := e.Generate(t.Context(), g.requests()...)
	require.NoError(t, err)
	for i, out := range outs {
		require.Equal(t, g.Prompts[i].Greedy, out.Completions[0].TokenIDs)
	}
}

func onDevice(hs []ledger.Holding) (device, host int64) {
	for _, h := range hs {
		if h.Device == "host" {
			host += h.Bytes
		} else {
			device += h.Bytes
		}
	}
	return device, host
}

func TestSleep(t *testing.T) { onDevices(t, testSleep) }

func testSleep(t *testing.T, d testDevice) {
	g := d.golden(t)
	for level := 1; level <= 2; level++ {
		t.Run(fmt.Sprint("level ", level), func(t *testing.T) {
			e := openTiny(t, Config{Device: d.config})
			g.check(t, e)
			before, kept := bytesOf(e), int64(0)
			if level == 1 {
				kept = d.kept(t, e)
			}
			for range 3 {
				require.NoError(t, e.Sleep(t.Context(), level))
				assert.Equal(t, Sleeping, e.State())
				device, host := onDevice(e.Holdings())
				assert.Zero(t, device, "the device has everything back")
				assert.Equal(t, kept, host, "what is kept is said")
				s := e.Stats()
				assert.Equal(t, level, s.SleepLevel)
				assert.True(t, s.WeightsAsleep && s.KVCacheAsleep)
				assert.Zero(t, s.KVBlocksUsed+s.KVBlocksCached+s.Running+s.Waiting)

				_, err := e.Generate(t.Context(), Request{PromptTokenIDs: ids(3, 0)})
				assert.ErrorIs(t, err, llm.ErrSleeping)
				for _, err := range e.Stream(t.Context(), Request{PromptTokenIDs: ids(3, 0)}) {
					assert.ErrorIs(t, err, llm.ErrSleeping)
				}
				assert.ErrorIs(t, e.ResetPrefixCache(t.Context()), llm.ErrSleeping)
				assert.NoError(t, e.Err())

				require.NoError(t, e.Wake(t.Context()))
				assert.Equal(t, Running, e.State())
				assert.Equal(t, before, bytesOf(e))
				assert.Zero(t, e.Stats().SleepLevel)
				out, err := e.Generate(t.Context(), g.requests()...)
				require.NoError(t, err)
				assert.Zero(t, out[0].CachedTokens, "the prefix cache was emptied")
				g.check(t, e)
			}
			require.NoError(t, e.Wake(t.Context()), "it is awake")
		})
	}
}

func TestWakeInParts(t *testing.T) { onDevices(t, testWakeInParts) }

func testWakeInParts(t *testing.T, d testDevice) {
	g := d.golden(t)
	for _, level := range []int{1, 2} {
		for _, tags := range [][2]string{{TagWeights, TagKVCache}, {TagKVCache, TagWeights}} {
			t.Run(fmt.Sprint(level, tags), func(t *testing.T) {
				e := openTiny(t, Config{Device: d.config})
				full := bytesOf(e)
				awake, staged := onDevice(e.Holdings())
				require.NoError(t, e.Sleep(t.Context(), level))
				require.NoError(t, e.Wake(t.Context(), tags[0]))
				require.NoError(t, e.Wake(t.Context(), tags[0]), "again is nothing")
				assert.Equal(t, Sleeping, e.State())
				device, host := onDevice(e.Holdings())
				if tags[0] == TagKVCache {
					assert.Equal(t, full["kv_cache"], device)
				} else {
					assert.Equal(t, awake-full["kv_cache"], device)
					assert.Equal(t, staged, host, "nothing is kept beside")
				}
				assert.Equal(t, tags[0] != TagWeights, e.Stats().WeightsAsleep)
				assert.Equal(t, tags[0] != TagKVCache, e.Stats().KVCacheAsleep)
				_, err := e.Generate(t.Context(), Request{PromptTokenIDs: ids(3, 0)})
				assert.ErrorIs(t, err, llm.ErrSleeping)

				require.NoError(t, e.Sleep(t.Context(), level), "back to sleep from half awake")
				device, _ = onDevice(e.Holdings())
				assert.Zero(t, device)
				require.NoError(t, e.Wake(t.Context(), tags[0]))
				require.NoError(t, e.Wake(t.Context(), tags[1]))
				assert.Equal(t, Running, e.State())
				assert.Equal(t, full, bytesOf(e))
				g.check(t, e)
			})
		}
	}
}

// A deeper sleep drops what a lighter one kept; a lighter one after it brings nothing back.
func TestSleepDeeper(t *testing.T) { onDevices(t, testSleepDeeper) }

func testSleepDeeper(t *testing.T, d testDevice) {
	g := d.golden(t)
	e := openTiny(t, Config{Device: d.config})
	require.NoError(t, e.Sleep(t.Context(), 1))
	require.NotEmpty(t, bytesOf(e))
	require.NoError(t, e.Sleep(t.Context(), 2))
	assert.Empty(t, bytesOf(e))
	require.NoError(t, e.Sleep(t.Context(), 1))
	assert.Equal(t, 2, e.Stats().SleepLevel)

	require.NoError(t, e.Wake(t.Context(), TagWeights))
	require.NoError(t, e.Sleep(t.Context(), 1), "now there are weights to keep")
	assert.Equal(t, 1, e.Stats().SleepLevel)
	_, host := onDevice(e.Holdings())
	assert.Positive(t, host)
	require.NoError(t, e.Wake(t.Context()))
	g.check(t, e)
}

func TestSleepEndsWhatRuns(t *testing.T) { onDevices(t, testSleepEndsWhatRuns) }

func testSleepEndsWhatRuns(t *testing.T, d testDevice) {
	e := openTiny(t, Config{Device: d.config})
	type result struct {
		outs []Output
		err  error
	}
	// how many of three requests it ended; the others were over just before, and came again too
	// late
	fallAsleep := func() (ended int) {
		results := make(chan result)
		for i := range 3 {
			go func() {
				var r result
				for r.err == nil { // again, when it was over before the others ran
					r.outs, r.err = e.Generate(context.Background(),
						Request{PromptTokenIDs: ids(5, i), Sampling: SamplingParams{MaxTokens: 400, IgnoreEOS: true}})
				}
				results <- r
			}()
		}
		before := e.Stats()
		require.Eventually(t, func() bool {
			s := e.Stats()
			return s.Running == 3 && s.OutputTokens > before.OutputTokens+10
		}, time.Minute, time.Millisecond)
		require.NoError(t, e.Sleep(t.Context(), 1))
		for range 3 {
			r := <-results
			assert.ErrorIs(t, r.err, llm.ErrSleeping)
			for _, out := range r.outs {
				ended++
				assert.Equal(t, llm.FinishAbort, out.Completions[0].FinishReason)
			}
		}
		assert.Equal(t, before.Aborted+ended, e.Stats().Aborted)
		require.NoError(t, e.Wake(t.Context()))
		return ended
	}
	for attempt := 0; fallAsleep() < 3; attempt++ {
		require.Less(t, attempt, 100, "no sleep ended three requests")
	}
	d.golden(t).check(t, e)
}

func TestShutdownFromSleep(t *testing.T) { onDevices(t, testShutdownFromSleep) }

func testShutdownFromSleep(t *testing.T, d testDevice) {
	for _, level := range []int{1, 2} {
		for _, woken := range [][]string{nil, {TagWeights}, {TagKVCache}} {
			e := openTiny(t, Config{Device: d.config, OffloadBytes: 1 << 20})
			require.NoError(t, e.Sleep(t.Context(), level))
			if woken != nil {
				require.NoError(t, e.Wake(t.Context(), woken...))
			}
			require.NoError(t, e.Shutdown(t.Context()))
			assert.Empty(t, e.Holdings())
			assert.ErrorIs(t, e.Wake(t.Context()), llm.ErrStopped)
			assert.ErrorIs(t, e.Sleep(t.Context(), 1), llm.ErrStopped)
		}
	}
}

func TestSleepRefusals(t *testing.T) {
	e := openTiny(t, Config{Device: "cpu", Faults: []llm.Fault{{Point: llm.FaultForward, Action: llm.ActError}}})
	var wrong *llm.ParamError
	require.ErrorAs(t, e.Sleep(t.Context(), 0), &wrong)
	assert.EqualError(t, wrong, "engine: level is 0, must be 1 (weights stay on the host) or 2 (nothing stays)")
	require.ErrorAs(t, e.Wake(t.Context(), TagWeights, "graphs"), &wrong)
	assert.EqualError(t, wrong, `engine: tag is "graphs", must be "weights" or "kv_cache"`)
	assert.Equal(t, Running, e.State())

	_, err := e.Generate(t.Context(), Request{PromptTokenIDs: ids(3, 0)})
	require.ErrorIs(t, err, llm.ErrEngineDead)
	assert.ErrorIs(t, e.Sleep(t.Context(), 1), llm.ErrEngineDead)
	assert.ErrorIs(t, e.Wake(t.Context()), llm.ErrEngineDead)

	fake := openFake(t, Config{Model: "fake"}, &fakerunner.Runner{}, false)
	assert.ErrorIs(t, fake.Sleep(t.Context(), 1), errors.ErrUnsupported)
	assert.Equal(t, Running, fake.State())
	one(t, fake, ids(3, 0), SamplingParams{})

	drained := openTiny(t, Config{Device: "cpu"})
	require.NoError(t, drained.Sleep(t.Context(), 1))
	require.NoError(t, drained.Drain(t.Context()))
	assert.ErrorIs(t, drained.Wake(t.Context()), llm.ErrDraining)
	assert.ErrorIs(t, drained.Sleep(t.Context(), 2), llm.ErrDraining)
}

// Everybody sleeps, wakes and asks at once: every error is a known one, and the engine is whole in
// the end.
func TestSleepUnderLoad(t *testing.T) { onDevices(t, testSleepUnderLoad) }

func testSleepUnderLoad(t *testing.T, d testDevice) {
	g := d.golden(t)
	e := openTiny(t, Config{Device: d.config, OffloadBytes: 1 << 20, KVCacheBytes: 60 * 16 * 1024, MaxModelLen: 160})
	end := time.Now().Add(300 * time.Millisecond)
	var wg sync.WaitGroup
	answered, refused := make([]int, 6), make([]int, 6)
	for i := range 6 {
		wg.Go(func() {
			for n := i; time.Now().Before(end); n++ {
				p := g.Prompts[n%len(g.Prompts)]
				outs, err := e.Generate(t.Context(), Request{
					PromptTokenIDs: p.IDs,
					Sampling:       SamplingParams{MaxTokens: len(p.Greedy), IgnoreEOS: true},
				})
				if err == nil {
					assert.Equal(t, p.Greedy, outs[0].Completions[0].TokenIDs)
					answered[i]++
				} else {
					assert.ErrorIs(t, err, llm.ErrSleeping)
					refused[i]++
				}
			}
		})
	}
	for i := range 3 {
		wg.Go(func() {
			for n := i; time.Now().Before(end); n++ {
				time.Sleep(3 * time.Millisecond)
				assert.NoError(t, e.Sleep(t.Context(), 1+n%2))
				assert.NoError(t, e.Wake(t.Context(), []string{TagWeights, TagKVCache}[n%2]))
				assert.NoError(t, e.Wake(t.Context()))
			}
		})
	}
	wg.Wait()
	require.NoError(t, e.Wake(t.Context()))
	g.check(t, e)
	t.Log("answered ", answered, ", refused ", refused)
	quietTransfers(t, e)
}

// A Sleep that was queued while the engine still slept, before a Wake took effect: the engine ends
// asleep, and a request that slipped in between is refused.
func TestSleepQueuedBeforeWake(t *testing.T) {
	e := openTiny(t, Config{Device: "cpu"})
	c := e.b.(*core)
	require.NoError(t, e.Sleep(t.Context(), 1))
	box := c.loop.box
	queue := func() int { box.mu.Lock(); defer box.mu.Unlock(); return len(box.posted) }
	post := box.post
	results := make(chan error, 3)
	queued := func(n int, call func() error) { // call, and wait until this many are queued
		go func() { results <- call() }()
		assert.Eventually(t, func() bool { return queue() == n }, time.Minute, time.Millisecond)
	}
	in, gate := make(chan struct{}), make(chan struct{})
	post(func() { close(in); <-gate }) // the loop takes what is queued meanwhile as one
	<-in
	post(func() { queued(1, func() error { return e.Sleep(t.Context(), 2) }) })
	queued(2, func() error { return e.Wake(t.Context()) })
	post(func() { // awake, with the second Sleep in the queue
		assert.Equal(t, Running, e.State())
		queued(2, func() error {
			_, err := e.Generate(t.Context(), Request{PromptTokenIDs: ids(3, 0)})
			if assert.ErrorIs(t, err, llm.ErrSleeping) {
				return nil
			}
			return err
		})
	})
	close(gate)
	for range 3 {
		assert.NoError(t, <-results)
	}
	assert.Equal(t, Sleeping, e.State())
	assert.Equal(t, 2, e.Stats().SleepLevel)
	require.NoError(t, e.Wake(t.Context()))
	loadGolden(t).check(t, e)
}

type sleepingRunner interface {
	modelrunner.Runner
	modelrunner.Sleeper
}
