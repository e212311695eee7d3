package cuda

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/ledger"
)

// What only a GPU can show. Each test prints what it measured, also when it passes (-v).

// inChild runs this test alone in a process of its own, with a fresh driver, and reports whether
// this is that process. Its parent has CUDA as well: with CUDA_TEST_CHILD set to the test's name by
// hand there is none, and cuInit's own share of device memory shows.
func inChild(t *testing.T) bool {
	t.Helper()
	const key = "CUDA_TEST_CHILD"
	if os.Getenv(key) == t.Name() {
		return true
	}
	gpuRig(t) // skips without a GPU
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), key+"="+t.Name())
	out, err := cmd.CombinedOutput()
	t.Logf("in a process of its own:\n%s", quoted(out))
	require.NoError(t, err)
	require.Contains(t, string(out), "--- PASS: "+t.Name(), "the child's test must have run")
	return false
}

// quoted marks another process's output: its results are not counted as this one's.
func quoted(out []byte) string {
	return "| " + strings.ReplaceAll(strings.TrimRight(string(out), "\n"), "\n", "\n| ")
}

// 50 contexts, each with a bit of everything: device memory is the same after every one, and no
// more than cuInit's own share (measured: 3.25 MiB on an H200, driver 580) over what it was before
// CUDA.
func TestGPUContextCyclesAreFlat(t *testing.T) {
	if !inChild(t) {
		return
	}
	src, err := gpuwait.Open()
	if err != nil {
		t.Logf("without NVML only free memory as seen from the next context is compared: %v", err)
	} else {
		defer src.Close()
	}
	before := nvmlUsed(t, src)
	began := time.Now()
	r := gpuRig(t)
	t.Logf("open and cuInit: %s", time.Since(began))
	v, err := r.d.Device("0")
	require.NoError(t, err)
	_, known := before[v.UUID]
	used := func() int64 { return nvmlUsed(t, src)[v.UUID] - before[v.UUID] }
	if known {
		t.Logf("after cuInit: +%.2f MiB (0 when another process has done it)", mib(used()))
	}
	var residual, free []int64
	began = time.Now()
	const cycles = 50
	for i := range cycles {
		w := newWorker(t, v, Config{})
		do(t, w, func() {
			if i == 0 {
				t.Logf("first context: %s", time.Since(began))
			}
			f, _, err := w.MemInfo()
			require.NoError(t, err)
			free = append(free, f)
			everything(t, w)
		})
		require.NoError(t, closeSoon(w))
		if known {
			residual = append(residual, used())
		}
	}
	t.Logf("%d cycles, %.0f ms each", cycles, time.Since(began).Seconds()*1000/cycles)
	t.Logf("free in the new context: first %.2f MiB, last %.2f MiB, least %.2f, most %.2f", mib(free[0]),
		mib(free[cycles-1]),
		mib(slices.Min(free)), mib(slices.Max(free)))
	assert.InDelta(t, free[1], free[cycles-1], 1<<20, "free memory in the second and the last context")
	if known {
		t.Logf("NVML over the baseline after Close: first +%.2f MiB, last +%.2f MiB, most +%.2f MiB", mib(residual[0]),
			mib(residual[cycles-1]),
			mib(slices.Max(residual)))
		assert.InDelta(t, residual[1], residual[cycles-1], 256<<10,
			"flat, but for the driver's books of other processes on other devices (64 KiB were seen)")
		assert.LessOrEqual(t, slices.Max(residual), int64(4<<20), "cuInit's own share and nothing more")
	}
}

