package harness_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/gpuwait/gpuwaittest"
	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/internal/faketb"
)

const gib = int64(1) << 30

// board is one scripted GPU, and the options of a fixture that is to look at it.
func board(t *testing.T, used int64, holders ...gpuwait.Holder) (*gpuwaittest.Source, []harness.Option) {
	allVisible(t)
	src := gpuwaittest.New(gpuwaittest.Device{
		Device: gpuwait.Device{UUID: "GPU-1", Name: "Test GPU"}, Total: 80 * gib,
		Steps: []gpuwaittest.Step{{Used: used, Holders: holders}},
	})
	return src, []harness.Option{harness.DeviceSource(src)}
}

func held(pid int, bytes int64) gpuwait.Holder {
	return gpuwait.Holder{PID: pid, Bytes: bytes, Known: true}
}

func set(src *gpuwaittest.Source, holders ...gpuwait.Holder) {
	step := gpuwaittest.Step{Holders: holders}
	for _, h := range holders {
		step.Used += h.Bytes
	}
	src.Set("GPU-1", step)
}

// The engine before this one gave back 10 GiB after the baseline, and this one keeps 50: no more
// than there was.
func TestALeakUnderAFallingBaselineIsNotGone(t *testing.T) {
	me := os.Getpid()
	for name, before := range map[string]gpuwait.Holder{
		"of this process": held(me, 60*gib),
		"of a stranger":   held(1, 60*gib),
	} {
		src, opts := board(t, 60*gib, before)
		failures := faketb.Run(func(ft *faketb.T) {
			harness.Start(ft, func(ctx context.Context) (*toy, error) {
				set(src, held(me, 50*gib))
				return openToy(ctx)
			}, append(opts, harness.TeardownTimeout(2*time.Second))...)
		})
		require.Len(t, failures, 1, name)
		assert.Contains(t, failures[0], "device memory")
		assert.Contains(t, failures[0], "50.0 GiB")
		assert.Contains(t, failures[0], "harness.WithoutDeviceMemory(reason)")
	}
}

func TestNeighboursAreNotBlamed(t *testing.T) {
	me := os.Getpid()
	src, opts := board(t, 5*gib, held(1, 5*gib))
	var report harness.Report
	failures := faketb.Run(func(ft *faketb.T) {
		r := harness.Start(ft, func(ctx context.Context) (*toy, error) {
			set(src, held(1, 5*gib), held(me, 40*gib))
			return openToy(ctx)
		}, opts...)
		set(src, held(1, 39*gib), held(me, 40*gib))
		set(src, held(1, 77*gib))
		report = r.Stop()
	})
	assert.Empty(t, failures, "the neighbour grew by 72 GiB")
	assert.Contains(t, report.String(), "GPU-1 0 B → 40.0 GiB → 0 B (the driver listed this engine's processes")
	d := report.DeviceMemory.Devices[0]
	assert.Equal(t, gpuwait.VerdictReturned, d.Verdict)
	assert.Equal(t, []gpuwait.Holder{held(1, 5*gib)}, d.Baseline.Others)
	assert.Equal(t, []gpuwait.Holder{held(me, 40*gib)}, d.Peak.Family)
	assert.Equal(t, []gpuwait.Holder{held(1, 77*gib)}, d.After.Others)
	out, err := json.Marshal(report.DeviceMemory)
	require.NoError(t, err)
	assert.Contains(t, string(out), `"peak":{`)
}

func TestAGPUThatCannotBeReadIsNotAbsent(t *testing.T) {
	src, opts := board(t, 0)
	src.Set("GPU-1", gpuwaittest.Step{Err: fmt.Errorf("NVML: %w: Driver Not Loaded (9)", gpuwait.ErrCannotMeasure)})
	failures := faketb.Run(func(ft *faketb.T) { harness.Start(ft, openToy, opts...) })
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], "Driver Not Loaded (9)")
	assert.Contains(t, failures[0], "harness.WithoutDeviceMemory(reason)")
	assert.Empty(t, faketb.Run(func(ft *faketb.T) {
		harness.Start(ft, openToy, append(opts, harness.WithoutDeviceMemory("no driver in this image"))...)
	}))
}

func TestRoomIsWaitedForBeforeTheStart(t *testing.T) {
	src, opts := board(t, 70*gib, held(1, 70*gib))
	started := false
	open := func(ctx context.Context) (*toy, error) {
		started = true
		return openToy(ctx)
	}
	failures := faketb.Run(func(ft *faketb.T) {
		harness.Start(ft, open, append(opts, harness.NeedFree(20*gib), harness.StartTimeout(50*time.Millisecond))...)
	})
	require.Len(t, failures, 1)
	assert.False(t, started)
	for _, want := range []string{
		"harness.NeedFree(21474836480) was not met, and nothing was started",
		"70.0 GiB  pid 1 ", "20.0 GiB must be free",
	} {
		assert.Contains(t, failures[0], want)
	}
	time.AfterFunc(50*time.Millisecond, func() { set(src) })
	assert.Empty(t, faketb.Run(func(ft *faketb.T) {
		harness.Start(ft, open, append(opts, harness.NeedUtilization(0.9))...)
	}))
	assert.True(t, started)

	failures = faketb.Run(func(ft *faketb.T) { harness.Start(ft, open, append(noGPU, harness.NeedFree(1))...) })
	require.Len(t, failures, 1)
	assert.Contains(t, failures[0], "harness.NeedFree(1) cannot be waited for: cannot measure: no GPU in this test")
}
