//go:build linux && (amd64 || arm64)

package gpuwait_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/gpuwait"
)

// TestGPU measures a real GPU: what the numbers mean, how soon NVML shows that memory is free, and
// how soon a wait sees it. It prints a table and, in $GPUWAIT_GPU_JSON, writes the same as JSON. It
// skips only where there is no NVIDIA GPU.
func TestGPU(t *testing.T) {
	src, err := gpuwait.OpenNVML("")
	if err != nil {
		t.Skip(err)
	}
	defer src.Close()
	all, err := src.Devices()
	require.NoError(t, err)
	seen, err := gpuwait.Visible(all, nil)
	require.NoError(t, err)
	gpu := seen[0]
	m := &measures{t: t, Device: gpu.String(), Values: map[string]any{}}
	defer m.print()
	lease := gpuwait.Acquire(t, 1, gpuwait.From(src), gpuwait.Devices(gpu.UUID))

	m.readings(src, gpu)
	m.costs(src, gpu)
	base, err := gpuwait.Snapshot(src, gpuwait.Devices(gpu.UUID))
	require.NoError(t, err)
	m.orderly(src, gpu, base, lease)
	m.killed(src, gpu, base, lease)
	m.orphaned(src, gpu, base, lease)
}

type measures struct {
	t      *testing.T
	Device string         `json:"device"`
	Values map[string]any `json:"values"`
	names  []string
}

func (m *measures) set(name string, v any) {
	if d, ok := v.(time.Duration); ok {
		v = fmt.Sprintf("%.3f ms", d.Seconds()*1e3)
	}
	m.Values[name] = v
	m.names = append(m.names, name)
}

func (m *measures) print() {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n", m.Device)
	for _, name := range m.names {
		fmt.Fprintf(&b, "  %-78s %v\n", name, m.Values[name])
	}
	m.t.Log(b.String())
	if file := os.Getenv("GPUWAIT_GPU_JSON"); file != "" {
		j, err := json.MarshalIndent(m, "", "  ")
		require.NoError(m.t, err)
		require.NoError(m.t, os.WriteFile(file, append(j, '\n'), 0o600))
	}
}

func inMiB(n int64) string { return fmt.Sprintf("%.2f MiB", float64(n)/float64(mib)) }

// readings: the two memory calls side by side.
func (m *measures) readings(src gpuwait.Source, gpu gpuwait.Device) {
	v1, err := gpuwait.FirstMemoryCall(src, gpu.UUID)
	require.NoError(m.t, err)
	ours, err := src.Memory(gpu.UUID)
	require.NoError(m.t, err)
	m.set("total", inMiB(ours.Total))
	m.set("used by gpuwait's reading", inMiB(ours.Used))
	m.set("used by NVML's first memory call", inMiB(v1.Used))
	m.set("reserved (second memory call)", inMiB(ours.Reserved))
	if !ours.WithReserve {
		assert.InDelta(m.t, float64(v1.Used), float64(ours.Used+ours.Reserved), float64(4*mib),
			"the first call counts the reserve as used")
	}
}

func median(n int, f func()) time.Duration {
	d := make([]time.Duration, n)
	for i := range d {
		start := time.Now()
		f()
		d[i] = time.Since(start)
	}
	slices.Sort(d)
	return d[n/2]
}

func (m *measures) costs(src gpuwait.Source, gpu gpuwait.Device) {
	m.set("one Memory reading, median of 1000", median(1000, func() { _, _ = src.Memory(gpu.UUID) }).String())
	m.set("one Holders reading, median of 1000", median(1000, func() { _, _ = src.Holders(gpu.UUID) }).String())
	m.set("Clear when it is clear, median of 1000", median(1000, func() {
		_, err := gpuwait.Clear(m.t.Context(), src, gpuwait.Ratio(0.999), gpuwait.Devices(gpu.UUID))
		require.NoError(m.t, err)
	}).String())
}

// cudaChild is a process with a context and a block of device memory; it does as it is told on its
// standard input.
type cudaChild struct {
	*exec.Cmd
	in  io.Writer
	out *bufio.Scanner
	pid int
}

func (m *measures) start(lease *gpuwait.Lease, gib int64, shell bool) *cudaChild {
	args := []string{os.Args[0]}
	if shell {
		args = []string{"sh", "-c", `"$0" & wait`, os.Args[0]} // the holder is a grandchild, as under a launcher script
	}
	c := &cudaChild{Cmd: exec.Command(args[0], args[1:]...)}
	c.Env = append(append(os.Environ(), "GPUWAIT_CUDA_GIB="+fmt.Sprint(gib)), lease.Env()...)
	c.ExtraFiles = lease.Files()
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := os.CreateTemp(m.t.TempDir(), "orders") // a file: a background job of sh has no standard input
	require.NoError(m.t, err)
	c.Env = append(c.Env, "GPUWAIT_CUDA_ORDERS="+in.Name())
	c.in = in
	out, err := c.StdoutPipe()
	require.NoError(m.t, err)
	c.out = bufio.NewScanner(out)
	require.NoError(m.t, c.Start())
	m.t.Cleanup(func() { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) })
	_, err = fmt.Sscan(answer(m.t, c.out, "ready "), &c.pid)
	require.NoError(m.t, err)
	return c
}

