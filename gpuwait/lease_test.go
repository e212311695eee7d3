package gpuwait_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/forkproc"
	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/gpuwait/gpuwaittest"
)

const (
	gpu1 = "GPU-00000000-0000-0000-0000-000000000001"
	gpu2 = "GPU-00000000-0000-0000-0000-000000000002"
)

func twoGPUs(used1, used2 int64) *gpuwaittest.Source {
	dev := func(i int, uuid string, used int64) gpuwaittest.Device {
		return gpuwaittest.Device{
			Device: gpuwait.Device{UUID: uuid, Index: i, Name: "NVIDIA H200"}, Total: 140 * gib, Steps: []gpuwaittest.Step{{Used: used}},
		}
	}
	return gpuwaittest.New(dev(0, gpu1, used1), dev(1, gpu2, used2))
}

// leasing gives the options of one test: its own folder of locks, and two GPUs.
func leasing(t *testing.T, more ...gpuwait.Option) []gpuwait.Option {
	return append([]gpuwait.Option{gpuwait.LeaseDir(t.TempDir()), gpuwait.From(twoGPUs(0, 0)), everything}, more...)
}

func with(opts []gpuwait.Option, more ...gpuwait.Option) []gpuwait.Option {
	return append(append([]gpuwait.Option{}, opts...), more...)
}

func TestLeaseExcludesAndNames(t *testing.T) {
	opts := leasing(t)
	ctx := t.Context()
	both, err := gpuwait.AcquireContext(ctx, 2, with(opts, gpuwait.As("TestBoth"))...)
	require.NoError(t, err)
	assert.Equal(t, []string{gpu1, gpu2}, both.UUIDs())

	_, err = gpuwait.AcquireContext(ctx, 1, with(opts, gpuwait.As("TestOther"), gpuwait.Timeout(0))...)
	var busy *gpuwait.BusyError
	require.ErrorAs(t, err, &busy)
	require.ErrorIs(t, err, gpuwait.ErrBusy)
	t.Log("\n" + err.Error())
	for _, s := range []string{"TestOther could not lease 1 of 2 devices", fmt.Sprintf("leased by pid %d (gpuwait.test) TestBoth since", os.Getpid()), "gpuwait.SkipIfBusy()"} {
		assert.Contains(t, err.Error(), s)
	}
	assert.Equal(t, "TestBoth", busy.Devices[0].Lessee.Name)

	both.Release()
	both.Release()
	one, err := gpuwait.AcquireContext(ctx, 1, opts...)
	require.NoError(t, err)
	defer one.Release()
	_, err = gpuwait.AcquireContext(ctx, 2, with(opts, gpuwait.Timeout(5*time.Millisecond), gpuwait.As("x"))...)
	require.ErrorIs(t, err, gpuwait.ErrBusy)
	other, err := gpuwait.AcquireContext(ctx, 1, with(opts, gpuwait.As("y"))...)
	require.NoError(t, err, "the one that did not get both keeps none")
	other.Release()
}

func TestLeaseChoosesTheEmptiest(t *testing.T) {
	src := twoGPUs(100*gib, 3*gib)
	opts := []gpuwait.Option{gpuwait.LeaseDir(t.TempDir()), gpuwait.From(src), everything}
	l, err := gpuwait.AcquireContext(t.Context(), 1, opts...)
	require.NoError(t, err)
	assert.Equal(t, []string{gpu2}, l.UUIDs())
	assert.Equal(t, []string{"GPUWAIT_LEASED=" + gpu2, "CUDA_VISIBLE_DEVICES=" + gpu2}, l.Env())

	_, err = gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.MinFree(50*gib), gpuwait.Timeout(0), gpuwait.As("TestBig"))...)
	require.ErrorContains(t, err, "only 40.0 GiB free of 140.0 GiB")
	require.ErrorContains(t, err, "with 50.0 GiB free")

	src.Set(gpu1, gpuwaittest.Step{Err: gpuwait.ErrLost})
	_, err = gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.Timeout(0), gpuwait.As("TestLost"))...)
	require.ErrorContains(t, err, "device lost", "a device that cannot be measured is not leased")

	_, err = gpuwait.AcquireContext(t.Context(), 2, with(opts, gpuwait.As("TestLost"))...)
	require.ErrorIs(t, err, gpuwait.ErrLost, "and not waited for when the others are too few")
	require.NotErrorIs(t, err, gpuwait.ErrBusy)

	src.Set(gpu1, gpuwaittest.Step{Used: 100 * gib})
	time.AfterFunc(20*time.Millisecond, func() { src.Set(gpu1, gpuwaittest.Step{}) })
	late, err := gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.MinFree(50*gib))...)
	require.NoError(t, err, "room that comes is waited for")
	late.Release()
	l.Release()

	_, err = gpuwait.AcquireContext(t.Context(), 3, opts...)
	require.ErrorIs(t, err, gpuwait.ErrNoDevice)
	_, err = gpuwait.AcquireContext(t.Context(), 0, opts...)
	require.Error(t, err)
}

