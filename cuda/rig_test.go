package cuda

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/enginetest/enginetest/internal/cudatest"
	"github.com/enginetest/enginetest/ledger"
)

// testPTX is old enough for any driver of 2022 and any GPU since Turing. The stub knows fill32,
// crash and nop by name.
const testPTX = `.version 6.3
.target sm_75
.address_size 64

.visible .entry fill32(
	.param .u64 p,
	.param .u32 value,
	.param .u32 n
)
{
	.reg .pred %q<2>;
	.reg .b32 %r<6>;
	.reg .b64 %d<5>;
	ld.param.u64 %d1, [p];
	ld.param.u32 %r1, [value];
	ld.param.u32 %r2, [n];
	cvta.to.global.u64 %d2, %d1;
	mov.u32 %r3, %ctaid.x;
	mov.u32 %r4, %ntid.x;
	mov.u32 %r5, %tid.x;
	mad.lo.s32 %r3, %r3, %r4, %r5;
	setp.ge.u32 %q1, %r3, %r2;
	@%q1 bra DONE;
	mul.wide.u32 %d3, %r3, 4;
	add.s64 %d4, %d2, %d3;
	st.global.u32 [%d4], %r1;
DONE:
	ret;
}

.visible .entry crash()
{
	.reg .b32 %r<2>;
	.reg .b64 %d<2>;
	mov.u64 %d1, 16;
	mov.u32 %r1, 1;
	st.global.u32 [%d1], %r1;
	ret;
}

.visible .entry nop()
{
	ret;
}

.visible .entry spin(
	.param .u64 ns
)
{
	.reg .pred %q<2>;
	.reg .b64 %d<4>;
	ld.param.u64 %d1, [ns];
	mov.u64 %d2, %globaltimer;
	add.s64 %d1, %d1, %d2;
AGAIN:
	mov.u64 %d3, %globaltimer;
	setp.lt.u64 %q1, %d3, %d1;
	@%q1 bra AGAIN;
	ret;
}
`

// No worker's goroutine, and so no thread, outlives its Close.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onEach runs a test against the stub and against the GPU, when there is one: what holds for both
// is what the stub is worth.
func onEach(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	t.Run("stub", func(t *testing.T) { test(t, stubRig(t, 1, 64<<20)) })
	t.Run("gpu", func(t *testing.T) { test(t, gpuRig(t)) })
}

// rig is a driver to test with.
type rig struct {
	d    *Driver
	stub *cudatest.Stub // nil on a GPU
}

func stubRig(t *testing.T, devices int, bytes int64) *rig {
	t.Helper()
	stub := cudatest.New(t, devices, bytes)
	d, err := Open(Library(stub.Path))
	require.NoError(t, err)
	return &rig{d, stub}
}

// gpuRig skips with the reason that Available gives.
func gpuRig(t *testing.T) *rig {
	t.Helper()
	if err := Available(Library("libcuda.so.1")); err != nil {
		t.Skipf("no GPU: %v", err)
	}
	d, err := Open(Library("libcuda.so.1"))
	require.NoError(t, err)
	return &rig{d: d}
}

// worker opens a worker on device i whose Close, when the test ends, must find nothing. A test that
// closes it itself is free to.
func (r *rig) worker(t *testing.T, i int) *Worker {
	t.Helper()
	vs, err := r.d.Devices()
	require.NoError(t, err)
	require.Greater(t, len(vs), i, "devices")
	w := newWorker(t, vs[i], Config{Ledger: ledger.New(false), Stacks: true})
	t.Cleanup(func() {
		if !w.closed.Load() {
			require.NoError(t, closeSoon(w))
		}
	})
	return w
}

// newWorker opens a worker that is closed when the test ends, even if it fails: an open one keeps
// the context for the tests that follow.
func newWorker(t *testing.T, v Device, cfg Config) *Worker {
	t.Helper()
	w, err := NewWorker(v, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = closeSoon(w) })
	return w
}

// calls is how many driver calls the stub has seen; always 0 on a GPU, which does not say.
func (r *rig) calls() int {
	if r.stub == nil {
		return 0
	}
	return r.stub.Calls("")
}

func closeSoon(w *Worker) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return w.Close(ctx)
}

// do runs fn on the worker's thread; a failed require inside ends the test.
func do(t *testing.T, w *Worker, fn func()) {
	t.Helper()
	require.NoError(t, w.Do(func() error { fn(); return nil }))
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// words32 is n times v in memory's order.
func words32(v uint32, n int) []byte {
	b := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(b[4*i:], v)
	}
	return b
}
