package engine

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// twoDevices opens the tiny Llama on two CPU devices, in either kind of core; the golden answers
// are right. At the end the ledger is empty.
func twoDevices(t *testing.T, cfg Config, each func(t *testing.T, e *Engine)) {
	t.Helper()
	for _, where := range []Core{InProcess, ChildProcess} {
		if where == ChildProcess && runtime.GOOS != "linux" {
			continue // only Linux has it
		}
		t.Run(where.String(), func(t *testing.T) {
			cfg := cfg
			cfg.Core, cfg.TensorParallel, cfg.Device = where, 2, "cpu"
			each(t, openTiny(t, cfg))
		})
	}
}

// Everything that an engine says of its memory is by device.
func TestTwoDevices(t *testing.T) {
	g := loadGolden(t)
	single := openTiny(t, Config{Device: "cpu"})
	twoDevices(t, Config{}, func(t *testing.T, e *Engine) {
		g.check(t, e)
		assert.Equal(t, 2, e.Stats().Devices)
		assert.Equal(t, 2, e.Config().TensorParallel)
		assert.Equal(t, single.Stats().KVBlocks, e.Stats().KVBlocks)
		assert.Equal(t, single.Config().KVCacheBytes/2, e.Config().KVCacheBytes, "of each device: half of the heads")
		on, one := ledger.ByDevice(e.Holdings()), ledger.ByDevice(single.Holdings())["cpu:0"]
		assert.Len(t, on, 2)
		for device, bytes := range on {
			assert.InDelta(t, one/2, bytes, float64(one)/6, device)
		}
		require.NoError(t, e.Shutdown(t.Context()))
		assert.Empty(t, e.Holdings())
		said := regexp.MustCompile(`(\S+ \S+) of (\S+ \S+) given back \(cpu:0 (\S+ \S+) of (\S+ \S+), cpu:1 (\S+ \S+) of (\S+ \S+)\)`).
			FindStringSubmatch(e.ShutdownReport().String())
		if assert.NotNil(t, said, "%s", e.ShutdownReport()) {
			assert.Equal(t, []string{said[1], said[3], said[5]}, []string{said[2], said[4], said[6]}, "all of it")
		}
	})
}

// A fault on one device, whichever and however: all callers get it, with the rank's name, and both
// devices give everything back.
func TestFaultsOnOneDevice(t *testing.T) {
	for _, point := range []llm.FaultPoint{llm.FaultLoad, llm.FaultAllocate, llm.FaultProfile, llm.FaultForward} {
		for _, action := range []llm.FaultAction{llm.ActError, llm.ActPanic, llm.ActOOM} {
			for rank := range 2 {
				t.Run(fmt.Sprintf("%s/%s/rank %d", point, action, rank), func(t *testing.T) {
					f := llm.Fault{Point: point, Action: action, Rank: rank, Text: "planted"}
					check := func(err error) {
						assert.ErrorIs(t, err, llm.ErrInjected)
						assert.ErrorContains(t, err, fmt.Sprintf("rank %d (cpu:%[1]d)", rank))
						assert.NotContains(t, err.Error(), fmt.Sprintf("cpu:%d", 1-rank), "the other one only waited")
						assert.Equal(t, action == llm.ActOOM, errors.Is(err, llm.ErrOutOfMemory))
						var p *PanicError
						assert.Equal(t, action == llm.ActPanic, errors.As(err, &p))
					}
					if point != llm.FaultForward {
						var c *core
						_, err := open(t.Context(), Config{
							Model: tinyLlama, Device: "cpu", TensorParallel: 2, Logger: quiet, Faults: []llm.Fault{f},
						}, func(x *core) (model, error) { c = x; return loadCheckpoint(x) })
						check(err)
						assert.Empty(t, c.ledger.Holdings())
						assert.Equal(t, 1, c.faults.report()[0].Fired)
						return
					}
					f.After = 10
					twoDevices(t, Config{Faults: []llm.Fault{f}}, func(t *testing.T, e *Engine) {
						_, err := e.Generate(t.Context(),
							Request{
								PromptTokenIDs: ids(5, 1),
								Sampling:       SamplingParams{MaxTokens: 100, IgnoreEOS: true},
							})
						assert.ErrorIs(t, err, llm.ErrEngineDead)
						check(err)
						require.NoError(t, e.Shutdown(t.Context()))
						assert.Empty(t, e.Holdings())
						assert.Equal(t, 1, e.Faults()[0].Fired)
					})
				})
			}
		}
	}
}

// A fault on every device strikes each once.
func TestFaultOnEveryDevice(t *testing.T) {
	twoDevices(t, Config{Faults: []llm.Fault{{Point: llm.FaultForward, Action: llm.ActError, Rank: -1, After: 3}}},
		func(t *testing.T, e *Engine) {
			_, err := e.Generate(t.Context(), Request{
				PromptTokenIDs: ids(5, 1),
				Sampling:       SamplingParams{MaxTokens: 100, IgnoreEOS: true},
			})
			assert.ErrorContains(t, err,
				"rank 0 (cpu:0): engine: injected fault at forward\nrank 1 (cpu:1): engine: injected fault at forward")
			require.NoError(t, e.Shutdown(t.Context()))
			f := e.Faults()[0]
			assert.Equal(t, 2, f.Fired)
			assert.Equal(t, 2*4, f.Passes)
		})
}

// A device that hangs hangs no one else: the watchdog tells the callers which one it is, and
// Shutdown ends the hang.
func TestOneDeviceHangs(t *testing.T) {
	for rank := range 2 {
		for limit := 200 * time.Millisecond; !oneDeviceHangs(t, rank, limit); limit *= 2 {
			require.Less(t, limit, time.Minute, "no step was in time")
		}
	}
}

