package cuda

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/internal/cudatest"
	"github.com/enginetest/enginetest/ledger"
)

// What a GPU cannot be made to do on demand: on the stub only.

func TestWhyThereIsNoDriver(t *testing.T) {
	err := Available(Library("/nonexistent/libcuda.so.1"))
	require.ErrorIs(t, err, ErrNoDriver)
	require.Contains(t, err.Error(), "/nonexistent/libcuda.so.1")
	t.Log(err)

	t.Setenv("ENGINETEST_LIBCUDA", "/elsewhere/libcuda.so.1")
	_, err = Open()
	require.ErrorIs(t, err, ErrNoDriver)
	require.Contains(t, err.Error(), "/elsewhere/libcuda.so.1")

	stub := cudatest.New(t, 1, 1<<20)
	old := oldLibrary(t)
	_, err = Open(Library(old))
	require.ErrorIs(t, err, ErrNoDriver)
	require.Contains(t, err.Error(), "it lacks cuDriverGetVersion, cuDeviceGetCount")
	t.Log(err)

	t.Setenv("ENGINETEST_LIBCUDA", stub.Path)
	require.NoError(t, Available())
	for _, code := range []Code{803, 999, 34} {
		stub.Fail("cuInit", 1, int(code))
		err = Available()
		require.ErrorIs(t, err, code)
		require.NotErrorIs(t, err, ErrNoDriver)
		t.Log(err)
	}

	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	cudatest.New(t, 0, 0)
	err = Available()
	require.ErrorIs(t, err, codeNoDevice)
	require.Contains(t, err.Error(), `CUDA_VISIBLE_DEVICES=""`)
	t.Log(err)
}

// oldLibrary builds a libcuda that has three functions.
func oldLibrary(t *testing.T) string {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip(cudatest.ErrNoCompiler)
	}
	src, out := filepath.Join(t.TempDir(), "old.c"), filepath.Join(t.TempDir(), "old.so")
	require.NoError(t, os.WriteFile(src, []byte("int cuGetErrorName(void){return 1;} int cuGetErrorString(void){return 1;} int cuInit(void){return 0;}"), 0o600))
	b, err := exec.Command(cc, "-shared", "-fPIC", "-o", out, src).CombinedOutput()
	require.NoError(t, err, string(b))
	return out
}

// Every step of opening a worker that fails leaves no context behind.
func TestNoContext(t *testing.T) {
	for call, code := range map[string]Code{"cuDevicePrimaryCtxRetain": ErrOutOfMemory, "cuCtxSetCurrent": Code(999)} {
		r := stubRig(t, 1, 1<<20)
		v, err := r.d.Device("0")
		require.NoError(t, err)
		r.stub.Fail(call, 1, int(code))
		l := ledger.New(false)
		_, err = NewWorker(v, Config{Name: "rank 3", Ledger: l})
		require.ErrorIs(t, err, code, call)
		require.Contains(t, err.Error(), "rank 3")
		t.Log(err)
		require.False(t, r.stub.Active(0), call)
		require.Empty(t, l.Holdings())
		require.NoError(t, closeSoon(r.worker(t, 0)), "the next one works")
	}
}

// Each driver call that takes something is made to fail; what the step before it took is given
// back, and the ledger and the driver agree.
func TestHalfBuiltThingsAreTakenDown(t *testing.T) {
	build := map[string]func(w *Worker) error{
		"cuMemAlloc_v2":                func(w *Worker) error { _, err := w.Alloc("x", 10); return err },
		"cuMemHostAlloc":               func(w *Worker) error { _, err := w.AllocPinned("x", 10); return err },
		"cuMemHostGetDevicePointer_v2": func(w *Worker) error { _, err := w.AllocPinned("x", 10); return err },
		"cuMemHostRegister_v2": func(w *Worker) error {
			_, err := w.Register("x", make([]byte, 10))
			return err
		},
		"cuStreamCreateWithPriority": func(w *Worker) error { _, err := w.NewStream("x"); return err },
		"cuEventCreate":              func(w *Worker) error { _, err := w.NewEvent("x"); return err },
		"cuModuleLoadDataEx": func(w *Worker) error {
			_, err := w.LoadModule("x", "x", []byte(testPTX))
			return err
		},
	}
	r := stubRig(t, 1, 8<<20)
	w := r.worker(t, 0)
	for call, f := range build {
		do(t, w, func() {
			r.stub.Fail(call, 1, int(ErrOutOfMemory))
			require.ErrorIs(t, f(w), ErrOutOfMemory, call)
			require.Zero(t, r.stub.Objects(0), call)
			require.Zero(t, r.stub.Used(0), call)
			require.Empty(t, w.live, call)
			require.NoError(t, w.Err(), call)
		})
	}
}

