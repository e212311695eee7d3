package gpuwait_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/forkproc"
	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/gpuwait/gpuwaittest"
)

// Two packages that `go test` runs side by side: with leases their spans never overlap; the control
// without leases shows that they would.
func TestLeaseAcrossPackages(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skipf("needs the go command: %v", err)
	}
	dir := t.TempDir()
	cmd := exec.Command(goTool, "test", "-count=1", "-p=2", "-vet=off", "./testdata/lease/a", "./testdata/lease/b")
	cmd.Env = append(os.Environ(), "LEASE_SPANS="+dir, gpuwait.LeaseDirEnv+"="+filepath.Join(dir, "locks"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	overlaps, spans := countOverlaps(t, filepath.Join(dir, "leased"))
	assert.Equal(t, 10, spans)
	assert.Zero(t, overlaps)
	overlaps, spans = countOverlaps(t, filepath.Join(dir, "unleased"))
	assert.Equal(t, 10, spans)
	assert.Positive(t, overlaps, "the control must overlap, or this test proves nothing")
}

func countOverlaps(t *testing.T, file string) (overlaps, spans int) {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	type span struct {
		who      string
		from, to int64
	}
	var list []span
	for line := range strings.Lines(string(b)) {
		var s span
		_, err := fmt.Sscan(line, &s.who, &s.from, &s.to)
		require.NoError(t, err)
		for _, o := range list {
			if o.who != s.who && s.from < o.to && o.from < s.to {
				overlaps++
			}
		}
		list = append(list, s)
	}
	return overlaps, len(list)
}

// leaseHolder is the body of the process that TestLeaseOutlivesItsTaker kills; see TestMain.
func leaseHolder(mode string) {
	l, err := gpuwait.AcquireContext(context.Background(), 1, gpuwait.Devices(gpu1), gpuwait.From(twoGPUs(0, 0)),
		gpuwait.As("TestTaker"), gpuwait.Timeout(time.Minute))
	if err != nil {
		fmt.Printf("error %v\n", strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	if mode == "acquire" {
		fmt.Printf("leased %s with %d files\n", l.UUIDs(), len(l.Files()))
		return
	}
	if mode == "hold" {
		fmt.Println("child none")
		time.Sleep(10 * time.Minute)
		return
	}
	child := exec.Command("sleep", "600")
	if mode == "inherit" {
		child.ExtraFiles = l.Files()
	}
	if err := child.Start(); err != nil {
		fmt.Printf("error %v\n", err)
		return
	}
	fmt.Printf("child %d\n", child.Process.Pid)
	time.Sleep(10 * time.Minute)
}

func holderProcess(t *testing.T, dir, mode string, env ...string) (*exec.Cmd, *bufio.Scanner) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), "LEASE_HOLDER="+mode, gpuwait.LeaseDirEnv+"="+dir), env...)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	return cmd, bufio.NewScanner(out)
}

func answer(t *testing.T, lines *bufio.Scanner, prefix string) string {
	t.Helper()
	for lines.Scan() {
		if s, ok := strings.CutPrefix(lines.Text(), prefix); ok {
			return strings.TrimSpace(s)
		}
		if strings.HasPrefix(lines.Text(), "error ") {
			t.Fatal(lines.Text())
		}
	}
	t.Fatalf("the child never said %q", prefix)
	return ""
}

func TestLeaseOutlivesItsTaker(t *testing.T) {
	for _, mode := range []string{"inherit", "keep for itself"} {
		t.Run(mode, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "locks")
			taker, lines := holderProcess(t, dir, mode)
			require.NoError(t, taker.Start())
			pid, err := strconv.Atoi(answer(t, lines, "child "))
			require.NoError(t, err)
			defer syscall.Kill(pid, syscall.SIGKILL)
			require.NoError(t, taker.Process.Kill())
			taker.Wait()

			opts := []gpuwait.LeaseOption{
				gpuwait.LeaseDir(dir), gpuwait.Devices(gpu1), gpuwait.From(twoGPUs(0, 0)),
				gpuwait.As("TestNext"),
			}
			l, err := gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.Timeout(300*time.Millisecond))...)
			if mode != "inherit" {
				require.NoError(t, err, "the control: a lock that no child shares ends with its process")
				l.Release()
				return
			}
			require.ErrorIs(t, err, gpuwait.ErrBusy, "the child lives, and may still hold device memory")
			t.Log("\n" + err.Error())
			assert.Contains(t, err.Error(), fmt.Sprintf("which is gone; held on by pid %d, which inherited it", pid))

			inv, err := gpuwait.Inspect(twoGPUs(0, 0), gpuwait.LeaseDir(dir))
			require.NoError(t, err)
			require.NotNil(t, inv.Devices[0].Lease)
			assert.Equal(t, []int{pid}, inv.Devices[0].Lease.Holding)
			assert.Nil(t, inv.Devices[1].Lease)

			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			l, err = gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.Timeout(time.Minute))...)
			require.NoError(t, err, "free as soon as the child is dead")
			l.Release()
		})
	}
}