// A machine without a GPU: what is named by full UUID can be leased all the same, and nothing else can.
func TestLeaseWithoutSource(t *testing.T) {
	if src, err := gpuwait.Open(); err == nil {
		src.Close()
		t.Skip("this machine has a GPU: leasing without a source cannot be seen here")
	}
	dir := gpuwait.LeaseDir(t.TempDir())
	l, err := gpuwait.AcquireContext(t.Context(), 2, dir, gpuwait.Devices(gpu2, gpu1))
	require.NoError(t, err)
	assert.Equal(t, []string{gpu2, gpu1}, l.UUIDs())
	assert.Len(t, l.Files(), 2)
	_, err = gpuwait.AcquireContext(t.Context(), 1, dir, gpuwait.Devices(gpu1), gpuwait.As("x"), gpuwait.Timeout(0))
	require.ErrorIs(t, err, gpuwait.ErrBusy)
	l.Release()
	for reason, opts := range map[string][]gpuwait.Option{
		"no name":                     {dir},
		"an index needs a source":     {dir, gpuwait.Devices("0")},
		"a beginning needs a source":  {dir, gpuwait.Devices("GPU-0000")},
		"free bytes need measurement": {dir, gpuwait.Devices(gpu1), gpuwait.MinFree(1)},
	} {
		_, err := gpuwait.AcquireContext(t.Context(), 1, opts...)
		require.ErrorIs(t, err, gpuwait.ErrNoSource, reason)
	}
	ft := &fakeT{name: "TestGPU"}
	ft.run(func() { gpuwait.Acquire(ft, 1, gpuwait.SkipUnmeasurable()) })
	assert.Contains(t, ft.skip, "no GPU found")
}

func TestLeaseEnvOfAMD(t *testing.T) {
	l, err := gpuwait.AcquireContext(t.Context(), 2, gpuwait.LeaseDir(t.TempDir()), everything, gpuwait.From(gpuwaittest.New(
		gpuwaittest.Device{Device: gpuwait.Device{UUID: "GPU-00000000deadbeef", Index: 2, Vendor: gpuwait.AMD}, Total: gib},
		gpuwaittest.Device{Device: gpuwait.Device{UUID: "GPU-00000000cafebabe", Index: 3, Vendor: gpuwait.AMD}, Total: gib},
	)))
	require.NoError(t, err)
	defer l.Release()
	assert.Contains(t, l.Env(), "ROCR_VISIBLE_DEVICES=GPU-00000000deadbeef,GPU-00000000cafebabe")
	assert.Contains(t, l.Env(), "HIP_VISIBLE_DEVICES=0,1")
}

// First come, first served: also for a device that is free while an earlier one waits for it and another.
func TestLeaseIsFair(t *testing.T) {
	opts := leasing(t)
	held, err := gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.Devices(gpu1))...)
	require.NoError(t, err)
	var mu sync.Mutex
	var order []string
	var wg sync.WaitGroup
	queueUp := func(name string, n int, devices ...string) {
		wg.Go(func() {
			l, err := gpuwait.AcquireContext(t.Context(), n, with(opts, gpuwait.As(name), gpuwait.Devices(devices...))...)
			if !assert.NoError(t, err) {
				return
			}
			mu.Lock()
			order = append(order, name)
			mu.Unlock()
			time.Sleep(5 * time.Millisecond)
			l.Release()
		})
		time.Sleep(20 * time.Millisecond) // so that they come in this order
	}
	queueUp("both", 2, gpu1, gpu2)
	queueUp("second of gpu1", 1, gpu1)
	queueUp("second of gpu2", 1, gpu2)
	mu.Lock()
	assert.Empty(t, order, "gpu2 is free, and belongs to the one who came first")
	mu.Unlock()
	held.Release()
	wg.Wait()
	assert.Equal(t, "both", order[0])
}

func TestLeaseManyAtOnce(t *testing.T) {
	opts := leasing(t)
	var mu sync.Mutex
	held := map[string]bool{}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			l, err := gpuwait.AcquireContext(t.Context(), 1+i%2, with(opts, gpuwait.As(fmt.Sprint("T", i)))...)
			if !assert.NoError(t, err) {
				return
			}
			mu.Lock()
			for _, u := range l.UUIDs() {
				assert.False(t, held[u], "two hold %s", u)
				held[u] = true
			}
			mu.Unlock()
			runtime.Gosched()
			mu.Lock()
			for _, u := range l.UUIDs() {
				held[u] = false
			}
			mu.Unlock()
			l.Release()
		})
	}
	wg.Wait()
}

