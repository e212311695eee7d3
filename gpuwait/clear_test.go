package gpuwait_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/gpuwait/gpuwaittest"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

func h200(steps ...gpuwaittest.Step) gpuwaittest.Device {
	return gpuwaittest.Device{
		Device: gpuwait.Device{UUID: "GPU-1a2b", Name: "NVIDIA H200"}, Total: 140 * gib, Steps: steps,
	}
}

func holder(pid int, bytes int64) gpuwait.Holder {
	return gpuwait.Holder{PID: pid, Bytes: bytes, Known: true}
}

// everything: the tests choose devices by themselves, whatever the environment of the machine
// hides.
var everything = gpuwait.Devices("all")

func TestClear(t *testing.T) {
	self := os.Getpid()
	full := func(at time.Duration, used int64, hs ...gpuwait.Holder) gpuwaittest.Step {
		return gpuwaittest.Step{At: at, Used: used, Holders: hs}
	}
	live := holder(self, 56*gib)
	tests := []struct {
		name  string // the reason
		steps []gpuwaittest.Step
		cond  gpuwait.Condition
		opts  []gpuwait.ClearOption

		ending  gpuwait.Ending
		trend   gpuwait.Trend
		elapsed time.Duration // at least; at most 1 % or 5 ms more
		says    []string
	}{
		{
			name: "clear at once costs one reading", steps: []gpuwaittest.Step{full(0,
				1*gib)}, cond: gpuwait.Ratio(0.1),
			ending: gpuwait.Cleared, trend: gpuwait.TrendClear,
			says: []string{"clear after 0s: GPU-1a2b uses 1.0 GiB of 140.0 GiB (1%)"},
		},
		{
			name: "an early clear is seen within 5 ms", steps: []gpuwaittest.Step{
				full(0, 63*gib, live),
				full(181*time.Millisecond, 0),
			}, cond: gpuwait.Ratio(0.1),
			ending: gpuwait.Cleared, trend: gpuwait.TrendClear, elapsed: 181 * time.Millisecond,
		},
		{
			name: "a late clear is seen within a quarter second", steps: []gpuwaittest.Step{
				full(0, 63*gib),
				full(90*time.Second, 0),
			}, cond: gpuwait.Bytes(gib),
			ending: gpuwait.Cleared, trend: gpuwait.TrendClear, elapsed: 90 * time.Second,
		},
		{
			name: "never clears, nobody visible: the whole timeout is used", steps: []gpuwaittest.Step{full(0,
				63*gib)}, cond: gpuwait.Ratio(0.1),
			ending: gpuwait.TimedOut, trend: gpuwait.TrendUnowned, elapsed: 2 * time.Minute,
			says: []string{"GPU-1a2b (NVIDIA H200, index 0) still holds 63.0 GiB of 140.0 GiB (45%, want ≤ 14.0 GiB: 10% of total)", "want ≤ 14.0 GiB: 10% of total", "held by no process", "gpuwait.Timeout("},
		},
		{
			name:  "a live holder with identical readings: given up after the patience",
			steps: []gpuwaittest.Step{full(0, 63*gib, live)}, cond: gpuwait.Ratio(0.1),
			ending: gpuwait.Held, trend: gpuwait.TrendHeld, elapsed: gpuwait.DefaultPatience,
			says: []string{
				fmt.Sprintf("56.0 GiB  pid %d", self), "gpuwait.test", "← this process",
				"7.0 GiB  unattributed", "gpuwait.KeepWaiting()", "last change 30s ago",
			},
		},
		{
			name: "KeepWaiting overrules", steps: []gpuwaittest.Step{full(0, 63*gib,
				live)}, cond: gpuwait.Ratio(0.1), opts: []gpuwait.ClearOption{gpuwait.KeepWaiting()},
			ending: gpuwait.TimedOut, trend: gpuwait.TrendHeld, elapsed: 2 * time.Minute,
		},
		{
			name:  "decaying memory is waited for, beyond the patience",
			steps: decay(63*gib, 100, 900*time.Millisecond, live), cond: gpuwait.Bytes(0),
			opts: []gpuwait.ClearOption{gpuwait.Patience(2 * time.Second)}, ending: gpuwait.Cleared,
			trend: gpuwait.TrendClear, elapsed: 90 * time.Second,
		},
		{
			name:  "decaying, and the timeout too short, is said as such",
			steps: decay(63*gib, 100, 900*time.Millisecond, live), cond: gpuwait.Bytes(0),
			opts: []gpuwait.ClearOption{gpuwait.Timeout(10 * time.Second)}, ending: gpuwait.TimedOut,
			trend: gpuwait.TrendFalling, elapsed: 10 * time.Second,
			says: []string{"the memory is not stuck", "readings: 63.0 GiB at 0s"},
		},
		{
			name: "refilled by another process before it was clear",
			steps: []gpuwaittest.Step{
				full(0, 63*gib), full(time.Second, 20*gib),
				full(2*time.Second, 90*gib, holder(1, 90*gib)),
			}, cond: gpuwait.Ratio(0.1),
			ending: gpuwait.Held, trend: gpuwait.TrendRefill, elapsed: 32 * time.Second,
			says: []string{"down to 20.0 GiB", "(pid 1 by 90.0 GiB)", "gpuwait.Acquire"},
		},
		{
			name: "another process grows: an unsigned difference would call this recovered",
			steps: []gpuwaittest.Step{
				full(0, 20*gib, live),
				full(time.Second, 30*gib, live, holder(1, 10*gib)),
			}, cond: gpuwait.Ratio(0.1),
			ending: gpuwait.Held, trend: gpuwait.TrendRising, elapsed: 31 * time.Second,
			says: []string{"it grew during the wait (pid 1 by 10.0 GiB)"},
		},
		{
			name: "used more than total is suspect, and not clear", steps: []gpuwaittest.Step{full(0,
				141*gib)}, cond: gpuwait.Ratio(0.99),
			ending: gpuwait.TimedOut, trend: gpuwait.TrendUnowned, elapsed: 2 * time.Minute,
			says: []string{"the reading is suspect"},
		},
		{
			name: "settled alone waits for the memory to stop moving", steps: decay(10*gib, 10, 100*time.Millisecond),
			cond:   gpuwait.Settled(time.Second, 0),
			ending: gpuwait.Cleared, trend: gpuwait.TrendClear, elapsed: 2 * time.Second,
		},
		{
			name: "settled and bounded: in bounds from 1 s on, still for 2 s", steps: []gpuwaittest.Step{full(0,
				63*gib), full(time.Second, gib), full(1500*time.Millisecond, gib+mib)},
			cond: gpuwait.Ratio(0.1).Settled(2*time.Second, 2*mib), ending: gpuwait.Cleared, trend: gpuwait.TrendClear,
			elapsed: 3 * time.Second,
		},
		{
			name: "the larger of two bounds counts", steps: []gpuwaittest.Step{full(0,
				3*gib)}, cond: gpuwait.Ratio(0.01).Or(gpuwait.Bytes(4 * gib)),
			ending: gpuwait.Cleared, trend: gpuwait.TrendClear,
		},
		{
			name:  "settling asked for on one side of Or",
			steps: []gpuwaittest.Step{full(0, 3*gib)}, cond: gpuwait.Bytes(4 * gib).Or(gpuwait.Settled(time.Second, 0)),
			ending: gpuwait.Cleared, trend: gpuwait.TrendClear, elapsed: time.Second,
		},
		{
			name: "a condition of its own for one device", steps: []gpuwaittest.Step{full(0,
				3*gib)}, cond: gpuwait.Bytes(0).For("GPU-1a2b", gpuwait.Bytes(4*gib)),
			ending: gpuwait.Cleared, trend: gpuwait.TrendClear,
		},
		{
			name:  "a process whose share is not known is said as such, and the rest as unattributed",
			steps: []gpuwaittest.Step{full(0, 63*gib, gpuwait.Holder{PID: self})}, cond: gpuwait.Ratio(0.1),
			ending: gpuwait.Held, trend: gpuwait.TrendHeld, elapsed: gpuwait.DefaultPatience,
			says: []string{fmt.Sprintf("n/a  pid %d", self), "does not say how much 1 of its processes hold"},
		},
		{
			name: "holders cannot be listed: never given up early", steps: []gpuwaittest.Step{{
				Used:       63 * gib,
				HoldersErr: errors.New("permission denied"),
			}}, cond: gpuwait.Ratio(0.1),
			ending: gpuwait.TimedOut, trend: gpuwait.TrendUnknown, elapsed: 2 * time.Minute,
			says: []string{"the holders cannot be listed: permission denied"},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := gpuwaittest.New(h200(tc.steps...))
				r, err := gpuwait.Clear(t.Context(), src, tc.cond,
					append([]gpuwait.ClearOption{everything}, tc.opts...)...)
				assert.Equal(t, tc.ending, r.Ending)
				require.Len(t, r.Devices, 1)
				d := r.Devices[0]
				assert.Equal(t, tc.trend, d.Trend)
				assert.GreaterOrEqual(t, r.Elapsed, tc.elapsed)
				// a change seen late and then a patience: twice 1 %
				late := min(max(5*time.Millisecond, tc.elapsed/50), 300*time.Millisecond)
				assert.LessOrEqual(t, r.Elapsed, tc.elapsed+late, "seen or ended too late")
				if tc.ending == gpuwait.Cleared {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, gpuwait.ErrNotClear)
					require.Equal(t, r.String(), err.Error())
				}
				for _, s := range tc.says {
					assert.Contains(t, r.String(), s)
				}
				pollsPolitely(t, src.Readings("GPU-1a2b"))
				last := d.History[len(d.History)-1]
				assert.Equal(t, d.Memory.Used, last.Used, "the last reading is reported")
			})
		})
	}
}