// A free that fails leaves the memory with its owner: it can be tried again, and Close says so.
func TestFreeThatFails(t *testing.T) {
	r := stubRig(t, 1, 8<<20)
	w := r.worker(t, 0)
	do(t, w, func() {
		m, err := w.Alloc("x", 1<<20)
		require.NoError(t, err)
		r.stub.Fail("cuMemFree_v2", 1, int(codeInvalidValue))
		require.ErrorIs(t, m.Free(), codeInvalidValue)
		require.Len(t, w.live, 1)
		require.NoError(t, m.Free(), "tried again")

		_, err = w.Alloc("stuck", 1<<20)
		require.NoError(t, err)
	})
	r.stub.Fail("cuMemFree_v2", 1, int(codeInvalidValue))
	err := closeSoon(w)
	var e *LeakError
	require.ErrorAs(t, err, &e)
	t.Log(err)
	require.Empty(t, e.Kept)
	require.Len(t, e.Freed, 1, "it went with the context")
	require.Equal(t, "stuck", e.Freed[0].Owner)
	require.ErrorIs(t, err, codeInvalidValue)
	require.Empty(t, w.Holdings())
	require.Zero(t, r.stub.Used(0))
	require.False(t, r.stub.Active(0))
}

// An illegal address, as measured on an H200: the contexts of all devices die, and no new one is to
// be had.
func TestStickyErrorKillsTheContext(t *testing.T) {
	r := stubRig(t, 2, 8<<20)
	w, other := r.worker(t, 0), r.worker(t, 1)
	var m *Memory
	do(t, w, func() {
		var err error
		m, err = w.Alloc("weights", 1<<20)
		require.NoError(t, err)
		_, err = w.Alloc("forgotten", 1<<10)
		require.NoError(t, err)
		mod, err := w.LoadModule("kernels", "test.ptx", []byte(testPTX))
		require.NoError(t, err)
		crash, err := mod.Function("crash")
		require.NoError(t, err)
		require.NoError(t, crash.Launch(nil, Launch{}, nil), "a launch returns before its kernel runs")
		err = w.Synchronize()
		require.ErrorIs(t, err, ErrIllegalAddress)

		before := r.calls()
		for name, call := range map[string]func() error{
			"alloc": func() error { _, err := w.Alloc("x", 1); return err }, "sync": w.Synchronize,
			"copy": func() error { return m.CopyFrom(0, []byte{1}) }, "launch": func() error {
				return crash.Launch(nil, Launch{}, nil)
			},
		} {
			err := call()
			var dead *deadError
			require.ErrorAs(t, err, &dead, name)
			require.ErrorIs(t, err, ErrContextDead)
			require.ErrorIs(t, err, ErrIllegalAddress)
			t.Log(err)
		}
		require.NoError(t, m.Free(), "an owner does its duty; Close sees to the rest")
		require.ErrorIs(t, m.Free(), ErrDoubleFree)
		require.NoError(t, mod.Close())
		require.Equal(t, before, r.calls(), "driver calls")
	})
	require.ErrorIs(t, w.Err(), ErrContextDead)
	err := closeSoon(w)
	t.Log(err)
	var e *LeakError
	require.ErrorAs(t, err, &e)
	require.Len(t, e.Freed, 1)
	require.Equal(t, "forgotten", e.Freed[0].Owner)
	require.Empty(t, e.Kept)
	require.Zero(t, r.stub.Used(0), "the driver agrees")
	require.False(t, r.stub.Active(0))
	require.Empty(t, w.Holdings(), "the context is gone, and so is its memory")
	require.Equal(t, err, closeSoon(w), "closed once more")

	require.ErrorIs(t, other.Do(other.Synchronize), ErrIllegalAddress, "the other device's context dies with it")
	require.NoError(t, closeSoon(other))

	d, err := Open(Library(r.stub.Path)) // another Driver of the same library
	require.NoError(t, err)
	v, err := d.Device("1")
	require.NoError(t, err)
	l := ledger.New(false)
	_, err = NewWorker(v, Config{Ledger: l})
	t.Log(err)
	requireDeadProcess(t, err, "cuda:0")
	require.Empty(t, l.Holdings())
}

