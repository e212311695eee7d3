package cudarunner

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/modelrunner/runnertest"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/internal/cudatest"
	"github.com/enginetest/enginetest/ledger"
)

// everywhere runs a test on the stand-in for libcuda, whose kernels do nothing, and on a GPU when
// there is one.
func everywhere(t *testing.T, test func(t *testing.T, v cuda.Device, stub *cudatest.Stub)) {
	t.Run("stub", func(t *testing.T) {
		s, v := stubDevice(t)
		test(t, v, s)
	})
	t.Run("gpu", func(t *testing.T) { test(t, gpu(t), nil) })
}

// openOn makes a runner whose end, when the test ends, leaves nothing.
func openOn(t *testing.T, v cuda.Device, stub *cudatest.Stub, dir string, o Options) *Runner {
	t.Helper()
	ckpt, err := checkpoint.Open(dir)
	require.NoError(t, err)
	if o.Ledger == nil {
		o.Ledger = ledger.New(true)
	}
	o.Device, o.PTX = v, stub != nil
	r, err := New(ckpt, o)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, r.Close())
		require.Empty(t, o.Ledger.Holdings())
		if stub != nil {
			require.Zero(t, stub.Used(0))
			require.Zero(t, stub.Objects(0))
			require.False(t, stub.Active(0))
		}
	})
	return r
}

func testDevice(v cuda.Device, stub *cudatest.Stub) runnertest.Device {
	return runnertest.Device{
		Package: "cudarunner", Dir: "../modelrunner/testdata", Owners: []string{
			weights, "rope", "workspace",
			"staging",
		}, Blank: stub != nil,
		Open: func(t *testing.T, dir string, hooks modelrunner.Hooks) (runnertest.Runner, *ledger.Ledger) {
			l := ledger.New(true)
			return openOn(t, v, stub, dir, Options{Ledger: l, Hooks: hooks, MaxNumBatchedTokens: 64}), l
		},
		Kept: func(held []ledger.Holding) (n int64) {
			for _, h := range held {
				if h.Owner == weights {
					n += h.Bytes
				}
			}
			return n
		},
	}
}

func TestSleep(t *testing.T) {
	everywhere(t, func(t *testing.T, v cuda.Device, stub *cudatest.Stub) { runnertest.Sleep(t, testDevice(v, stub)) })
}

func TestCopyKV(t *testing.T) {
	everywhere(t, func(t *testing.T, v cuda.Device, stub *cudatest.Stub) { runnertest.CopyKV(t, testDevice(v, stub)) })
}

// Every driver call of a wake is made to fail in turn: nothing has been taken then, and the next
// wake works. The device's memory is what the ledger says.
func TestWakeFailsInTheDriver(t *testing.T) {
	s, v := stubDevice(t)
	dir := fixtures.Checkpoint(t, fixtures.Spec{Vocab: 300, Layers: 1})
	for _, keep := range []bool{true, false} {
		calls := map[string]int{
			"cuMemAlloc_v2": 2, "cuMemHostAlloc": 2, "cuMemcpyHtoDAsync_v2": 1,
			"cuStreamSynchronize": 1, "cuMemsetD8Async": 1,
		}
		if keep {
			calls["cuMemHostUnregister"] = 1
		} else { // what loading takes besides
			maps.Copy(calls, map[string]int{
				"cuMemcpyHtoD_v2": 1, "cuEventCreate": 2, "cuLaunchKernel": 1,
				"cuMemFreeHost": 1,
			})
		}
		for call, code := range calls {
			t.Run(fmt.Sprint("keep ", keep, " ", call), func(t *testing.T) {
				r := openOn(t, v, s, dir, Options{MaxNumBatchedTokens: 16})
				require.NoError(t, r.AllocateKV(4))
				failures := 0
				for nth := 1; ; nth++ {
					require.NoError(t, r.Sleep(keep))
					require.Zero(t, s.Used(0), "asleep")
					objects, held := s.Objects(0), ledger.ByOwner(r.options.Ledger.Holdings())
					s.Fail(call, nth, code)
					err := r.WakeWeights()
					if err == nil {
						s.Forgive()
						require.NoError(t, r.AllocateKV(4))
						require.Equal(t, s.Used(0), heldBytes(r.Holdings()))
						break
					}
					failures++
					require.ErrorIs(t, err, cuda.Code(code))
					require.Equal(t, held, ledger.ByOwner(r.options.Ledger.Holdings()), "call %d", nth)
					require.Zero(t, s.Used(0), "call %d", nth)
					require.Equal(t, objects, s.Objects(0), "call %d", nth)
				}
				require.Positive(t, failures, "the call is part of a wake")
			})
		}
	}
}