// pollsPolitely: never more often than once a millisecond, and with a growing pause.
func pollsPolitely(t *testing.T, readings []time.Time) {
	t.Helper()
	for i := 2; i < len(readings); i++ {
		pause, waited := readings[i].Sub(readings[i-1]), readings[i].Sub(readings[0])
		if i < len(readings)-1 && (pause < time.Millisecond || pause > 250*time.Millisecond ||
			pause > max(time.Millisecond, waited/50)) {
			t.Fatalf("reading %d came %v after the one before, %v into the wait", i, pause, waited)
		}
	}
}

// decay falls to 0 in n equal steps.
func decay(from int64, n int, every time.Duration, hs ...gpuwait.Holder) []gpuwaittest.Step {
	var steps []gpuwaittest.Step
	for i := range n + 1 {
		steps = append(steps, gpuwaittest.Step{
			At: time.Duration(i) * every, Used: from - from*int64(i)/int64(n),
			Holders: hs,
		})
	}
	return steps
}

func TestClearContextEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the suite was interrupted")
		time.AfterFunc(3*time.Second, func() { cancel(why) })
		r, err := gpuwait.Clear(ctx, gpuwaittest.New(h200(gpuwaittest.Step{Used: 63 * gib})), gpuwait.Ratio(0.1),
			everything)
		require.ErrorIs(t, err, gpuwait.ErrNotClear)
		require.ErrorIs(t, err, why)
		assert.Equal(t, gpuwait.Cancelled, r.Ending)
		assert.Equal(t, 3*time.Second, r.Elapsed)
		assert.Contains(t, err.Error(), "cut short: the suite was interrupted")
	})
}

