package gpuwait_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/gpuwait/gpuwaittest"
)

var _ gpuwait.TB = testing.TB(nil)

func TestMain(m *testing.M) {
	if mode := os.Getenv("LEASE_HOLDER"); mode != "" {
		leaseHolder(mode)
		return
	}
	if role := os.Getenv("GPUWAIT_SCHEDULE"); role != "" {
		if err := scheduleProcess(role); err != nil {
			fmt.Fprintln(os.Stderr, "scheduleProcess:", err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv("GPUWAIT_CUDA_GIB") != "" {
		runtime.LockOSThread() // a CUDA context belongs to a thread
		if err := cudaHold(); err != nil {
			fmt.Fprintln(os.Stderr, "cudaHold:", err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func TestForClear(t *testing.T) {
	held := gpuwaittest.New(h200(gpuwaittest.Step{Used: 63 * gib}))
	run := func(ft *fakeT, cond gpuwait.Condition, opts ...gpuwait.ForClearOption) (r gpuwait.Report) {
		ft.run(func() { r = gpuwait.ForClear(ft, cond, append([]gpuwait.ForClearOption{everything}, opts...)...) })
		return r
	}
	t.Run("clear", func(t *testing.T) {
		ft := &fakeT{name: "TestA"}
		r := run(ft, gpuwait.Ratio(0.5), gpuwait.From(held))
		assert.Empty(t, ft.fatal)
		assert.Equal(t, gpuwait.Cleared, r.Ending)
	})
	t.Run("ends before the test's deadline, with its own message", func(t *testing.T) {
		ft := &fakeT{name: "TestGenerate/long_prompt", deadline: time.Now().Add(time.Hour)}
		run(ft, gpuwait.Ratio(0.1), gpuwait.From(held), gpuwait.Grace(time.Hour-100*time.Millisecond))
		assert.True(t, time.Now().Before(ft.deadline))
		assert.Contains(t, ft.fatal, "still holds 63.0 GiB")
		assert.Contains(t, ft.fatal, "the test's own deadline is near (go test -timeout)")
		assert.Contains(t, ft.fatal, "to reproduce: go test ")
		assert.Contains(t, ft.fatal,
			"github.com/enginetest/enginetest/gpuwait -run '^TestGenerate$/^long_prompt$' -count=1")
	})
	t.Run("a deadline that is past still gives one reading", func(t *testing.T) {
		ft := &fakeT{name: "TestLate", deadline: time.Now().Add(-time.Second)}
		run(ft, gpuwait.Ratio(0.1), gpuwait.From(held))
		assert.Contains(t, ft.fatal, "still holds 63.0 GiB")
	})
	t.Run("cannot measure fails", func(t *testing.T) {
		ft := &fakeT{name: "TestLost"}
		run(ft, gpuwait.Ratio(0.1), gpuwait.From(gpuwaittest.New(h200(gpuwaittest.Step{Err: gpuwait.ErrLost}))))
		assert.Contains(t, ft.fatal, "device lost")
	})
	t.Run("or skips when told, with the reason", func(t *testing.T) {
		ft := &fakeT{name: "TestLost"}
		run(ft, gpuwait.Ratio(0.1), gpuwait.From(gpuwaittest.New(h200(gpuwaittest.Step{Err: gpuwait.ErrLost}))),
			gpuwait.SkipUnmeasurable())
		assert.Empty(t, ft.fatal)
		assert.Contains(t, ft.skip, "device lost")
	})
	t.Run("not clear is never skipped", func(t *testing.T) {
		ft := &fakeT{name: "TestHeld"}
		run(ft, gpuwait.Ratio(0.1), gpuwait.From(held), gpuwait.SkipUnmeasurable(), gpuwait.Timeout(0))
		assert.Empty(t, ft.skip)
		assert.NotEmpty(t, ft.fatal)
	})
}

// Who holds it, with real processes: a test's child, its zombie, and a lease.
func TestHoldersAreNamed(t *testing.T) {
	child := exec.Command("sleep", "300")
	child.Env = append(os.Environ(), gpuwait.TestEnv+"=TestLoad7B/bf16")
	require.NoError(t, child.Start())
	defer func() { child.Process.Kill(); child.Wait() }()
	zombie := exec.Command("true")
	require.NoError(t, zombie.Start())
	defer zombie.Wait()
	waitForZombie(t, zombie.Process.Pid)

	dir := gpuwait.LeaseDir(t.TempDir())
	src := gpuwaittest.New(h200(gpuwaittest.Step{Used: 63 * gib, Holders: []gpuwait.Holder{
		holder(zombie.Process.Pid, gib), holder(child.Process.Pid, 56*gib), {PID: 1 << 29},
	}}))
	lease, err := gpuwait.AcquireContext(t.Context(), 1, gpuwait.From(src), everything, dir, gpuwait.As("TestOwner"))
	require.NoError(t, err)
	defer lease.Release()
	r, err := gpuwait.Clear(t.Context(), src, gpuwait.Ratio(0.1), everything, dir, gpuwait.Timeout(0))
	require.ErrorIs(t, err, gpuwait.ErrNotClear)
	t.Log("\n" + err.Error())
	hs := r.Devices[0].Holders
	require.Len(t, hs, 3)
	assert.Equal(t, child.Process.Pid, hs[0].PID, "largest first")
	assert.Equal(t, "sleep 300", hs[0].Command)
	assert.Equal(t, "TestLoad7B/bf16", hs[0].Test)
	assert.Equal(t, "child of this process", hs[0].Relation)
	assert.WithinDuration(t, time.Now(), hs[0].Started, 10*time.Minute)
	assert.Equal(t, "exiting", hs[1].State)
	assert.Equal(t, "not visible", hs[2].State)
	assert.False(t, hs[2].Known)
	assert.Contains(t, err.Error(), "leased by pid")

	var back gpuwait.Report
	b, err := json.Marshal(r)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &back))
	assert.Equal(t, r.String(), back.String(), "the JSON says as much as the message")
}

// A process whose test is gone, and a process that init started: only one of them is left over.
func TestOrphansAreNamed(t *testing.T) {
	var pid int
	sh := exec.Command("sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!")
	sh.Env = append(os.Environ(), gpuwait.TestEnv+"=TestGone")
	out, err := sh.Output()
	require.NoError(t, err)
	_, err = fmt.Sscan(string(out), &pid)
	require.NoError(t, err)
	defer syscall.Kill(pid, syscall.SIGKILL)
	src := gpuwaittest.New(h200(gpuwaittest.Step{
		Used:    63 * gib,
		Holders: []gpuwait.Holder{holder(pid, gib), holder(1, gib)},
	}))
	inv, err := gpuwait.Inspect(src, gpuwait.LeaseDir(t.TempDir()))
	require.NoError(t, err)
	t.Log("\n" + inv.String())
	assert.Contains(t, inv.String(), "sleep 300  TestGone  started")
	assert.Equal(t, 1, strings.Count(inv.String(), "← left over from a test whose process is gone"))
	assert.NotContains(t, inv.String(), "its parent is gone")
}

func waitForZombie(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); strings.Contains(string(b), ") Z ") {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("never became a zombie")
}

// A holder that is about to be gone is no reason to give up early; a live one is.
func TestOnlyLiveHoldersEndTheWaitEarly(t *testing.T) {
	zombie := exec.Command("true")
	require.NoError(t, zombie.Start())
	defer zombie.Wait()
	waitForZombie(t, zombie.Process.Pid)
	for _, c := range []struct {
		pid     int
		timeout time.Duration
		want    gpuwait.Ending
	}{
		{zombie.Process.Pid, 150 * time.Millisecond, gpuwait.TimedOut},
		{os.Getpid(), time.Hour, gpuwait.Held},
	} {
		src := gpuwaittest.New(h200(gpuwaittest.Step{Used: 63 * gib, Holders: []gpuwait.Holder{holder(c.pid, gib)}}))
		r, err := gpuwait.Clear(t.Context(), src, gpuwait.Ratio(0.1), everything,
			gpuwait.Patience(20*time.Millisecond), gpuwait.Timeout(c.timeout))
		require.ErrorIs(t, err, gpuwait.ErrNotClear)
		assert.Equal(t, c.want, r.Ending)
	}
}

func TestInspect(t *testing.T) {
	src := gpuwaittest.New(
		h200(gpuwaittest.Step{Used: 63 * gib, Holders: []gpuwait.Holder{holder(os.Getpid(), 60*gib)}}),
		gpuwaittest.Device{
			Device: gpuwait.Device{UUID: "GPU-dead", Index: 1, Name: "NVIDIA H200"}, Total: gib,
			Steps: []gpuwaittest.Step{{Err: gpuwait.ErrLost, HoldersErr: gpuwait.ErrLost}},
		},
	)
	inv, err := gpuwait.Inspect(src, gpuwait.LeaseDir(t.TempDir()), gpuwait.Env(env{"CUDA_VISIBLE_DEVICES": "0"}.get))
	require.NoError(t, err)
	t.Log("\n" + inv.String())
	assert.True(t, inv.Devices[0].Visible)
	assert.False(t, inv.Devices[1].Visible)
	assert.Equal(t, 3*gib, inv.Devices[0].Unattributed)
	assert.Nil(t, inv.Devices[1].Memory, "never 0")
	b, err := json.Marshal(inv)
	require.NoError(t, err)
	for _, s := range []string{
		`"uuid":"GPU-1a2b"`, `"used":67645734912`, `"command":"gpuwait.test`,
		`"error":"cannot measure: device lost"`,
	} {
		assert.Contains(t, string(b), s)
	}
	_, err = gpuwait.Inspect(src, gpuwait.Devices("7"))
	require.ErrorIs(t, err, gpuwait.ErrNoDevice)
}

func TestExitCode(t *testing.T) {
	src := gpuwaittest.New(h200(gpuwaittest.Step{Used: 63 * gib}))
	code := func(cond gpuwait.Condition, opts ...gpuwait.ClearOption) int {
		_, err := gpuwait.Clear(t.Context(), src, cond, append(opts, gpuwait.Timeout(0))...)
		return gpuwait.ExitCode(err)
	}
	assert.Equal(t, 0, code(gpuwait.Ratio(0.5), everything))
	assert.Equal(t, 1, code(gpuwait.Ratio(0.1), everything))
	assert.Equal(t, 2, code(gpuwait.Ratio(5), everything))
	assert.Equal(t, 2, code(gpuwait.Ratio(0.5), gpuwait.Devices("9")))
	assert.Equal(t, 2, code(gpuwait.Ratio(0.5), gpuwait.Env(env{"CUDA_VISIBLE_DEVICES": ""}.get)))
	src.Set("GPU-1a2b", gpuwaittest.Step{Err: gpuwait.ErrLost})
	assert.Equal(t, 3, code(gpuwait.Ratio(0.5), everything))
}

// BenchmarkClear is what a wait costs when there is nothing to wait for.
func BenchmarkClear(b *testing.B) {
	src := gpuwaittest.New(h200())
	for b.Loop() {
		if _, err := gpuwait.Clear(b.Context(), src, gpuwait.Ratio(0.1), everything); err != nil {
			b.Fatal(err)
		}
	}
}