// The whole way: a test leases a GPU, and its body runs in a child that has the lease. What is
// above Run happens in both processes.
func TestLeaseWithForkproc(t *testing.T) {
	if !forkproc.InChild() {
		t.Setenv(gpuwait.LeaseDirEnv, t.TempDir())
	}
	src := twoGPUs(0, 0)
	if !forkproc.InChild() {
		src.Set(gpu1, gpuwaittest.Step{Used: gib}) // so that the parent takes the second
	}
	lease := gpuwait.Acquire(t, 1, gpuwait.From(src), everything)
	require.Equal(t, []string{gpu2}, lease.UUIDs(), "in the child gpu1 is as empty, and not ours")
	forkproc.Run(t, func(t *testing.T) {
		assert.Equal(t, gpu2, os.Getenv("CUDA_VISIBLE_DEVICES"))
		inv, err := gpuwait.Inspect(src, everything)
		require.NoError(t, err)
		require.NotNil(t, inv.Devices[1].Lease)
		assert.Equal(t, os.Getenv("LEASE_OF"), strconv.Itoa(inv.Devices[1].Lease.PID))
		assert.Nil(t, inv.Devices[0].Lease)
	}, forkproc.Env(append(lease.Env(), "LEASE_OF="+strconv.Itoa(os.Getpid()))...), forkproc.Files(lease.Files()...))
}

// Killed at any moment, a taker leaves nothing that keeps the next one out.
func TestLeaseTakerKilledAtRandomMoments(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	opts := []gpuwait.LeaseOption{
		gpuwait.LeaseDir(dir), gpuwait.Devices(gpu1), gpuwait.From(twoGPUs(0, 0)),
		gpuwait.Timeout(time.Minute),
	}
	taken := 0
	for i := range 30 {
		taker, lines := holderProcess(t, dir, "hold")
		require.NoError(t, taker.Start())
		if i%3 == 0 {
			answer(t, lines, "child ") // it has the lease
			taken++
		} else {
			time.Sleep(rand.N(30 * time.Millisecond)) // anywhere between exec and having it
		}
		require.NoError(t, taker.Process.Kill())
		taker.Wait()
		l, err := gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.As("TestNext"))...)
		require.NoError(t, err)
		l.Release()
	}
	assert.Positive(t, taken)
}

func TestLeaseInChild(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	l, err := gpuwait.AcquireContext(t.Context(), 1, gpuwait.LeaseDir(dir), gpuwait.Devices(gpu1),
		gpuwait.From(twoGPUs(0, 0)), gpuwait.As("TestParent"))
	require.NoError(t, err)
	defer l.Release()

	child, lines := holderProcess(t, dir, "acquire", l.Env()...)
	child.ExtraFiles = l.Files()
	require.NoError(t, child.Start())
	assert.Equal(t, "["+gpu1+"] with 0 files", answer(t, lines, "leased "),
		"the child's Acquire takes the device that its parent leased for it")
	child.Wait()

	child, _ = holderProcess(t, dir, "acquire")
	child.Stdout = nil
	out, err := child.Output()
	require.NoError(t, err)
	assert.Contains(t, string(out), "held by this process's own parent",
		"without the environment it would wait for its parent, which waits for it")

	l.Release()
	stranger, err := gpuwait.AcquireContext(t.Context(), 1, gpuwait.LeaseDir(dir), gpuwait.Devices(gpu2),
		gpuwait.From(twoGPUs(0, 0)), gpuwait.As("TestStranger"))
	require.NoError(t, err)
	defer stranger.Release()
	child, lines = holderProcess(t, dir, "acquire", gpuwait.LeasedEnv+"="+gpu1)
	require.NoError(t, child.Start())
	assert.Equal(t, "["+gpu1+"] with 1 files", answer(t, lines, "leased "),
		"a variable that outlived its lease: the device is taken for real")
	child.Wait()
}

// A lease that the parent passed on is held by the test that took it in the child, too: who asks
// again inside of it would wait for itself.
func TestLeaseTwiceInChild(t *testing.T) {
	if !forkproc.InChild() {
		t.Setenv(gpuwait.LeaseDirEnv, t.TempDir())
	}
	opts := []gpuwait.LeaseOption{gpuwait.From(twoGPUs(0, 0)), everything, gpuwait.Devices(gpu1)}
	lease := gpuwait.Acquire(t, 1, forTest(opts)...)
	forkproc.Run(t, func(t *testing.T) {
		_, err := gpuwait.AcquireContext(t.Context(), 1,
			with(opts, gpuwait.As(t.Name()+"/sub"), gpuwait.Timeout(time.Minute))...)
		require.ErrorContains(t, err, "TestLeaseTwiceInChild holds it already")
	}, forkproc.Env(lease.Env()...), forkproc.Files(lease.Files()...))
}