// order tells the child to do something and returns when its driver call began and ended.
func (m *measures) order(c *cudaChild, what string) (from, to time.Time) {
	_, err := fmt.Fprintln(c.in, what)
	require.NoError(m.t, err)
	var a, b int64
	_, err = fmt.Sscan(answer(m.t, c.out, what+" "), &a, &b)
	require.NoError(m.t, err)
	return time.Unix(0, a), time.Unix(0, b)
}

// sampler reads NVML as fast as it can and notes changes.
type sampler struct {
	stop chan struct{}
	done chan struct{}
	seen []change
	n    int
}

type change struct {
	at   time.Time
	used int64
}

func sample(src gpuwait.Source, uuid string) *sampler {
	s := &sampler{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for {
			select {
			case <-s.stop:
				return
			default:
			}
			if mem, err := src.Memory(uuid); err == nil {
				s.n++
				if len(s.seen) == 0 || s.seen[len(s.seen)-1].used != mem.Used {
					s.seen = append(s.seen, change{time.Now(), mem.Used})
				}
			}
		}
	}()
	return s
}

// below is when used memory last fell to at most the bound.
func (s *sampler) below(bound int64) (time.Time, bool) {
	time.Sleep(5 * time.Millisecond) // the wait may have seen it first
	close(s.stop)
	<-s.done
	for i := len(s.seen) - 1; i >= 0; i-- {
		if s.seen[i].used <= bound && (i == 0 || s.seen[i-1].used > bound) {
			return s.seen[i].at, true
		}
	}
	return time.Time{}, false
}

const held = 8 // GiB

// orderly: memory freed, context gone, process exited, each as NVML shows it. Also: is the process
// visible, and with how many bytes?
func (m *measures) orderly(src gpuwait.Source, gpu gpuwait.Device, base gpuwait.Baseline, lease *gpuwait.Lease) {
	idle := base.Devices[gpu.UUID].Memory.Used
	c := m.start(lease, held, false)
	_, err := gpuwait.Clear(m.t.Context(), src, gpuwait.Delta(base, 64*mib), gpuwait.Devices(gpu.UUID),
		gpuwait.Patience(time.Second), gpuwait.Timeout(20*time.Second))
	require.ErrorIs(m.t, err, gpuwait.ErrNotClear, "the control: a live holder must be found")
	m.t.Log("\n" + err.Error())
	holders, err := src.Holders(gpu.UUID)
	require.NoError(m.t, err)
	at := slices.IndexFunc(holders, func(h gpuwait.Holder) bool { return h.PID == c.pid })
	m.set("the holder's PID is listed", at >= 0)
	if at >= 0 {
		m.set("bytes listed for it (8 GiB and its context)", inMiB(holders[at].Bytes))
		m.set("bytes are known", holders[at].Known)
	}
	mem, err := src.Memory(gpu.UUID)
	require.NoError(m.t, err)
	m.set("used over baseline with 8 GiB and a context", inMiB(mem.Used-idle))
	for _, step := range []struct {
		what  string
		bound int64
	}{{"free", mem.Used - (held-1)*gib}, {"reset", idle + 64*mib}} {
		s := sample(src, gpu.UUID)
		from, to := m.order(c, step.what)
		time.Sleep(300 * time.Millisecond)
		seen, ok := s.below(step.bound)
		require.True(m.t, ok, "NVML never showed %s", step.what)
		m.set(step.what+": the call took", to.Sub(from))
		m.set(step.what+": NVML shows it after the call's end (negative: before)", seen.Sub(to))
	}
	mem, _ = src.Memory(gpu.UUID)
	m.set("used over baseline after the reset, process alive", inMiB(mem.Used-idle))
	_, err = fmt.Fprintln(c.in, "exit")
	require.NoError(m.t, err)
	require.NoError(m.t, c.Wait())
	ended := time.Now()
	r, err := gpuwait.Clear(m.t.Context(), src, gpuwait.Delta(base, 0), gpuwait.Devices(gpu.UUID),
		gpuwait.Timeout(20*time.Second))
	require.NoError(m.t, err)
	m.set("exit: back at the baseline, after wait() returned", time.Since(ended))
	m.set("exit: readings that took", r.Devices[0].Samples)
}