func heldBytes(hs []ledger.Holding) (n int64) {
	for _, h := range hs {
		n += h.Bytes
	}
	return n
}

// Weights that find no room on the host stay where they are, and everything else goes. They are
// used again, or go in a deeper sleep.
func TestNoRoomForKeptWeights(t *testing.T) {
	s, v := stubDevice(t)
	r := openOn(t, v, s, fixtures.Bundled(), Options{})
	require.NoError(t, r.AllocateKV(4))
	before := ledger.ByOwner(r.options.Ledger.Holdings())
	asleep := func() {
		t.Helper()
		s.Fail("cuMemHostRegister_v2", 1, 2)
		err := r.Sleep(true)
		require.ErrorIs(t, err, cuda.ErrOutOfMemory)
		require.ErrorContains(t, err, "cudarunner: the weights stay on the device: cuda: no 7.")
		require.Equal(t, before[weights], s.Used(0))
	}
	asleep()
	require.NoError(t, r.WakeWeights())
	require.NoError(t, r.AllocateKV(4))
	require.Equal(t, before, ledger.ByOwner(r.options.Ledger.Holdings()))
	for _, keep := range []bool{true, false} {
		asleep()
		require.NoError(t, r.Sleep(keep))
		require.Zero(t, s.Used(0))
		require.NoError(t, r.WakeWeights())
		require.NoError(t, r.AllocateKV(4))
		require.Equal(t, before, ledger.ByOwner(r.options.Ledger.Holdings()))
	}
}

// Copies run beside steps, in many goroutines, and each gets its own block's bytes.
func TestCopiesBesideSteps(t *testing.T) {
	everywhere(t, func(t *testing.T, v cuda.Device, stub *cudatest.Stub) {
		r := openOn(t, v, stub, fixtures.Bundled(), Options{})
		const blocks = 64
		require.NoError(t, r.AllocateKV(blocks))
		stop := make(chan struct{})
		var steps, copies sync.WaitGroup
		steps.Go(func() {
			for {
				d := newDriver(t, 16, 16, 2048) // the other blocks are the copies'
				d.add(prompts(1000, 100)[0], 20, sample.Params{Logprobs: -1})
				d.generate(r, 2000)
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		for i := range 6 {
			copies.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), 1))
				in, out := make([]byte, r.KVBytesPerBlock()), make([]byte, r.KVBytesPerBlock())
				for range 30 {
					block := int32(16 + 8*i + rng.IntN(8))
					for j := range in {
						in[j] = byte(rng.Uint32())
					}
					require.NoError(t, r.WriteKV(block, in))
					require.NoError(t, r.ReadKV(block, out))
					require.True(t, bytes.Equal(in, out))
				}
			})
		}
		copies.Wait()
		close(stop)
		steps.Wait()
	})
}

// A copy that fails fails alone; making the copier can fail at each of its calls, and be tried
// again.
func TestCopyFails(t *testing.T) {
	s, v := stubDevice(t)
	refuse := true
	r := openOn(t, v, s, fixtures.Bundled(), Options{Hooks: modelrunner.Hooks{Allocate: func(owner string,
		n int64,
	) error {
		if refuse && owner == "staging" && n == slots*16*6144 {
			return errors.New("planted")
		}
		return nil
	}}})
	require.EqualValues(t, 16*6144, r.KVBytesPerBlock(), "what the hook looks for")
	require.NoError(t, r.AllocateKV(4))
	block := make([]byte, r.KVBytesPerBlock())
	require.ErrorContains(t, r.ReadKV(1, block), "planted")
	refuse = false
	held := r.options.Ledger.Holdings()
	for _, c := range []struct {
		call string
		code int
	}{{"cuDevicePrimaryCtxRetain", 2}, {"cuStreamCreateWithPriority", 2}, {"cuMemHostAlloc", 2}, {
		"cuMemcpy2DAsync_v2",
		1,
	}, {"cuStreamSynchronize", 1}} {
		s.Fail(c.call, 1, c.code)
		require.ErrorIs(t, r.ReadKV(1, block), cuda.Code(c.code), c.call)
		if c.call[:8] != "cuMemcpy" && c.call != "cuStreamSynchronize" {
			require.ElementsMatch(t, held, r.options.Ledger.Holdings(), c.call)
		}
	}
	require.NoError(t, r.ReadKV(1, block))
	require.NoError(t, r.Sleep(true))
	require.NoError(t, r.WakeWeights())
	require.NoError(t, r.AllocateKV(4))
	require.NoError(t, r.WriteKV(1, block), "it is made again after a sleep")
}