// What happens between the last poll and the end of the context is not missed.
func TestClearLooksOnceMoreWhenTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		src := gpuwaittest.New(h200(gpuwaittest.Step{Used: 63 * gib},
			gpuwaittest.Step{At: 60*time.Second - time.Millisecond}))
		_, err := gpuwait.Clear(ctx, src, gpuwait.Ratio(0.1), everything)
		require.NoError(t, err)
	})
}

func TestClearCannotMeasure(t *testing.T) {
	lost := fmt.Errorf("%w: GPU is lost", gpuwait.ErrLost)
	hiccup := errors.New("timeout talking to the driver")
	tests := []struct {
		name    string
		steps   []gpuwaittest.Step
		elapsed time.Duration
		err     error // nil: it clears
		says    string
	}{
		{
			"a lost device fails at once",
			[]gpuwaittest.Step{{Used: 63 * gib}, {At: 2 * time.Second, Err: lost}},
			2 * time.Second, gpuwait.ErrLost, "last reading 63.0 GiB of 140.0 GiB",
		},
		{"a source that stutters is forgiven", []gpuwaittest.Step{
			{Used: 63 * gib},
			{At: time.Second, Err: hiccup},
			{At: 1800 * time.Millisecond},
		}, 1800 * time.Millisecond, nil, ""},
		{"each stutter counts for itself", []gpuwaittest.Step{
			{Err: hiccup},
			{At: 600 * time.Millisecond, Used: 63 * gib},
			{
				At:  900 * time.Millisecond,
				Err: hiccup,
			},
			{At: 1500 * time.Millisecond},
		}, 1500 * time.Millisecond, nil, ""},
		{
			"a source that fails for a second is not",
			[]gpuwaittest.Step{{Err: hiccup}},
			time.Second, hiccup,
			"never measured",
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, err := gpuwait.Clear(t.Context(), gpuwaittest.New(h200(tc.steps...)), gpuwait.Ratio(0.1), everything)
				assert.InDelta(t, tc.elapsed.Seconds(), r.Elapsed.Seconds(), 0.03)
				if tc.err == nil {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, tc.err)
				require.ErrorIs(t, err, gpuwait.ErrCannotMeasure, "never 0")
				require.NotErrorIs(t, err, gpuwait.ErrNotClear)
				assert.Equal(t, gpuwait.Unmeasurable, r.Ending)
				assert.Equal(t, err.Error(), r.String())
				assert.Contains(t, err.Error(), tc.says)
			})
		})
	}
}

