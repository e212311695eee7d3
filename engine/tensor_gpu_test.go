package engine

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/internal/cudatest"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// twoGPUs opens the tiny Llama on two GPUs, in either kind of core: on the stand-in for libcuda,
// and on GPUs when there are two.
func twoGPUs(t *testing.T, cfg Config, each func(t *testing.T, e *Engine, g golden)) {
	t.Helper()
	both := func(t *testing.T, d testDevice) {
		for _, where := range []Core{InProcess, ChildProcess} {
			t.Run(where.String(), func(t *testing.T) {
				cfg := cfg
				cfg.Core, cfg.TensorParallel, cfg.Device = where, 2, "cuda"
				each(t, openTiny(t, cfg), d.golden(t))
			})
		}
	}
	t.Run("stub", func(t *testing.T) {
		d := onCUDA
		d.blank = true
		t.Setenv("ENGINETEST_LIBCUDA", cudatest.New(t, 2, 1<<30).Path)
		t.Setenv("STUB_DEVICES", "2") // for the child
		both(t, d)
	})
	t.Run("gpu", func(t *testing.T) {
		driver, err := cuda.Open()
		if err != nil {
			t.Skipf("no GPU: %v", err)
		}
		all, err := driver.Devices()
		require.NoError(t, err)
		if len(all) < 2 {
			t.Skipf("the test needs 2 GPUs, there are %d", len(all))
		}
		both(t, onCUDA)
	})
}

// The golden answers are right, each GPU has its half, and releases it.
func TestTwoGPUs(t *testing.T) {
	twoGPUs(t, Config{}, func(t *testing.T, e *Engine, g golden) {
		g.check(t, e)
		assert.Equal(t, 2, e.Stats().Devices)
		on := ledger.ByDevice(e.Holdings())
		delete(on, "host")
		assert.Len(t, on, 2)
		require.NoError(t, e.Shutdown(t.Context()))
		assert.Empty(t, e.Holdings())
		t.Logf("%s", e.ShutdownReport())
	})
}

// A step that fails on one GPU, by an error or a panic: all callers get it with the rank's name,
// and both GPUs give everything back.
func TestTwoGPUsFault(t *testing.T) {
	for rank := range 2 {
		for _, action := range []llm.FaultAction{llm.ActError, llm.ActPanic} {
			t.Run(fmt.Sprintf("%s/rank %d", action, rank), func(t *testing.T) {
				twoGPUs(t, Config{Faults: []llm.Fault{{Point: llm.FaultForward, Action: action, Rank: rank, After: 10}}},
					func(t *testing.T, e *Engine, _ golden) {
						began := time.Now()
						_, err := e.Generate(t.Context(), Request{
							PromptTokenIDs: ids(5, 1),
							Sampling:       SamplingParams{MaxTokens: 100, IgnoreEOS: true},
						})
						assert.ErrorIs(t, err, llm.ErrEngineDead)
						assert.ErrorIs(t, err, llm.ErrInjected)
						assert.ErrorContains(t, err, fmt.Sprintf("rank %d (cuda:GPU-", rank))
						assert.NotContains(t, err.Error(), fmt.Sprintf("rank %d", 1-rank), "the other one only waited")
						assert.Less(t, time.Since(began), 30*time.Second, "the other rank waited to the end")
						require.NoError(t, e.Shutdown(t.Context()))
						assert.Empty(t, e.Holdings())
					})
			})
		}
	}
}

// A core that is killed takes both GPUs' memory with it: the next engine finds as much as the one
// before.
func TestTwoGPUsKilled(t *testing.T) {
	blocks := map[string][]int{} // by device
	for range 3 {
		twoGPUs(t, Config{MemoryUtilization: 0.5}, func(t *testing.T, e *Engine, g golden) {
			if len(e.PIDs()) == 0 {
				return
			}
			g.check(t, e)
			device := e.Config().Device
			blocks[device] = append(blocks[device], e.Stats().KVBlocks)
			require.NoError(t, syscall.Kill(e.PIDs()[0], syscall.SIGKILL))
			_, err := e.Generate(t.Context(), Request{
				PromptTokenIDs: ids(5, 1),
				Sampling:       SamplingParams{MaxTokens: 100, IgnoreEOS: true},
			})
			assert.ErrorIs(t, err, llm.ErrEngineDead)
			assert.ErrorContains(t, err, "was killed by SIGKILL")
			_ = e.Shutdown(t.Context()) // says what died
			assert.Equal(t, blocks[device][0], blocks[device][len(blocks[device])-1], "KV blocks of each life")
		})
	}
}

// Both GPUs sleep and wake as one, and copy KV blocks to the host and back.
func TestTwoGPUsSleep(t *testing.T) {
	for level := 1; level <= 2; level++ {
		twoGPUs(t, Config{}, func(t *testing.T, e *Engine, g golden) {
			g.check(t, e)
			before := ledger.ByOwner(e.Holdings())
			delete(before, "cuda_graphs")
			require.NoError(t, e.Sleep(t.Context(), level))
			device, host := onDevice(e.Holdings())
			assert.Zero(t, device, "%v", e.Holdings())
			assert.Equal(t, level == 1, host > 0)
			require.NoError(t, e.Wake(t.Context()))
			g.check(t, e)
			after := ledger.ByOwner(e.Holdings())
			for _, owner := range []string{"weights", "kv_cache", "workspace", "all_reduce"} {
				assert.Equal(t, before[owner], after[owner], owner)
			}
		})
	}
}

func TestTwoGPUsOffload(t *testing.T) {
	twoGPUs(t, Config{OffloadBytes: 4 << 20, KVCacheBytes: 24 * 16 * 1024 / 2, MaxModelLen: 160},
		func(t *testing.T, e *Engine, _ golden) {
			want := ask12(t, e).Completions[0].TokenIDs
			quietTransfers(t, e)
			evict(t, e)
			assert.Equal(t, want, ask12(t, e).Completions[0].TokenIDs)
			assert.Positive(t, e.Stats().OffloadHits)
		})
}