// TestGPUSleepShowsInNVML: what the ledger says is given back is given back, and how long each part
// takes.
func TestGPUSleepShowsInNVML(t *testing.T) {
	v := gpu(t)
	dir := measured(t)
	src, err := gpuwait.Open()
	if err != nil {
		t.Skipf("no NVML: %v", err)
	}
	defer src.Close()
	used := func() int64 {
		m, err := src.Memory(v.UUID)
		require.NoError(t, err)
		return m.Used
	}
	before := used()
	r := openOn(t, v, nil, dir, Options{})
	blocks := int((int64(8) << 30) / r.KVBytesPerBlock())
	require.NoError(t, r.AllocateKV(blocks))
	runs := func() []int32 {
		d := newDriver(t, 16, 64, 2048)
		d.add(prompts(1000, 100)[0], 10, sample.Params{Logprobs: -1})
		d.generate(r, 2000)
		return d.seqs[0].Output
	}
	want := runs()
	awake, held := used(), heldBytes(r.Holdings())
	t.Logf("NVML over the baseline: %.1f MiB awake, the ledger has %.1f MiB on the device", mib(awake-before),
		mib(held))
	for _, keep := range []bool{true, false} {
		for round := range 3 {
			began := time.Now()
			require.NoError(t, r.Sleep(keep))
			slept := time.Since(began)
			asleep := used()
			began = time.Now()
			require.NoError(t, r.WakeWeights())
			woke := time.Since(began)
			require.NoError(t, r.AllocateKV(blocks))
			ready := time.Since(began)
			require.Equal(t, want, runs())
			t.Logf("keep %v, round %d: Sleep %s, NVML %.1f MiB less (%.1f MiB over the baseline: context and kernels), WakeWeights %s, with AllocateKV %s",
				keep, round, slept, mib(awake-asleep), mib(asleep-before), woke, ready)
			require.InDelta(t, held, awake-asleep, 32<<20,
				"the ledger's bytes, within the driver's granularity and what graphs take")
		}
	}
}

// measured is the model to measure with: with ENGINETEST_GPU_LARGE, a folder with room for 2.5 GB,
// one of 1.24 billion parameters.
func measured(t *testing.T) string {
	dir := os.Getenv("ENGINETEST_GPU_LARGE")
	if dir == "" {
		return fixtures.Bundled()
	}
	dir = filepath.Join(dir, "llama-1b")
	if _, err := os.Stat(filepath.Join(dir, "config.json")); err != nil {
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, fixtures.WriteCheckpoint(dir, fixtures.Shape1B()))
	}
	return dir
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// TestGPUCopySpeed measures copies of KV blocks, alone and beside steps.
func TestGPUCopySpeed(t *testing.T) {
	v := gpu(t)
	dir := measured(t)
	r := openOn(t, v, nil, dir, Options{})
	const blocks = 512
	require.NoError(t, r.AllocateKV(blocks))
	host := make([]byte, blocks*r.KVBytesPerBlock())
	clear(host)
	block := func(i int) []byte { return host[int64(i)*r.KVBytesPerBlock():][:r.KVBytesPerBlock()] }
	for _, k := range []struct {
		name string
		copy func(int32, []byte) error
	}{{"ReadKV", r.ReadKV}, {"WriteKV", r.WriteKV}} {
		for _, n := range []int{1, 4, 16} {
			best := time.Hour
			for range 3 {
				began := time.Now()
				var wg sync.WaitGroup
				for g := range n {
					wg.Go(func() {
						for i := g; i < blocks; i += n {
							if err := k.copy(int32(i), block(i)); err != nil {
								t.Error(err)
							}
						}
					})
				}
				wg.Wait()
				best = min(best, time.Since(began))
			}
			t.Logf("%s, %d goroutines: %.1f us a block of %d KiB, %.1f GB/s", k.name, n,
				float64(best.Microseconds())/blocks, r.KVBytesPerBlock()>>10,
				float64(len(host))/best.Seconds()/1e9)
		}
	}
}
