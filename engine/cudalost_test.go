package engine

import (
	"context"
	"testing"
	"time"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/forkproc"
	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/internal/cudatest"
	"github.com/enginetest/enginetest/llm"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// crash makes a kernel of another owner in this process write to an illegal address.
func crash(t *testing.T) {
	t.Helper()
	const ptx = `.version 6.3
.target sm_75
.address_size 64
.visible .entry crash()
{
	.reg .b32 %r<2>;
	.reg .b64 %d<2>;
	mov.u64 %d1, 16;
	mov.u32 %r1, 1;
	st.global.u32 [%d1], %r1;
	ret;
}
`
	d, err := cuda.Open()
	require.NoError(t, err)
	v, err := d.Device("0")
	require.NoError(t, err)
	w, err := cuda.NewWorker(v, cuda.Config{Name: "somebody else"})
	require.NoError(t, err)
	require.NoError(t, w.Do(func() error {
		m, err := w.LoadModule("crash", "crash.ptx", []byte(ptx))
		require.NoError(t, err)
		f, err := m.Function("crash")
		require.NoError(t, err)
		require.NoError(t, f.Launch(nil, cuda.Launch{}, nil))
		require.ErrorIs(t, w.Synchronize(), cuda.ErrIllegalAddress)
		return m.Close()
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, w.Close(ctx))
}

// An illegal address in this process ends the engine, whatever it does next: with an error that
// says what is lost and how to survive it. Shutdown releases all the same, and no engine can be
// opened any more.
func TestCUDALost(t *testing.T) {
	for what, next := range map[string]func(e *Engine) error{
		"a request": func(e *Engine) error {
			_, err := e.Generate(context.Background(), Request{
				PromptTokenIDs: ids(40, 0),
				Sampling:       SamplingParams{MaxTokens: 5},
			})
			return err
		},
		"sleep": func(e *Engine) error { return e.Sleep(context.Background(), 1) },
		"wake":  func(e *Engine) error { return e.Wake(context.Background()) },
	} {
		t.Run("stub/"+what, func(t *testing.T) {
			stub := cudatest.New(t, 1, 1<<30)
			t.Setenv("ENGINETEST_LIBCUDA", stub.Path)
			cudaLost(t, what, next)
			assert.Zero(t, stub.Used(0))
			assert.False(t, stub.Active(0))
		})
		t.Run("gpu/"+what, func(t *testing.T) {
			if err := cuda.Available(); err != nil {
				t.Skipf("no GPU: %v", err)
			}
			forkproc.Run(t, func(t *testing.T) { cudaLost(t, what, next) }) // it loses CUDA for good
		})
	}
}

func cudaLost(t *testing.T, what string, next func(e *Engine) error) {
	nvml, err := gpuwait.Open()
	used := func() (mib int64) { return 0 }
	if err == nil {
		defer nvml.Close()
		used = func() int64 {
			all, err := nvml.Devices()
			require.NoError(t, err)
			m, err := nvml.Memory(all[0].UUID)
			require.NoError(t, err)
			return m.Used >> 20
		}
	}
	before := used()
	cfg := Config{Model: tinyLlama, Device: "cuda", Logger: quiet, KVCacheBytes: 64 << 20, OffloadBytes: 4 << 20}
	e, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	one(t, e, ids(40, 0), SamplingParams{MaxTokens: 5, IgnoreEOS: true}) // and copies of its blocks
	if what == "wake" {
		require.NoError(t, e.Sleep(t.Context(), 1))
	}
	crash(t)
	err = next(e)
	t.Log(err)
	isLost := func(err error) {
		t.Helper()
		assert.ErrorIs(t, err, llm.ErrEngineDead)
		assert.ErrorIs(t, err, ErrCUDALost)
		assert.ErrorIs(t, err, cuda.ErrIllegalAddress)
		assert.ErrorContains(t, err, "only a new process can use it; with Config.Core ChildProcess")
	}
	isLost(err)
	isLost(e.Err())
	held := used()
	err = e.Shutdown(t.Context())
	t.Logf("Shutdown: %v; NVML over the baseline: %d MiB before it, %d MiB after it", err, held-before, used()-before)
	assert.NoError(t, err, "plain memory ends with its context")
	assert.Empty(t, e.Holdings())
	_, err = Open(t.Context(), cfg)
	t.Log(err)
	assert.ErrorIs(t, err, ErrCUDALost)
	assert.ErrorIs(t, err, cuda.ErrProcessDead)
	cfg.Device = "cpu"
	e, err = Open(t.Context(), cfg)
	require.NoError(t, err, "the CPU is there still")
	require.NoError(t, e.Shutdown(t.Context()))
}

// A core of its own loses CUDA alone: its parent is told, and opens another.
func TestCUDALostInChild(t *testing.T) {
	t.Setenv("ENGINETEST_LIBCUDA", cudatest.New(t, 1, 1<<30).Path)
	t.Setenv("STUB_FAIL", "cuGraphLaunch:3:700")
	e := openTiny(t, Config{Device: "cuda", Core: ChildProcess})
	_, err := e.Generate(t.Context(), Request{
		PromptTokenIDs: ids(5, 0),
		Sampling:       SamplingParams{MaxTokens: 50, IgnoreEOS: true},
	})
	t.Log(err)
	assert.ErrorIs(t, err, llm.ErrEngineDead)
	assert.ErrorIs(t, err, ErrCUDALost)
	assert.ErrorContains(t, err, "CUDA_ERROR_ILLEGAL_ADDRESS (700)")
	require.NoError(t, e.Shutdown(t.Context()))
	t.Setenv("STUB_FAIL", "")
	other := openTiny(t, Config{Device: "cuda", Core: ChildProcess})
	one(t, other, ids(5, 0), SamplingParams{MaxTokens: 50, IgnoreEOS: true})
}