func TestClearRefusesNonsense(t *testing.T) {
	src := gpuwaittest.New(h200())
	for name, cond := range map[string]gpuwait.Condition{
		"empty":          {},
		"ratio 1":        gpuwait.Ratio(1),
		"ratio -0.1":     gpuwait.Ratio(-0.1),
		"negative bytes": gpuwait.Bytes(-1),
		"negative slack": gpuwait.Delta(gpuwait.Baseline{}, -1),
		"no settle time": gpuwait.Settled(0, 1),
		"in Or":          gpuwait.Ratio(0.1).Or(gpuwait.Ratio(2)),
		"in For":         gpuwait.Ratio(0.1).For("GPU-1a2b", gpuwait.Bytes(-1)),
		"For another":    gpuwait.Condition{}.For("GPU-other", gpuwait.Bytes(1)),
	} {
		_, err := gpuwait.Clear(t.Context(), src, cond, everything)
		assert.ErrorIs(t, err, gpuwait.ErrBadCondition, name)
	}
	_, err := gpuwait.Clear(t.Context(), src, gpuwait.Delta(gpuwait.Baseline{}, 0), everything)
	require.ErrorIs(t, err, gpuwait.ErrNoDevice, "a device that the baseline has not seen")
	_, err = gpuwait.Clear(t.Context(), src, gpuwait.Ratio(0.1), gpuwait.Devices("GPU-ffff"))
	require.ErrorIs(t, err, gpuwait.ErrNoDevice)
	broken := gpuwaittest.New(gpuwaittest.Device{Total: 0})
	_, err = gpuwait.Snapshot(broken, everything)
	require.ErrorIs(t, err, gpuwait.ErrCannotMeasure, "a total of 0 is no reading")
}

