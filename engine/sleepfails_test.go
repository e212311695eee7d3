package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A wake that fails, wherever it fails, leaves a sleeping engine that holds what it held; the next
// wake works.
func TestWakeIsTransactional(t *testing.T) { onDevices(t, testWakeIsTransactional) }

func testWakeIsTransactional(t *testing.T, d testDevice) {
	g := d.golden(t)
	for _, level := range []int{1, 2} {
		faults := []llm.Fault{{Point: llm.FaultLoad, After: 1}} // once in Open
		for i := range d.opens {                                // a wake allocates what Open does
			faults = append(faults, llm.Fault{Point: llm.FaultAllocate, After: len(d.opens) + i})
		}
		for _, f := range faults {
			for _, f.Action = range []llm.FaultAction{llm.ActError, llm.ActOOM} {
				t.Run(fmt.Sprint(level, f.Point, f.After, f.Action), func(t *testing.T) {
					e := openTiny(t, Config{Device: d.config, Faults: []llm.Fault{f}})
					require.NoError(t, e.Sleep(t.Context(), level))
					asleep := bytesOf(e)
					err := e.Wake(t.Context())
					require.ErrorIs(t, err, llm.ErrInjected)
					assert.Equal(t, f.Action == llm.ActOOM, errors.Is(err, llm.ErrOutOfMemory))
					assert.Equal(t, 1, e.Faults()[0].Fired)
					assert.Equal(t, Sleeping, e.State())
					assert.NoError(t, e.Err())
					assert.Equal(t, asleep, bytesOf(e))
					device, _ := onDevice(e.Holdings())
					assert.Zero(t, device)
					assert.True(t, e.Stats().WeightsAsleep && e.Stats().KVCacheAsleep)
					_, err = e.Generate(t.Context(), Request{PromptTokenIDs: ids(3, 0)})
					assert.ErrorIs(t, err, llm.ErrSleeping)
					require.NoError(t, e.Wake(t.Context()))
					g.check(t, e)
				})
			}
		}
	}
}

// A release step that fails in Sleep: the engine sleeps, its error and Holdings name the memory,
// and Wake tries again first.
func TestSleepReleaseFails(t *testing.T) { onDevices(t, testSleepReleaseFails) }

func testSleepReleaseFails(t *testing.T, d testDevice) {
	g := d.golden(t)
	releases := []string{"kv_cache", "workspace", "rope", "weights", "weights"} // matrices are files, norms are not
	if d.pkg == "cudarunner" {
		releases = []string{"kv_cache", "staging", "staging", "workspace", "rope", "weights"}
	}
	for after, owner := range releases {
		t.Run(fmt.Sprint(owner, after), func(t *testing.T) {
			e := openTiny(t, Config{Device: d.config, Faults: []llm.Fault{{
				Point: llm.FaultShutdown, Action: llm.ActError,
				After: after,
			}}})
			full := bytesOf(e)
			err := e.Sleep(t.Context(), 2)
			require.ErrorIs(t, err, llm.ErrInjected)
			assert.ErrorContains(t, err,
				"engine: asleep, but not all memory was given back: "+d.pkg+": releasing "+owner)
			assert.Equal(t, Sleeping, e.State())
			held := bytesOf(e)
			require.Len(t, held, 1)
			assert.Positive(t, held[owner])
			require.NoError(t, e.Wake(t.Context()))
			assert.Equal(t, full, bytesOf(e))
			g.check(t, e)
		})
	}
}

func TestCheckpointVanishesInSleep(t *testing.T) { onDevices(t, testCheckpointVanishesInSleep) }

func testCheckpointVanishesInSleep(t *testing.T, d testDevice) {
	dir := t.TempDir() + "/model"
	require.NoError(t, os.CopyFS(dir, os.DirFS(tinyLlama)))
	for level := range 2 {
		e := openTiny(t, Config{Device: d.config, Model: dir})
		require.NoError(t, e.Sleep(t.Context(), level+1))
		require.NoError(t, os.Rename(dir, dir+"-away"))
		err := e.Wake(t.Context())
		if level+1 == 1 {
			require.NoError(t, err, "level 1 needs no file")
		} else {
			var wrong *CheckpointError
			require.ErrorAs(t, err, &wrong)
			assert.ErrorContains(t, err, "engine: weights not woken: checkpoint: "+dir)
			assert.Equal(t, Sleeping, e.State())
			assert.Empty(t, bytesOf(e))
		}
		require.NoError(t, os.Rename(dir+"-away", dir))
		require.NoError(t, e.Wake(t.Context()))
		d.golden(t).check(t, e)
	}
}