// requireDeadProcess checks that err says since when this process can have no context, and what to
// do.
func requireDeadProcess(t *testing.T, err error, worker string) {
	t.Helper()
	var dead *deadProcessError
	require.ErrorAs(t, err, &dead)
	require.ErrorIs(t, err, ErrProcessDead)
	require.ErrorIs(t, err, ErrIllegalAddress)
	require.Equal(t, worker, dead.Worker)
	require.Equal(t, "cuCtxSynchronize", dead.First.Call)
	require.Contains(t, err.Error(), "since "+worker+" met cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)")
	require.Contains(t, err.Error(), "only a new process can use CUDA again")
}

// Someone else in this process crashed the device: this package has not seen it, and says so.
func TestProcessThatSomebodyElseKilled(t *testing.T) {
	r := stubRig(t, 1, 8<<20)
	v, err := r.d.Device("0")
	require.NoError(t, err)
	r.stub.Fail("cuDevicePrimaryCtxRetain", 1, 717) // no test here dies of it
	_, err = NewWorker(v, Config{})
	t.Log(err)
	var dead *deadProcessError
	require.ErrorAs(t, err, &dead)
	require.Nil(t, dead.First)
	require.Contains(t, err.Error(), "another user of CUDA in it met an error: now cuDevicePrimaryCtxRetain")
}

func TestLostDevice(t *testing.T) {
	r := stubRig(t, 2, 8<<20)
	w, other := r.worker(t, 0), r.worker(t, 1)
	do(t, w, func() {
		_, err := w.Alloc("weights", 1<<20)
		require.NoError(t, err)
		r.stub.Lose(0)
		require.ErrorIs(t, w.Synchronize(), Code(999))
	})
	err := closeSoon(w)
	t.Log(err)
	var e *LeakError
	require.ErrorAs(t, err, &e)
	require.Equal(t, "weights", e.Kept[0].Owner, "nobody can say that it is free")
	require.NotEmpty(t, w.Holdings())
	do(t, other, func() { require.NoError(t, other.Synchronize()) })
}

func TestHang(t *testing.T) {
	r := stubRig(t, 1, 8<<20)
	w := r.worker(t, 0)
	r.stub.Fail("cuCtxSynchronize", 1, cudatest.Hang)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		for r.stub.Calls("cuCtxSynchronize") == 0 {
			time.Sleep(time.Millisecond)
		}
	}()
	var h *HangError
	require.ErrorAs(t, w.DoContext(ctx, w.Synchronize), &h)
	require.Equal(t, "cuCtxSynchronize", h.Driver)
	since, call := w.Busy()
	require.Positive(t, since)
	require.Equal(t, "cuCtxSynchronize", call)

	err := w.Close(ctx)
	require.ErrorAs(t, err, &h)
	require.Contains(t, err.Error(), "in the driver's cuCtxSynchronize")
	t.Log(err)
	r.stub.Resume()
	require.NoError(t, closeSoon(w), "a Close that gave up can be tried again")
	require.False(t, r.stub.Active(0))
}

