package gpuwait_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/gpuwait/gpuwaittest"
	"github.com/enginetest/enginetest/verdict"
)

// self is a family of one: this process.
func self(pid int) bool { return pid == os.Getpid() }

// life plays an engine's life against a scripted device, one step for each stage, and returns what
// its account says.
func life(t *testing.T, d gpuwaittest.Device, before, running, after gpuwaittest.Step,
	opts ...gpuwait.ReturnedOption,
) (gpuwait.AccountReport, error) {
	t.Helper()
	src := gpuwaittest.New(d)
	uuid := d.UUID
	src.Set(uuid, before)
	a, err := gpuwait.NewAccount(t.Context(), src, self, everything, gpuwait.OwnedBy(&gpuwait.Owners{}))
	require.NoError(t, err)
	src.Set(uuid, running)
	a.Read()
	src.Set(uuid, after)
	return a.Returned(t.Context(), append([]gpuwait.ReturnedOption{gpuwait.Timeout(10 * time.Second)}, opts...)...)
}

func step(used int64, hs ...gpuwait.Holder) gpuwaittest.Step {
	return gpuwaittest.Step{Used: used, Holders: hs}
}

// Every line is a life among neighbours: pid 1 is a stranger.
func TestAccount(t *testing.T) {
	gpuwait.Hidden(t, "") // also where the tests run in a container
	me, other := os.Getpid(), 1
	mine := func(bytes int64) gpuwait.Holder { return holder(me, bytes) }
	theirs := func(bytes int64) gpuwait.Holder { return holder(other, bytes) }
	refused := func(used int64) gpuwaittest.Step {
		return gpuwaittest.Step{Used: used, HoldersErr: errors.New("Insufficient Permissions (4)")}
	}
	slice := h200()
	slice.Parent = "GPU-whole"
	tests := []struct {
		name                   string
		device                 gpuwaittest.Device
		before, running, after gpuwaittest.Step
		verdict                gpuwait.Verdict
		bytes                  int64
		says                   []string
	}{
		{
			name: "all comes back, and a neighbour goes", before: step(5*gib, theirs(5*gib)), running: step(56*gib,
				mine(56*gib)), after: step(0),
			verdict: gpuwait.VerdictReturned, says: []string{
				"returned after 0s: GPU-1a2b 0 B → 56.0 GiB → 0 B",
				"lists no more than before",
			},
		},
		{
			name: "a neighbour comes with as much as was given back", before: step(0), running: step(50*gib,
				mine(50*gib)), after: step(50*gib, theirs(50*gib)),
			verdict: gpuwait.VerdictReturned,
		},
		{
			name: "a leak under a neighbour that goes", before: step(60*gib, theirs(60*gib)), running: step(110*gib,
				theirs(60*gib), mine(50*gib)),
			after: step(50*gib, mine(50*gib)), verdict: gpuwait.VerdictHeld, bytes: 50 * gib,
			says: []string{
				"GPU-1a2b (NVIDIA H200, index 0): this engine's processes still hold 50.0 GiB, after 10s", fmt.Sprintf("50.0 GiB  pid %d", me),
				"before it   60.0 GiB of 140.0 GiB used: this engine 0 B, others 60.0 GiB: pid 1 (60.0 GiB)",
				"at its peak 110.0 GiB of 140.0 GiB used: this engine 50.0 GiB, others 60.0 GiB", "now         50.0 GiB",
				"gpuwait.Timeout(d)", "gpuwait.Slack(bytes)",
			},
		},
		{
			name: "a small leak under a neighbour that grows", before: step(gib, theirs(gib)), running: step(2*gib,
				theirs(gib), mine(gib)),
			after: step(40*gib+16*mib, theirs(40*gib), mine(16*mib)), verdict: gpuwait.VerdictHeld, bytes: 16 * mib,
		},
		{
			name: "an engine of this process that went before this one leaked", before: step(60*gib,
				mine(60*gib)), running: step(50*gib, mine(50*gib)),
			after: step(50*gib, mine(50*gib)), verdict: gpuwait.VerdictUnproven, bytes: 50 * gib,
			says: []string{
				"held 60.0 GiB before this engine started, 50.0 GiB in between and 50.0 GiB now",
				"may be this engine's",
			},
		},
		{
			name: "what this process held before stays", before: step(gib, mine(gib)), running: step(9*gib,
				mine(9*gib)), after: step(gib, mine(gib)),
			verdict: gpuwait.VerdictReturned,
		},
		{
			name: "the driver never reclaims", before: step(0), running: step(30*gib,
				mine(30*gib)), after: step(30 * gib),
			verdict: gpuwait.VerdictHeld, bytes: 30 * gib, says: []string{"30.0 GiB that this engine held is in no process's account", "the driver has not reclaimed it"},
		},
		{
			name: "unlisted memory that came while the engine ran", before: step(0), running: step(40*gib,
				mine(30*gib)), after: step(10 * gib),
			verdict: gpuwait.VerdictReturned,
		},
		{
			name: "an engine on the CPU beside neighbours", before: step(60*gib, theirs(60*gib)), running: step(10*gib,
				theirs(10*gib)), after: step(99*gib, theirs(99*gib)),
			verdict: gpuwait.VerdictReturned, says: []string{"1 of 1 GPU(s) not used (no process of this engine has had a GPU mapped)"},
		},
		{
			name: "on the CPU, and the driver refuses to list", before: refused(60 * gib), running: refused(10 * gib), after: refused(99 * gib),
			verdict: gpuwait.VerdictReturned,
		},
		{
			name: "the driver stops listing", before: step(0), running: step(9*gib, mine(9*gib)), after: refused(0),
			verdict: gpuwait.VerdictUnproven, says: []string{"the driver has stopped listing processes: Insufficient Permissions (4)"},
		},
		{
			name: "a process without its bytes", before: step(0), running: step(9*gib,
				gpuwait.Holder{PID: me}), after: step(9*gib, gpuwait.Holder{PID: me}),
			verdict: gpuwait.VerdictHeld, says: []string{"still hold memory (the driver does not say how much)"},
		},
		{
			name: "a MIG slice", device: slice, before: step(0), running: step(9*gib,
				mine(9*gib)), after: step(0), verdict: gpuwait.VerdictReturned,
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if tc.device.UUID == "" {
				tc.device = h200()
			}
			synctest.Test(t, func(t *testing.T) {
				r, err := life(t, tc.device, tc.before, tc.running, tc.after)
				d := r.Devices[0]
				assert.Equal(t, tc.verdict, d.Verdict, "%v", r)
				assert.Equal(t, tc.bytes, d.Bytes)
				for _, s := range tc.says {
					assert.Contains(t, r.String(), s)
				}
				assert.Equal(t, tc.running.Used, d.Before.Memory.Used)
				assert.Equal(t, tc.after.Used, d.After.Memory.Used)
				if tc.verdict == gpuwait.VerdictReturned {
					require.NoError(t, err)
					assert.NotEmpty(t, d.Proof)
					return
				}
				require.ErrorIs(t, err, gpuwait.ErrNotClear)
				assert.Equal(t, tc.verdict == gpuwait.VerdictUnproven, errors.Is(err, gpuwait.ErrUnattributed))
				assert.Equal(t, map[bool]verdict.Class{
					true:  verdict.ClassLeak,
					false: verdict.ClassCapacity,
				}[tc.verdict == gpuwait.VerdictHeld], verdict.ClassOf(err))
				assert.Equal(t, r.String(), err.Error())
				var back gpuwait.AccountReport
				b, err := json.Marshal(r)
				require.NoError(t, err)
				require.NoError(t, json.Unmarshal(b, &back))
				assert.Equal(t, r.String(), back.String(), "the JSON says as much as the message")
			})
		})
	}
}