// nvmlUsed reads every device's used memory; empty without NVML.
func nvmlUsed(t *testing.T, src gpuwait.Source) map[string]int64 {
	used := map[string]int64{}
	if src == nil {
		return used
	}
	all, err := src.Devices()
	require.NoError(t, err)
	for _, v := range all {
		m, err := src.Memory(v.UUID)
		require.NoError(t, err)
		used[v.UUID] = m.Used
	}
	return used
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// everything takes one of each kind, uses it and releases it.
func everything(t *testing.T, w *Worker) {
	const n = 64 << 20
	s, err := w.NewStream("cycle")
	require.NoError(t, err)
	e, err := w.NewEvent("cycle")
	require.NoError(t, err)
	plain, err := w.Alloc("cycle", n)
	require.NoError(t, err)
	pinned, err := w.AllocPinned("cycle", 1<<20)
	require.NoError(t, err)
	mod, err := w.LoadModule("cycle", "test.ptx", []byte(testPTX))
	require.NoError(t, err)
	f, err := mod.Function("fill32")
	require.NoError(t, err)
	g, err := s.Capture("cycle", func() error {
		args := NewArgs(3).Memory(0, plain, 0).Uint32(1, 42).Uint32(2, n/4)
		if err := f.Launch(s, Launch{Grid: Dim{X: n / 4 / 256}, Block: Dim{X: 256}}, args); err != nil {
			return err
		}
		return plain.CopyToAsync(pinned, 0, n-1<<20, 1<<20, s)
	})
	require.NoError(t, err)
	x, err := g.Instantiate("cycle")
	require.NoError(t, err)
	require.NoError(t, x.Launch(s))
	require.NoError(t, e.Record(s))
	require.NoError(t, s.Synchronize())
	require.Equal(t, words32(42, 4), pinned.Bytes()[1<<20-16:])
	for _, f := range []func() error{
		x.Close, g.Close, mod.Close, plain.Free, pinned.Free, e.Close, s.Close,
	} {
		require.NoError(t, f())
	}
}

// An illegal address kills the contexts of all devices and denies the process another one: Free and
// Close go on, and what Close reports as freed is what NVML sees.
func TestGPUStickyError(t *testing.T) {
	if !inChild(t) {
		return
	}
	const each = 256 << 20
	src, err := gpuwait.Open()
	if err != nil {
		t.Logf("what is freed is not compared with NVML: %v", err)
	} else {
		defer src.Close()
	}
	r := gpuRig(t)
	vs, err := r.d.Devices()
	require.NoError(t, err)
	v := vs[0]
	before, known := nvmlUsed(t, src)[v.UUID]
	over := func() float64 { return mib(nvmlUsed(t, src)[v.UUID] - before) }
	w := newWorker(t, v, Config{Name: "rank 0", Stacks: true})
	var other *Worker
	if len(vs) > 1 {
		other = newWorker(t, vs[1], Config{Name: "rank 1"})
	}
	do(t, w, func() {
		_, err := w.Alloc("left", each)
		require.NoError(t, err)
		returned, err := w.Alloc("returned", each)
		require.NoError(t, err)
		mod, err := w.LoadModule("left", "test.ptx", []byte(testPTX))
		require.NoError(t, err)
		crash, err := mod.Function("crash")
		require.NoError(t, err)
		require.NoError(t, crash.Launch(nil, Launch{}, nil))
		err = w.Synchronize()
		t.Log(err)
		require.ErrorIs(t, err, ErrIllegalAddress)
		err = w.Synchronize()
		t.Log(err)
		require.ErrorIs(t, err, ErrContextDead)
		require.NoError(t, returned.Free(), "an owner does its duty")
	})
	if known {
		t.Logf("NVML over the baseline after the error, with 2 times 256 MiB: +%.2f MiB", over())
	}
	began := time.Now()
	err = closeSoon(w)
	t.Logf("Close took %s: %v", time.Since(began), err)
	var e *LeakError
	require.ErrorAs(t, err, &e)
	assert.Empty(t, e.Kept)
	assert.ElementsMatch(t, []string{kindPlain, kindModule}, kinds(e.Freed))
	assert.Empty(t, w.Holdings(), "the context is gone")
	if known {
		t.Logf("NVML over the baseline after Close: +%.2f MiB", over())
		if other == nil {
			assert.InDelta(t, 0, over(), 64, "all of it went with the context")
		}
	}
	_, err = NewWorker(v, Config{})
	t.Logf("NewWorker on the same device: %v", err)
	requireDeadProcess(t, err, "rank 0")
	if other != nil {
		err = other.Do(other.Synchronize)
		t.Logf("a worker on another device, opened before: %v", err)
		require.ErrorIs(t, err, ErrIllegalAddress)
		require.NoError(t, closeSoon(other))
		_, err = NewWorker(vs[1], Config{})
		t.Logf("NewWorker on another device: %v", err)
		requireDeadProcess(t, err, "rank 0")
	}
}

func kinds(hs []ledger.Holding) []string {
	var ks []string
	for _, h := range hs {
		ks = append(ks, h.Kind)
	}
	return ks
}

// Two devices, two workers, two threads: copies between them, and each closes on its own.
func TestGPUTwoDevices(t *testing.T) {
	r := gpuRig(t)
	vs, err := r.d.Devices()
	require.NoError(t, err)
	if len(vs) < 2 {
		t.Skipf("one device only: %s", vs[0])
	}
	twoDevices(t, r)
}

func TestTwoDevicesOnTheStub(t *testing.T) { twoDevices(t, stubRig(t, 2, 64<<20)) }

func twoDevices(t *testing.T, r *rig) {
	a, b := r.worker(t, 0), r.worker(t, 1)
	can, err := a.Device().CanAccessPeer(b.Device())
	require.NoError(t, err)
	const n = 8 << 20
	var src, dst *Memory
	do(t, b, func() {
		src, err = b.Alloc("b", n)
		require.NoError(t, err)
		require.NoError(t, src.CopyFrom(0, pattern(n)))
	})
	do(t, a, func() {
		if can {
			require.NoError(t, a.EnablePeer(b))
			require.NoError(t, a.EnablePeer(b), "a second time")
		}
		dst, err = a.Alloc("a", n)
		require.NoError(t, err)
		checkMisuse(t, "copy within a device", errWrongWorker, dst.CopyDevice(0, src, 0, n, nil))
		began := time.Now()
		require.NoError(t, dst.CopyPeer(0, src, 0, n, nil))
		require.NoError(t, a.Synchronize())
		t.Logf("peer access %t, %d MiB in %s", can, n>>20, time.Since(began))
		got := make([]byte, n)
		require.NoError(t, dst.CopyTo(got, 0))
		require.Equal(t, pattern(n), got)
		require.NoError(t, dst.Free())
	})
	do(t, b, func() { require.NoError(t, src.Free()) })
	require.NoError(t, closeSoon(b))
	do(t, a, func() {
		checkMisuse(t, "copy of freed", ErrUseAfterFree,
			(&Memory{resource: resource{w: a}, size: 1}).CopyPeer(0, src, 0, 1, nil))
		require.NoError(t, a.Synchronize(), "a goes on")
	})
}

// One table of what calls cost: medians, on whatever driver is there.
func TestTimings(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		big := int64(1 << 20)
		if r.stub == nil {
			big = 1 << 30
		}
		v, err := r.d.Device("0")
		require.NoError(t, err)
		var table strings.Builder
		row := func(name string, n int, f func()) {
			took := make([]time.Duration, n)
			for i := range took {
				began := time.Now()
				f()
				took[i] = time.Since(began)
			}
			slices.Sort(took)
			fmt.Fprintf(&table, "    %-34s %12s  (median of %d, worst %s)\n", name, took[n/2], n, took[n-1])
		}
		ok := func(err error) { require.NoError(t, err) }
		row("open (cuInit done before)", 5, func() { _, err := Open(Library(r.d.path)); ok(err) })
		row("new worker and close", 5, func() {
			w, err := NewWorker(v, Config{})
			ok(err)
			ok(closeSoon(w))
		})
		w := r.worker(t, 0)
		row("hop: Do with nothing", 1000, func() { ok(w.Do(func() error { return nil })) })
		do(t, w, func() {
			s, err := w.NewStream("s")
			ok(err)
			e, err := w.NewFence("e")
			ok(err)
			mod, err := w.LoadModule("k", "test.ptx", []byte(testPTX))
			ok(err)
			nop, err := mod.Function("nop")
			ok(err)
			one := Launch{Grid: Dim{X: 1}, Block: Dim{X: 32}}
			g, err := s.Capture("g", func() error {
				for range 100 {
					if err := nop.Launch(s, one, nil); err != nil {
						return err
					}
				}
				return nil
			})
			ok(err)
			x, err := g.Instantiate("g")
			ok(err)
			row("load module (PTX, cached)", 5, func() {
				m, err := w.LoadModule("k", "test.ptx", []byte(testPTX))
				ok(err)
				ok(m.Close())
			})
			row("launch, queued", 500, func() { ok(nop.Launch(s, one, nil)) })
			ok(s.Synchronize())
			row("launch and synchronize", 200, func() { ok(nop.Launch(s, one, nil)); ok(s.Synchronize()) })
			row("100 launches and synchronize", 50, func() {
				for range 100 {
					ok(nop.Launch(s, one, nil))
				}
				ok(s.Synchronize())
			})
			row("graph of 100, launch call", 50, func() { ok(x.Launch(s)) })
			ok(s.Synchronize())
			row("graph of 100 and synchronize", 50, func() { ok(x.Launch(s)); ok(s.Synchronize()) })
			row("event record", 200, func() { ok(e.Record(s)) })
			ok(s.Synchronize())
			row(fmt.Sprintf("%d MiB, alloc and free", big>>20), 5, func() {
				m, err := w.Alloc("m", big)
				ok(err)
				ok(m.Free())
			})
			m, err := w.Alloc("m", big)
			ok(err)
			p, err := w.AllocPinned("p", big)
			ok(err)
			pageable := make([]byte, big)
			row(fmt.Sprintf("copy to device %d MiB, pinned", big>>20), 5, func() {
				ok(m.CopyFromAsync(0, p, 0, big, s))
				ok(s.Synchronize())
			})
			row(fmt.Sprintf("copy to device %d MiB, pageable", big>>20), 3, func() { ok(m.CopyFrom(0, pageable)) })
			row(fmt.Sprintf("copy to host %d MiB, pinned", big>>20), 5, func() {
				ok(m.CopyToAsync(p, 0, 0, big, s))
				ok(s.Synchronize())
			})
			row("copy to host 4 B, pinned", 100, func() { ok(m.CopyToAsync(p, 0, 0, 4, s)); ok(s.Synchronize()) })
			row("MemInfo", 100, func() { _, _, err := w.MemInfo(); ok(err) })
			row("misuse check (off range)", 1000, func() { _ = m.CopyTo(pageable, 1) })
			for _, f := range []func() error{m.Free, p.Free, x.Close, g.Close, mod.Close, e.Close, s.Close} {
				ok(f())
			}
		})
		t.Logf("%s\n%s", v, table.String())
	})
}