// Something else in the process that keeps the primary context would make Close lie, so the driver
// is asked.
func TestContextThatDoesNotEnd(t *testing.T) {
	r := stubRig(t, 1, 8<<20)
	w := r.worker(t, 0)
	r.stub.Fail("cuDevicePrimaryCtxReset_v2", 1, int(codeInvalidDevice))
	var somebodyElse uintptr
	require.NoError(t, r.d.call(&r.d.fn.primaryRetain, uintptr(unsafe.Pointer(&somebodyElse)), 0))
	err := closeSoon(w)
	require.ErrorIs(t, err, codeInvalidDevice)
	require.Contains(t, err.Error(), "still active after release and reset")
	t.Log(err)
	require.Len(t, w.Holdings(), 1, "the context stays in the ledger")
}

func TestErrorsMatch(t *testing.T) {
	r := stubRig(t, 1, 1<<20)
	w := r.worker(t, 0)
	do(t, w, func() {
		r.stub.Fail("cuCtxSynchronize", 1, int(codeInvalidValue))
		err := w.Synchronize()
		require.Equal(t, &Error{
			Call: "cuCtxSynchronize", Code: 1, Name: "CUDA_ERROR_INVALID_VALUE",
			Text: "invalid argument",
		}, err)
		require.EqualError(t, err, "cuda: cuCtxSynchronize: CUDA_ERROR_INVALID_VALUE (1): invalid argument")
		require.ErrorIs(t, err, codeInvalidValue)
		require.NotErrorIs(t, err, ErrOutOfMemory)
		r.stub.Fail("cuCtxSynchronize", 1, 12345)
		assert.EqualError(t, w.Synchronize(),
			"cuda: cuCtxSynchronize: CUDA_ERROR (12345): the driver has no text for it")
	})
}

func TestSymbolsThatAnOldDriverLacks(t *testing.T) {
	r := stubRig(t, 1, 1<<20)
	w := r.worker(t, 0)
	do(t, w, func() {
		old := w.d.fn.launchKernelEx
		defer func() { w.d.fn.launchKernelEx = old }()
		w.d.fn.launchKernelEx.addr = 0
		mod, err := w.LoadModule("k", "k", []byte(testPTX))
		require.NoError(t, err)
		f, err := mod.Function("nop")
		require.NoError(t, err)
		err = f.Launch(nil, Launch{Cooperative: true}, nil)
		require.ErrorIs(t, err, codeNotSupported)
		t.Log(err)
		require.NoError(t, mod.Close())
	})
}

// The environment sets up the stand-in of another process: how a test of a whole program without a
// GPU begins.
func TestStubFromTheEnvironment(t *testing.T) {
	if os.Getenv("STUB_DEVICES") != "" { // the other process
		d, err := Open()
		require.NoError(t, err)
		v, err := d.Device("2")
		require.NoError(t, err)
		require.EqualValues(t, 12<<20, v.TotalMemory)
		w := newWorker(t, v, Config{})
		do(t, w, func() {
			_, err := w.Alloc("first", 10)
			require.NoError(t, err)
			_, err = w.Alloc("second", 10)
			require.ErrorIs(t, err, ErrOutOfMemory)
		})
		require.Error(t, closeSoon(w))
		return
	}
	path, err := cudatest.Build()
	if err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "ENGINETEST_LIBCUDA="+path, "STUB_DEVICES=3", "STUB_MEMORY=12582912",
		"STUB_FAIL=cuMemAlloc_v2:2:2")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name())
}

// Page-locked memory that the host does not have.
func TestNoHostMemory(t *testing.T) {
	r := stubRig(t, 1, 1<<20)
	w := r.worker(t, 0)
	do(t, w, func() {
		_, err := w.AllocPinned("huge", 1<<62)
		require.ErrorIs(t, err, ErrOutOfMemory)
		assert.ErrorContains(t, err, "(pinned) for huge on cuda:0")
		assert.ErrorContains(t, err, "; it is the host's memory, not the device's; the ledger holds nothing")
		r.stub.Fail("cuMemHostAlloc", 1, int(codeInvalidValue))
		_, err = w.AllocPinned("refused", 10)
		require.ErrorIs(t, err, codeInvalidValue)
		assert.NotContains(t, err.Error(), "the host's memory", "what is not short is not blamed")
	})
	require.NoError(t, w.Close(t.Context()))
}