// A panic while it wakes is the engine's end like any other; Shutdown releases everything.
func TestWakePanics(t *testing.T) { onDevices(t, testWakePanics) }

func testWakePanics(t *testing.T, d testDevice) {
	for i := range d.opens {
		after := len(d.opens) + i
		e := openTiny(t, Config{Device: d.config, Faults: []llm.Fault{{
			Point: llm.FaultAllocate, Action: llm.ActPanic,
			After: after,
		}}})
		require.NoError(t, e.Sleep(t.Context(), 2))
		err := e.Wake(t.Context())
		assert.ErrorIs(t, err, llm.ErrEngineDead)
		where := "waking up"
		if d.pkg == "cudarunner" {
			where = "work on the GPU's thread"
		}
		assert.ErrorContains(t, err, "panic during "+where+": engine: injected fault at allocate")
		assert.Equal(t, Failed, e.State())
	}
}

// A wake that hangs: the caller's context ends its wait, and Shutdown the hang.
func TestWakeHangs(t *testing.T) { onDevices(t, testWakeHangs) }

func testWakeHangs(t *testing.T, d testDevice) {
	e := openTiny(t, Config{Device: d.config, Faults: []llm.Fault{{
		Point: llm.FaultAllocate, Action: llm.ActHang,
		After: len(d.opens) + 1,
	}}})
	require.NoError(t, e.Sleep(t.Context(), 1))
	err := e.Wake(endsWhen(t, func() bool { return e.Faults()[0].Fired == 1 }))
	assert.ErrorIs(t, err, context.Canceled)
	assert.Regexp(t, `^engine: waking up not finished \(waking up, for [\d.]+[mµ]?s\): context canceled$`,
		err.Error())
	require.NoError(t, e.Shutdown(t.Context()))
}

// A hang that begins after the shutdown was ordered ends with it, whatever the context of Shutdown.
func TestHangAfterShutdown(t *testing.T) {
	e := openTiny(t, Config{Device: "cpu", Faults: []llm.Fault{{
		Point: llm.FaultAllocate, Action: llm.ActHang,
		After: len(onCPU.opens) + 1,
	}}})
	require.NoError(t, e.Sleep(t.Context(), 1))
	c := e.b.(*core)
	ordered := make(chan struct{})
	c.loop.box.post(func() { // the loop is late: it comes to the Wake when the Shutdown has been called
		<-ordered
		assert.ErrorContains(t, c.getUp(true, true), "hung until context canceled")
	})
	over := make(chan error)
	go func() { over <- e.Shutdown(context.Background()) }()
	<-c.ctx.Done()
	close(ordered)
	select {
	case err := <-over:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("it hangs")
	}
}

// tight is a runner whose device someone else fills meanwhile.
type tight struct {
	sleepingRunner
	free atomic.Int64 // 0: what there is
}

func (r *tight) FreeMemory() (free, total int64, err error) {
	if n := r.free.Load(); n > 0 {
		return n, 1 << 30, nil
	}
	return r.sleepingRunner.FreeMemory()
}

func TestWakeNeedsTheMemory(t *testing.T) { onDevices(t, testWakeNeedsTheMemory) }

func testWakeNeedsTheMemory(t *testing.T, d testDevice) {
	for _, level := range []int{1, 2} {
		r := &tight{}
		e, err := open(t.Context(), Config{Model: tinyLlama, Device: d.config, Logger: quiet, KVCacheBytes: 1 << 20},
			func(c *core) (model, error) {
				m, err := loadCheckpoint(c)
				if err == nil {
					r.sleepingRunner = m.runner.(sleepingRunner)
					m.runner = r
				}
				return m, err
			})
		require.NoError(t, err)
		shutdownAfter(t, e)
		require.NoError(t, e.Sleep(t.Context(), level))
		asleep := bytesOf(e)
		r.free.Store(1 << 19)
		err = e.Wake(t.Context())
		require.ErrorIs(t, err, llm.ErrOutOfMemory)
		assert.EqualError(t, err, "engine: KV cache not woken: engine: out of device memory: the KV cache has 1.0 MiB, and 512.0 KiB of 1.0 GiB are free")
		assert.Equal(t, asleep, bytesOf(e), "the weights sleep again")
		assert.Equal(t, Sleeping, e.State())
		r.free.Store(0)
		require.NoError(t, e.Wake(t.Context()))
		d.golden(t).check(t, e)
	}
}