// In a container, memory without a holder may be anyone's.
func TestAccountAmongHiddenProcesses(t *testing.T) {
	gpuwait.Hidden(t, "processes of other containers are not listed")
	synctest.Test(t, func(t *testing.T) {
		me := os.Getpid()
		r, err := life(t, h200(), step(0), step(30*gib, holder(me, 30*gib)), step(30*gib))
		require.ErrorIs(t, err, gpuwait.ErrUnattributed)
		assert.Equal(t, gpuwait.VerdictUnproven, r.Devices[0].Verdict)
		assert.Contains(t, err.Error(),
			"or another process that is not listed took it (processes of other containers are not listed)")
		_, err = life(t, h200(), step(0), step(30*gib, holder(me, 30*gib)), step(0))
		require.NoError(t, err)
	})
}

// Memory that is on its way out when the baseline is taken is no baseline.
func TestAccountSettlesItsBaseline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := gpuwaittest.New(h200(decay(60*gib, 30, 6*time.Millisecond)...)) // reclaimed in 180 ms
		a, err := gpuwait.NewAccount(t.Context(), src, self, everything)
		require.NoError(t, err)
		src.Set("GPU-1a2b", step(50*gib))
		r, err := a.Returned(t.Context(), gpuwait.Timeout(time.Second))
		assert.Zero(t, r.Devices[0].Baseline.Memory.Used)
		assert.True(t, r.Devices[0].Settled)
		require.NoError(t, err, "this process has no GPU mapped: it is another's")
	})
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		src := gpuwaittest.New(h200(decay(60*gib, 1000, 10*time.Millisecond)...))
		a, err := gpuwait.NewAccount(t.Context(), src, self, everything)
		require.NoError(t, err)
		assert.Less(t, time.Since(start), 3*time.Second, "bubble time")
		r, _ := a.Returned(t.Context())
		assert.False(t, r.Devices[0].Settled, "and the report says so")
	})
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, err := gpuwait.NewAccount(t.Context(), gpuwaittest.New(h200(step(60*gib, holder(1, 60*gib)))), self,
			everything)
		require.NoError(t, err)
		assert.Zero(t, time.Since(start), "a neighbour that sits there is not waited for")
	})
}

func TestAccountAllowsWhatFixturesOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		me := os.Getpid()
		src := gpuwaittest.New(h200(step(10*gib, holder(me, 10*gib))))
		var owners gpuwait.Owners
		older := owners.Own("GPU-1a2b", "session fixture", 10*gib)
		a, err := gpuwait.NewAccount(t.Context(), src, self, everything, gpuwait.OwnedBy(&owners))
		require.NoError(t, err)
		back := func() error {
			_, err := a.Returned(t.Context(), gpuwait.Timeout(0))
			return err
		}
		younger := owners.Own("GPU-1a2b", "TestOther", 3*gib)
		src.Set("GPU-1a2b", step(13*gib, holder(me, 13*gib)))
		require.NoError(t, back(), "a fixture started since")
		younger()
		require.ErrorIs(t, back(), gpuwait.ErrNotClear, "it ended, and its memory is still there")
		src.Set("GPU-1a2b", step(10*gib, holder(me, 10*gib)))
		older()
		require.ErrorIs(t, back(), gpuwait.ErrNotClear, "the older one ended: its memory is a leak now")
		src.Set("GPU-1a2b", step(0))
		require.NoError(t, back())
	})
}

func TestAccountEndsEarlyOrNever(t *testing.T) {
	me := os.Getpid()
	for _, tc := range []struct {
		opts   []gpuwait.ReturnedOption
		ending gpuwait.Ending
		took   time.Duration
	}{
		{nil, gpuwait.Held, gpuwait.DefaultPatience},
		{[]gpuwait.ReturnedOption{gpuwait.Patience(time.Second)}, gpuwait.Held, time.Second},
		{[]gpuwait.ReturnedOption{gpuwait.KeepWaiting()}, gpuwait.TimedOut, gpuwait.DefaultTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, err := life(t, h200(), step(0), step(gib, holder(me, gib)), step(gib, holder(me, gib)),
				append(tc.opts, gpuwait.Timeout(gpuwait.DefaultTimeout))...)
			require.ErrorIs(t, err, gpuwait.ErrNotClear)
			assert.Equal(t, tc.ending, r.Ending)
			assert.InDelta(t, tc.took.Seconds(), r.Elapsed.Seconds(), 0.5)
		})
	}
}