func TestLeaseThatWouldWaitForItself(t *testing.T) {
	opts := leasing(t, gpuwait.Devices(gpu1))
	l, err := gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.As("TestX"))...)
	require.NoError(t, err)
	defer l.Release()
	for _, name := range []string{"TestX", "TestX/sub"} {
		start := time.Now()
		_, err = gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.As(name))...)
		require.ErrorContains(t, err, "TestX holds it already")
		assert.Less(t, time.Since(start), time.Second, "said at once")
	}
}

func TestLeaseWaitsUntilShortlyBeforeTheTestsDeadline(t *testing.T) {
	opts := leasing(t, gpuwait.Devices(gpu1))
	l, err := gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.As("TestSlow"))...)
	require.NoError(t, err)
	defer l.Release()
	ft := &fakeT{name: "TestWaits", deadline: time.Now().Add(400 * time.Millisecond)}
	start := time.Now()
	ft.run(func() { gpuwait.Acquire(ft, 1, with(opts, gpuwait.Grace(300*time.Millisecond))...) })
	assert.Less(t, time.Since(start), 350*time.Millisecond)
	assert.Contains(t, ft.fatal, "leased by pid")
	assert.Contains(t, ft.fatal, "TestSlow")
	assert.Contains(t, ft.fatal, "the test's own deadline is near")
	assert.Contains(t, ft.fatal, "go test github.com/enginetest/enginetest/gpuwait -run '^TestWaits$' -count=1")

	ft = &fakeT{name: "TestSkips", deadline: time.Now().Add(50 * time.Millisecond)}
	ft.run(func() { gpuwait.Acquire(ft, 1, with(opts, gpuwait.SkipIfBusy())...) })
	assert.Empty(t, ft.fatal)
	assert.Contains(t, ft.skip, "TestSlow")

	l.Release()
	ft = &fakeT{name: "TestGets"}
	ft.run(func() { gpuwait.Acquire(ft, 1, opts...) })
	assert.Empty(t, ft.fatal)
	require.Len(t, ft.cleanups, 1)
	ft.cleanups[0]()
	again, err := gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.Timeout(0))...)
	require.NoError(t, err, "cleanup released it")
	again.Release()
}

func TestLeaseContextEnds(t *testing.T) {
	opts := leasing(t, gpuwait.Devices(gpu1))
	l, err := gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.As("TestOne"))...)
	require.NoError(t, err)
	defer l.Release()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errors.New("enough"))
	defer cancel()
	_, err = gpuwait.AcquireContext(ctx, 1, with(opts, gpuwait.As("TestTwo"))...)
	require.ErrorIs(t, err, gpuwait.ErrBusy)
	require.ErrorContains(t, err, "enough")
}

func TestLeaseFolderAndNames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	acquire := func(dir, uuid string) error {
		l, err := gpuwait.AcquireContext(t.Context(), 1, gpuwait.LeaseDir(dir), gpuwait.Devices(uuid), gpuwait.From(gpuwaittest.New(
			gpuwaittest.Device{Device: gpuwait.Device{UUID: uuid}, Total: gib})))
		if err == nil {
			l.Release()
		}
		return err
	}
	require.NoError(t, acquire(dir, gpu1))
	for name, mode := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, gpu1+".lock"): 0o600} {
		fi, err := os.Stat(name)
		require.NoError(t, err)
		assert.Equal(t, mode, fi.Mode().Perm(), name)
	}
	require.ErrorIs(t, acquire(dir, "GPU-../../../../etc/passwd"), gpuwait.ErrBadSelector)
	require.NoError(t, os.Chmod(dir, 0o777))
	require.ErrorContains(t, acquire(dir, gpu1), "not a folder that only user")
	require.NoError(t, os.Chmod(dir, 0o700))
	link := dir + "-link"
	require.NoError(t, os.Symlink(dir, link))
	require.ErrorContains(t, acquire(link, gpu1), "not a folder that only user")
	trap := filepath.Join(dir, gpu2+".lock")
	require.NoError(t, os.Symlink("/etc/passwd", trap))
	require.Error(t, acquire(dir, gpu2), "a symlink in the place of a lock is not followed")
}