// oneDeviceHangs reports whether the step that hangs was the first to take longer than this.
func oneDeviceHangs(t *testing.T, rank int, stepTimeout time.Duration) bool {
	e := openTiny(t, Config{
		Device: "cpu", TensorParallel: 2, StepTimeout: stepTimeout,
		Faults: []llm.Fault{{Point: llm.FaultForward, Action: llm.ActHang, Rank: rank, After: 3}},
	})
	_, err := e.Generate(t.Context(), Request{
		PromptTokenIDs: ids(5, 1),
		Sampling:       SamplingParams{MaxTokens: 100, IgnoreEOS: true},
	})
	assert.ErrorIs(t, err, llm.ErrEngineDead)
	meant := strings.Contains(err.Error(), "step 4 hangs: ")
	if meant {
		assert.Regexp(t, fmt.Sprintf(`a forward pass on rank %d \(cpu:%[1]d\) has been running for [\d.]+m?s; Config.StepTimeout is %v`, rank, stepTimeout), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_ = e.Shutdown(ctx) // ends the hang
	require.NoError(t, e.Shutdown(t.Context()))
	assert.Empty(t, e.Holdings())
	return meant
}

// A device that does not give a part back is named, and only what it keeps is left.
func TestOneDeviceKeepsSomething(t *testing.T) {
	var c *core
	e, err := open(t.Context(), Config{
		Model: tinyLlama, Device: "cpu", TensorParallel: 2, Logger: quiet,
		Faults: []llm.Fault{{Point: llm.FaultShutdown, Action: llm.ActError, Rank: 1, After: 1}},
	}, func(x *core) (model, error) { c = x; return loadCheckpoint(x) })
	require.NoError(t, err)
	runner := c.loop.runner
	assert.Contains(t, e.Parts(), "model runner of rank 1 (cpu:1)")
	err = e.Shutdown(t.Context())
	var leak *LeakError
	require.ErrorAs(t, err, &leak)
	require.Len(t, leak.Holdings, 1)
	assert.Equal(t, "cpu:1", leak.Holdings[0].Device)
	assert.ErrorContains(t, err, "rank 1 (cpu:1): cpurunner: releasing workspace")
	assert.Regexp(t, `given back \(cpu:0 (\S+ \S+) of .*, cpu:1 .* of .*\)`, e.ShutdownReport().String())
	require.NoError(t, runner.Close(), "a second attempt takes it")
	assert.Empty(t, c.ledger.Holdings())
}

// Both devices sleep and wake as one: memory that only one of them finds rolls both back.
func TestTwoDevicesSleep(t *testing.T) {
	g := loadGolden(t)
	for level := 1; level <= 2; level++ {
		twoDevices(t, Config{Faults: []llm.Fault{
			// the second allocation of the first Wake
			{Point: llm.FaultAllocate, Action: llm.ActOOM, Rank: 1, After: 4 + 1},
			{Point: llm.FaultAllocate, Action: llm.ActOOM, Rank: 0, After: 4 + 3 + 3}, // the KV cache of the second
		}}, func(t *testing.T, e *Engine) {
			g.check(t, e)
			before := ledger.ByDevice(e.Holdings())
			require.NoError(t, e.Sleep(t.Context(), level))
			asleep := e.Holdings()
			for _, h := range asleep {
				assert.Equal(t, "host", h.Device)
			}
			assert.Equal(t, level == 1, len(asleep) > 0)
			for attempt, rank := range []int{1, 0} {
				err := e.Wake(t.Context())
				assert.ErrorIs(t, err, llm.ErrOutOfMemory, "attempt %d", attempt)
				assert.ErrorContains(t, err, fmt.Sprintf("rank %d (cpu:%[1]d)", rank))
				assert.Equal(t, Sleeping, e.State())
				assert.Equal(t, ledger.ByDevice(asleep), ledger.ByDevice(e.Holdings()))
			}
			require.NoError(t, e.Wake(t.Context()))
			assert.Equal(t, before, ledger.ByDevice(e.Holdings()))
			g.check(t, e)
			for _, f := range e.Faults() {
				assert.Equal(t, 1, f.Fired)
			}
		})
	}
}

// KV blocks go to host memory with what each device has of them.
func TestTwoDevicesOffload(t *testing.T) {
	want := expected(t, onCPU)
	twoDevices(t, Config{OffloadBytes: 4 << 20, KVCacheBytes: 24 * 16 * 1024 / 2, MaxModelLen: 160},
		func(t *testing.T, e *Engine) {
			assert.Equal(t, (4<<20)/(16*1024), e.Stats().OffloadBlocks, "of both devices' parts")
			assert.Equal(t, want, ask12(t, e).Completions[0].TokenIDs)
			quietTransfers(t, e)
			evict(t, e)
			out := ask12(t, e)
			assert.Equal(t, want, out.Completions[0].TokenIDs)
			assert.Positive(t, e.Stats().OffloadHits)
		})
}

// MemoryUtilization is of each device, and the devices that the CPU emulates share its memory.
func TestMemoryUtilizationOfEachDevice(t *testing.T) {
	_, err := Open(t.Context(), Config{
		Model: tinyLlama, Device: "cpu", TensorParallel: 2, MemoryUtilization: 1e-9,
		Logger: quiet,
	})
	assert.ErrorIs(t, err, llm.ErrOutOfMemory)
	assert.ErrorContains(t, err, "MemoryUtilization 1e-09 is ")
}