// killed: SIGKILL of the process that holds the memory, then wait() for it.
func (m *measures) killed(src gpuwait.Source, gpu gpuwait.Device, base gpuwait.Baseline, lease *gpuwait.Lease) {
	idle := base.Devices[gpu.UUID].Memory.Used
	c := m.start(lease, held, false)
	s := sample(src, gpu.UUID)
	kill := time.Now()
	require.NoError(m.t, c.Process.Kill())
	_ = c.Wait()
	reaped := time.Now()
	_, err := gpuwait.Clear(m.t.Context(), src, gpuwait.Delta(base, 0), gpuwait.Devices(gpu.UUID),
		gpuwait.Timeout(20*time.Second))
	cleared := time.Now()
	require.NoError(m.t, err)
	seen, ok := s.below(idle)
	require.True(m.t, ok)
	m.set("SIGKILL of the holder: wait() returned after", reaped.Sub(kill))
	m.set("SIGKILL of the holder: NVML shows it after wait() (negative: before)", seen.Sub(reaped))
	m.set("SIGKILL of the holder: Clear returned after wait()", cleared.Sub(reaped))
}

// orphaned: the holder is a grandchild, only its launcher is waited for. This is the case that a
// wait is for.
func (m *measures) orphaned(src gpuwait.Source, gpu gpuwait.Device, base gpuwait.Baseline, lease *gpuwait.Lease) {
	idle := base.Devices[gpu.UUID].Memory.Used
	var gone, late []time.Duration
	for range 5 {
		c := m.start(lease, held, true)
		s := sample(src, gpu.UUID)
		require.NoError(m.t, syscall.Kill(-c.Process.Pid, syscall.SIGKILL))
		_ = c.Wait()
		reaped := time.Now()
		r, err := gpuwait.Clear(m.t.Context(), src, gpuwait.Delta(base, 0), gpuwait.Devices(gpu.UUID),
			gpuwait.Timeout(20*time.Second))
		cleared := time.Now()
		require.NoError(m.t, err)
		seen, ok := s.below(idle)
		require.True(m.t, ok)
		gone = append(gone, seen.Sub(reaped))
		if seen.Before(reaped) {
			seen = reaped
		}
		late = append(late, cleared.Sub(seen))
		assert.Less(m.t, cleared.Sub(seen), 10*time.Second, "the wait went on to its limit; it took %s", r.Elapsed)
	}
	slices.Sort(gone)
	slices.Sort(late)
	m.set("SIGKILL of launcher and holder, wait() for the launcher: NVML shows it after", gone[len(gone)/2])
	m.set("… and Clear returned after that: median of 5", late[len(late)/2])
	m.set("… and the latest", late[len(late)-1])
}

// cudaHold is the body of cudaChild's process: the driver through purego, no more of it than a
// holder needs.
func cudaHold() error {
	lib, err := purego.Dlopen("libcuda.so.1", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return err
	}
	var initialise func(uint32) int32
	var retain func(unsafe.Pointer, int32) int32
	var reset func(int32) int32
	var current func(uintptr) int32
	var alloc func(unsafe.Pointer, uintptr) int32
	var free func(uint64) int32
	for name, f := range map[string]any{
		"cuInit": &initialise, "cuDevicePrimaryCtxRetain": &retain, "cuDevicePrimaryCtxReset_v2": &reset, "cuCtxSetCurrent": &current,
		"cuMemAlloc_v2": &alloc, "cuMemFree_v2": &free,
	} {
		purego.RegisterLibFunc(f, lib, name)
	}
	var gibs int64
	if _, err := fmt.Sscan(os.Getenv("GPUWAIT_CUDA_GIB"), &gibs); err != nil {
		return err
	}
	ctx, block := new(uintptr), new(uint64)
	for _, call := range []func() int32{
		func() int32 { return initialise(0) },
		func() int32 { return retain(unsafe.Pointer(ctx), 0) },
		func() int32 { return current(*ctx) },
		func() int32 { return alloc(unsafe.Pointer(block), uintptr(gibs*gib)) },
	} {
		if rc := call(); rc != 0 {
			return fmt.Errorf("CUDA error %d", rc)
		}
	}
	fmt.Printf("ready %d\n", os.Getpid())
	orders, err := os.Open(os.Getenv("GPUWAIT_CUDA_ORDERS"))
	if err != nil {
		return err
	}
	for end, r := time.Now().Add(time.Minute), bufio.NewReader(orders); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		line, err := r.ReadString('\n')
		if err != nil {
			continue // nothing yet
		}
		what := strings.TrimSpace(line)
		from := time.Now()
		var rc int32
		switch what {
		case "free":
			rc = free(*block)
		case "reset":
			rc = reset(0)
		case "exit":
			return nil
		}
		to := time.Now()
		if rc != 0 {
			return fmt.Errorf("%s: CUDA error %d", what, rc)
		}
		fmt.Printf("%s %d %d\n", what, from.UnixNano(), to.UnixNano())
	}
	return nil
}