// Two packages that `go test` runs side by side: with leases their spans never overlap; the control without leases shows that they would.
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
	l, err := gpuwait.AcquireContext(context.Background(), 1, gpuwait.Devices(gpu1), gpuwait.From(twoGPUs(0, 0)), gpuwait.As("TestTaker"), gpuwait.Timeout(10*time.Second))
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
		time.Sleep(time.Minute)
		return
	}
	child := exec.Command("sleep", "60")
	if mode == "inherit" {
		child.ExtraFiles = l.Files()
	}
	if err := child.Start(); err != nil {
		fmt.Printf("error %v\n", err)
		return
	}
	fmt.Printf("child %d\n", child.Process.Pid)
	time.Sleep(time.Minute)
}

func itoa(n int) string { return strconv.Itoa(n) }

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

			opts := []gpuwait.Option{gpuwait.LeaseDir(dir), gpuwait.Devices(gpu1), gpuwait.From(twoGPUs(0, 0)), gpuwait.As("TestNext")}
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
			l, err = gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.Timeout(5*time.Second))...)
			require.NoError(t, err, "free as soon as the child is dead")
			l.Release()
		})
	}
}

// The whole way: a test leases a GPU, and its body runs in a child that has the lease. What is above Run happens in both processes.
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
		assert.Equal(t, os.Getppid(), inv.Devices[1].Lease.PID)
		assert.Nil(t, inv.Devices[0].Lease)
	}, forkproc.Env(lease.Env()...), forkproc.Files(lease.Files()...))
}

// Killed at any moment, a taker leaves nothing that keeps the next one out.
func TestLeaseTakerKilledAtRandomMoments(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	opts := []gpuwait.Option{gpuwait.LeaseDir(dir), gpuwait.Devices(gpu1), gpuwait.From(twoGPUs(0, 0)), gpuwait.Timeout(10 * time.Second)}
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

// A lock that is held, with a line that nobody can read.
func TestLeaseOfNobody(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, gpu1+".lock"))
	require.NoError(t, err)
	defer f.Close()
	f.WriteString("{garbage")
	require.NoError(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	_, err = gpuwait.AcquireContext(t.Context(), 1, gpuwait.LeaseDir(dir), gpuwait.Devices(gpu1), gpuwait.From(twoGPUs(0, 0)), gpuwait.Timeout(0))
	require.ErrorContains(t, err, "leased by a process that left no name")
}

func TestLeaseInChild(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	l, err := gpuwait.AcquireContext(t.Context(), 1, gpuwait.LeaseDir(dir), gpuwait.Devices(gpu1), gpuwait.From(twoGPUs(0, 0)), gpuwait.As("TestParent"))
	require.NoError(t, err)
	defer l.Release()

	child, lines := holderProcess(t, dir, "acquire", l.Env()...)
	child.ExtraFiles = l.Files()
	require.NoError(t, child.Start())
	assert.Equal(t, "["+gpu1+"] with 0 files", answer(t, lines, "leased "), "the child's Acquire takes the device that its parent leased for it")
	child.Wait()

	start := time.Now()
	child, _ = holderProcess(t, dir, "acquire")
	child.Stdout = nil
	out, err := child.Output()
	require.NoError(t, err)
	assert.Contains(t, string(out), "held by this process's own parent", "without the environment it would wait for its parent, which waits for it")
	assert.Less(t, time.Since(start), 5*time.Second)

	l.Release()
	stranger, err := gpuwait.AcquireContext(t.Context(), 1, gpuwait.LeaseDir(dir), gpuwait.Devices(gpu2), gpuwait.From(twoGPUs(0, 0)), gpuwait.As("TestStranger"))
	require.NoError(t, err)
	defer stranger.Release()
	child, lines = holderProcess(t, dir, "acquire", gpuwait.LeasedEnv+"="+gpu1)
	require.NoError(t, child.Start())
	assert.Equal(t, "["+gpu1+"] with 1 files", answer(t, lines, "leased "), "a variable that outlived its lease: the device is taken for real")
	child.Wait()
}

// fakeT records what a wrapper says.
type fakeT struct {
	name        string
	deadline    time.Time
	fatal, skip string
	cleanups    []func()
}

func (f *fakeT) Helper()             {}
func (f *fakeT) Name() string        { return f.name }
func (f *fakeT) Logf(string, ...any) {}
func (f *fakeT) Cleanup(fn func())   { f.cleanups = append(f.cleanups, fn) }
func (f *fakeT) Deadline() (time.Time, bool) {
	return f.deadline, !f.deadline.IsZero()
}

func (f *fakeT) Fatalf(format string, args ...any) {
	f.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (f *fakeT) Skipf(format string, args ...any) {
	f.skip = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// run lets Fatalf end the body only.
func (f *fakeT) run(body func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		body()
	}()
	<-done
}
