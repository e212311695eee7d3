package gpuwait_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
			Device: gpuwait.Device{
				UUID: uuid, Index: i,
				Name: "NVIDIA H200",
			}, Total: 140 * gib, Steps: []gpuwaittest.Step{{Used: used}},
		}
	}
	return gpuwaittest.New(dev(0, gpu1, used1), dev(1, gpu2, used2))
}

// leasing returns the options of one test: its own folder of locks, and two GPUs.
func leasing(t *testing.T, more ...gpuwait.LeaseOption) []gpuwait.LeaseOption {
	return append([]gpuwait.LeaseOption{gpuwait.LeaseDir(t.TempDir()), gpuwait.From(twoGPUs(0, 0)), everything},
		more...)
}

func with(opts []gpuwait.LeaseOption, more ...gpuwait.LeaseOption) []gpuwait.LeaseOption {
	return append(append([]gpuwait.LeaseOption{}, opts...), more...)
}

// forTest turns options of AcquireContext into options of Acquire.
func forTest(opts []gpuwait.LeaseOption, more ...gpuwait.AcquireOption) []gpuwait.AcquireOption {
	for _, o := range opts {
		more = append(more, o)
	}
	return more
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
	for _, s := range []string{
		"TestOther could not lease 1 of 2 devices",
		fmt.Sprintf("leased by pid %d (gpuwait.test) TestBoth since", os.Getpid()), "gpuwait.SkipIfBusy()",
	} {
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
	opts := []gpuwait.LeaseOption{gpuwait.LeaseDir(t.TempDir()), gpuwait.From(src), everything}
	l, err := gpuwait.AcquireContext(t.Context(), 1, opts...)
	require.NoError(t, err)
	assert.Equal(t, []string{gpu2}, l.UUIDs())
	assert.Equal(t, []string{"GPUWAIT_LEASED=" + gpu2, "CUDA_VISIBLE_DEVICES=" + gpu2}, l.Env())

	_, err = gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.MinFree(50*gib), gpuwait.Timeout(0),
		gpuwait.As("TestBig"))...)
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

// A machine without a GPU: what is named by full UUID can be leased all the same, and nothing else
// can.
func TestLeaseWithoutSource(t *testing.T) { withoutGPU(t, testLeaseWithoutSource) }

func testLeaseWithoutSource(t *testing.T) {
	gpuwait.NoGPUEvidence(t, t.TempDir())
	dir := gpuwait.LeaseDir(t.TempDir())
	l, err := gpuwait.AcquireContext(t.Context(), 2, dir, gpuwait.Devices(gpu2, gpu1))
	require.NoError(t, err)
	assert.Equal(t, []string{gpu2, gpu1}, l.UUIDs())
	assert.Len(t, l.Files(), 2)
	_, err = gpuwait.AcquireContext(t.Context(), 1, dir, gpuwait.Devices(gpu1), gpuwait.As("x"), gpuwait.Timeout(0))
	require.ErrorIs(t, err, gpuwait.ErrBusy)
	l.Release()
	for reason, opts := range map[string][]gpuwait.LeaseOption{
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
	l, err := gpuwait.AcquireContext(t.Context(), 2, gpuwait.LeaseDir(t.TempDir()), everything,
		gpuwait.From(gpuwaittest.New(
			gpuwaittest.Device{
				Device: gpuwait.Device{UUID: "GPU-00000000deadbeef", Index: 2, Vendor: gpuwait.AMD},
				Total:  gib,
			},
			gpuwaittest.Device{
				Device: gpuwait.Device{UUID: "GPU-00000000cafebabe", Index: 3, Vendor: gpuwait.AMD},
				Total:  gib,
			},
		)))
	require.NoError(t, err)
	defer l.Release()
	assert.Contains(t, l.Env(), "ROCR_VISIBLE_DEVICES=GPU-00000000deadbeef,GPU-00000000cafebabe")
	assert.Contains(t, l.Env(), "HIP_VISIBLE_DEVICES=0,1")
}

func TestLeaseFolderAndNames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	acquire := func(dir, uuid string) error {
		l, err := gpuwait.AcquireContext(t.Context(), 1, gpuwait.LeaseDir(dir), gpuwait.Devices(uuid),
			gpuwait.From(gpuwaittest.New(
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

// A lock is held and its line says strange things: no one can read it, its writer is gone, its
// clock was ahead. The folder has a symlink in its path.
func TestLeaseOfNobody(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(filepath.Dir(dir), link))
	f, err := os.Create(filepath.Join(dir, gpu1+".lock"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	gone := fmt.Sprintf("which is gone; held on by pid %d, which inherited it", os.Getpid())
	for line, want := range map[string]string{
		"{garbage": "leased by a process that left no name\n",
		`{"pid":1,"start":-1,"program":"llm.test","name":"TestOld","since":"2099-01-02T03:04:05Z"}`: "leased by pid 1 (llm.test) TestOld since 03:04:05, " + gone + "\n",
	} {
		require.NoError(t, f.Truncate(0))
		f.WriteAt([]byte(line), 0)
		_, err = gpuwait.AcquireContext(t.Context(), 1, gpuwait.LeaseDir(filepath.Join(link, filepath.Base(dir))),
			gpuwait.Devices(gpu1),
			gpuwait.From(twoGPUs(0, 0)), gpuwait.Timeout(0))
		require.ErrorContains(t, err, want)
	}
}

// Someone who was stopped while they held the gate keeps everybody out: they are named, and not the
// devices, which are free.
func TestLeaseGateHeld(t *testing.T) {
	opts, dir := leasing(t), t.TempDir()
	f, err := os.Create(filepath.Join(dir, "gate"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	_, err = gpuwait.AcquireContext(t.Context(), 1, with(opts, gpuwait.LeaseDir(dir), gpuwait.Timeout(0))...)
	require.ErrorContains(t, err, fmt.Sprintf("%s, under which devices are taken, is held (open in pid %d)", f.Name(),
		os.Getpid()))
}