func TestAccountCannotMeasure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := gpuwaittest.Step{Err: gpuwait.ErrLost}
		_, err := life(t, h200(), step(0), step(gib), lost)
		require.ErrorIs(t, err, gpuwait.ErrLost)
		require.NotErrorIs(t, err, gpuwait.ErrNotClear)
		_, err = gpuwait.NewAccount(t.Context(), gpuwaittest.New(h200(lost)), self, everything)
		require.ErrorIs(t, err, gpuwait.ErrCannotMeasure)
	})
}

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		src := gpuwaittest.New(h200(step(63*gib, holder(1, 56*gib))))
		_, err := gpuwait.Clear(t.Context(), src, gpuwait.NeedFree(100*gib), everything,
			gpuwait.Timeout(15*time.Second),
			gpuwait.Progress(func(line string) { lines = append(lines, line) }))
		require.ErrorIs(t, err, gpuwait.ErrNotClear)
		require.Len(t, lines, 3, "after 2, 7 and 12 seconds")
		assert.Equal(t, "gpuwait: waiting for 2s: GPU-1a2b (NVIDIA H200, index 0) uses 63.0 GiB of 140.0 GiB "+
			"(45%, want ≤ 40.0 GiB: 100.0 GiB must be free), held by pid 1 (56.0 GiB)", lines[0])
	})
	synctest.Test(t, func(t *testing.T) {
		opts := leasing(t, gpuwait.Devices(gpu1))
		l, err := gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.As("TestSlow"))...)
		require.NoError(t, err)
		defer l.Release()
		var lines []string
		_, err = gpuwait.AcquireContext(t.Context(), 1,
			with(opts, gpuwait.Timeout(4*time.Second), gpuwait.As("TestNext"),
				gpuwait.Progress(func(line string) { lines = append(lines, line) }))...)
		require.ErrorIs(t, err, gpuwait.ErrBusy)
		require.Len(t, lines, 1)
		assert.Contains(t, lines[0], "1 of 1 devices wanted; "+gpu1)
		assert.Contains(t, lines[0], "TestSlow")
	})
	synctest.Test(t, func(t *testing.T) {
		var lines []string
		me := os.Getpid()
		_, err := life(t, h200(), step(0), step(gib, holder(me, gib)), step(gib, holder(me, gib)),
			gpuwait.Timeout(3*time.Second),
			gpuwait.Progress(func(line string) { lines = append(lines, line) }))
		require.Error(t, err)
		assert.Equal(t, []string{"gpuwait: waiting for 2s: GPU-1a2b (NVIDIA H200, index 0): this engine's processes still hold 1.0 GiB"}, lines)
	})
}

func TestNeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var owners gpuwait.Owners
		defer owners.Own("GPU-1a2b", "session fixture", 100*gib)()
		src := gpuwaittest.New(h200(step(70*gib, holder(1, 70*gib)), gpuwaittest.Step{At: 10 * time.Second}))
		for _, tc := range []struct {
			cond gpuwait.Condition
			says string // "" when it is met at once
		}{
			{gpuwait.NeedFree(70 * gib), ""},
			{gpuwait.NeedFree(71 * gib), "want ≤ 69.0 GiB: 71.0 GiB must be free)"},
			{gpuwait.NeedUtilization(0.5), ""},
			{gpuwait.NeedUtilization(0.9), "want ≤ 14.0 GiB: 90% of total must be free)"},
		} {
			_, err := gpuwait.Clear(t.Context(), src, tc.cond, everything, gpuwait.OwnedBy(&owners), gpuwait.Timeout(0))
			if tc.says == "" {
				require.NoError(t, err)
				continue
			}
			require.ErrorContains(t, err, tc.says, "what fixtures own is in use")
			require.ErrorContains(t, err, "70.0 GiB  pid 1 ")
		}
		_, err := gpuwait.Clear(t.Context(), src, gpuwait.NeedUtilization(0.9), everything)
		require.NoError(t, err, "it is waited for")
		for _, cond := range []gpuwait.Condition{
			gpuwait.NeedFree(0), gpuwait.NeedFree(141 * gib),
			gpuwait.NeedUtilization(0), gpuwait.NeedUtilization(1.1),
		} {
			_, err := gpuwait.Clear(t.Context(), src, cond, everything)
			require.ErrorIs(t, err, gpuwait.ErrBadCondition)
		}
	})
}