// Everything that moves under a delta: what was there before, and what live fixtures own now and
// then.
func TestDeltaFollowsOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var owners gpuwait.Owners
		src := gpuwaittest.New(h200())
		used := func(n int64) { src.Set("GPU-1a2b", gpuwaittest.Step{Used: n}) }
		clearNow := func(b gpuwait.Baseline) error {
			_, err := gpuwait.Clear(t.Context(), src, gpuwait.Delta(b, mib), everything, gpuwait.Timeout(0),
				gpuwait.OwnedBy(&owners))
			return err
		}
		used(5 * gib) // a stranger's
		older := owners.Own("GPU-1a2b", "session fixture", 10*gib)
		used(15 * gib)
		base, err := gpuwait.Snapshot(src, everything, gpuwait.OwnedBy(&owners))
		require.NoError(t, err)
		require.NoError(t, clearNow(base))

		used(15*gib + 2*mib)
		require.ErrorContains(t, clearNow(base), "want ≤ 15.0 GiB", "2 MiB leaked with a slack of 1")
		require.ErrorContains(t, clearNow(base), "; 1.0 MiB over)", "both print as 15.0 GiB")

		used(18 * gib)
		younger := owners.Own("GPU-1a2b", "TestOther's runner", 3*gib)
		require.NoError(t, clearNow(base), "a fixture started since")
		younger()
		younger()
		require.ErrorIs(t, clearNow(base), gpuwait.ErrNotClear, "and ended, but its memory is still there")

		used(15 * gib)
		older()
		require.ErrorContains(t, clearNow(base), "want ≤ 5.0 GiB", "the older fixture ended: its 10 GiB are a leak now")
		used(5 * gib)
		require.NoError(t, clearNow(base))
	})
}

func TestSeveralDevicesMustBeClearTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		see := func(at time.Duration, used int64) gpuwaittest.Step { return gpuwaittest.Step{At: at, Used: used} }
		src := gpuwaittest.New(
			gpuwaittest.Device{Total: gib, Steps: []gpuwaittest.Step{
				see(0, 0), see(time.Second, gib),
				see(3*time.Second, 0),
			}},
			gpuwaittest.Device{Total: gib, Steps: []gpuwaittest.Step{see(0, gib), see(time.Second, 0)}},
		)
		r, err := gpuwait.Clear(t.Context(), src, gpuwait.Ratio(0.5), everything)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, r.Elapsed, 3*time.Second)

		_, err = gpuwait.Clear(t.Context(), gpuwaittest.New(gpuwaittest.Device{Total: gib},
			gpuwaittest.Device{Total: gib, Steps: []gpuwaittest.Step{see(0, gib)}}),
			gpuwait.Ratio(0.5), everything)
		require.ErrorContains(t, err, "gpuwait: GPU-1 ")
		assert.NotContains(t, err.Error(), "GPU-0", "a clear device is not in the message")
	})
}

func TestHistoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := gpuwait.Clear(t.Context(), gpuwaittest.New(h200(decay(63*gib, 5000, 10*time.Millisecond)...)),
			gpuwait.Bytes(0), everything, gpuwait.Timeout(40*time.Second))
		require.Error(t, err)
		h := r.Devices[0].History
		assert.LessOrEqual(t, len(h), 64)
		assert.Equal(t, 63*gib, h[0].Used, "the first reading stays")
		for i := 1; i < len(h); i++ {
			assert.Less(t, h[i].Used, h[i-1].Used)
			assert.Greater(t, h[i].After, h[i-1].After)
		}
		assert.Less(t, strings.Count(err.Error(), "\n"), 8, "and the message short:\n%v", err)
	})
}
