package cudarunner

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/internal/cudatest"
	"github.com/enginetest/enginetest/ledger"
)

// These tests run on the stand-in for libcuda: its memory is real, its kernels do nothing. What the
// kernels compute is checked in gpu_test.go, on a GPU.

func stubDevice(t *testing.T) (*cudatest.Stub, cuda.Device) {
	t.Helper()
	s := cudatest.New(t, 1, 1<<30)
	d, err := cuda.Open(cuda.Library(s.Path))
	require.NoError(t, err)
	v, err := d.Device("0")
	require.NoError(t, err)
	return s, v
}

func openStub(t *testing.T, v cuda.Device, o Options) (*Runner, error) {
	t.Helper()
	return openDir(t, v, fixtures.Bundled(), o)
}

func openDir(t *testing.T, v cuda.Device, dir string, o Options) (*Runner, error) {
	t.Helper()
	ckpt, err := checkpoint.Open(dir)
	require.NoError(t, err)
	o.Device, o.PTX = v, true
	return New(ckpt, o)
}

// TestLifeOnStub: prompts, decode steps with and without graphs, host sampling, growth of the
// inputs; and nothing left. With the PTX and with the machine code, which has the same kernels with
// the same parameters: the stand-in reads both. From outside and on the runner's thread.
func TestLifeOnStub(t *testing.T) {
	for _, ptx := range []bool{true, false} {
		for _, onThread := range []bool{false, true} {
			t.Run(fmt.Sprintf("PTX %v, on the thread %v", ptx, onThread), func(t *testing.T) {
				lifeOnStub(t, ptx, onThread)
			})
		}
	}
}

func lifeOnStub(t *testing.T, ptx, onThread bool) {
	s, v := stubDevice(t)
	l := ledger.New(true)
	ckpt, err := checkpoint.Open(fixtures.Bundled())
	require.NoError(t, err)
	r, err := New(ckpt, Options{Device: v, Ledger: l, Stacks: true, PTX: ptx})
	require.NoError(t, err)
	require.NoError(t, r.AllocateKV(200))
	require.Error(t, r.AllocateKV(200), "twice")
	require.Equal(t, 200*r.KVBytesPerBlock(), ledger.ByOwner(r.Holdings())["kv_cache"])
	for _, owner := range []string{"weights", "rope", "workspace", "staging"} {
		require.Positive(t, ledger.ByOwner(r.Holdings())[owner], owner)
	}
	d := newDriver(t, 16, 200, 2048)
	for i := range 20 {
		p := sample.Params{Logprobs: -1 + i%2} // with 0, the device sifts
		if i == 7 {
			p = sample.Params{Temperature: 1, TypicalP: 0.9, Logprobs: -1} // the host's
		}
		d.add(prompts(1000, 30+20*(i%3))[0], 5, p)
	}
	steps := func() error {
		d.generate(r, 25)
		return nil
	}
	if onThread {
		require.NoError(t, r.OnThread(steps))
	} else {
		require.NoError(t, steps())
	}
	graphs := 0
	for _, h := range r.Holdings() {
		if h.Owner == "cuda_graphs" {
			graphs++
		}
	}
	require.Positive(t, graphs, "the decode steps became graphs")
	require.NoError(t, r.Close())
	require.Empty(t, l.Holdings())
	require.Zero(t, s.Used(0))
	require.False(t, s.Active(0), "the primary context has ended")
	require.NoError(t, r.Close(), "twice")
}

// TestHalfBuilt fails every driver call of construction and of the first steps once, and every
// hook: whatever was made until then is given back.
func TestHalfBuilt(t *testing.T) {
	s, v := stubDevice(t)
	dir := fixtures.Checkpoint(t, fixtures.Spec{Vocab: 1000})
	for _, c := range []struct {
		call string
		code int
		most int // calls that fail in turn, about as many as there are until the first steps are done
	}{
		{"cuMemAlloc_v2", 2, 6},
		{"cuMemHostAlloc", 2, 10},
		{"cuModuleLoadDataEx", 218, 1},
		{"cuStreamCreateWithPriority", 2, 1},
		{"cuEventCreate", 2, 4},
		{"cuMemsetD8Async", 1, 2},
		{"cuDevicePrimaryCtxRetain", 2, 1},
		{"cuLaunchKernel", 1, 24},
		{"cuGraphInstantiateWithFlags", 2, 1},
		{"cuGraphLaunch", 1, 1},
		{"cuMemcpyHtoDAsync_v2", 1, 4},
		{"cuMemcpyHtoD_v2", 1, 4},
	} {
		failures := 0
		for nth := 1; nth <= c.most; nth++ {
			l := ledger.New(false)
			s.Fail(c.call, nth, c.code)
			r, err := openDir(t, v, dir, Options{Ledger: l, MaxNumBatchedTokens: 16})
			if err == nil {
				if err = r.AllocateKV(32); err == nil {
					b := batchOf(2, 5, 1)
					for range 3 {
						for i := range b.Tokens {
							b.Tokens[i] %= 1000
							b.Slots[i], b.Seqs[i].Blocks[0] = int32(16*i+5), int32(i)
						}
						if _, err = r.Execute(b); err != nil {
							break
						}
					}
				}
				require.NoError(t, r.Close(), "%s %d", c.call, nth)
			}
			if err != nil {
				failures++
				require.ErrorIs(t, err, cuda.Code(c.code), "%s %d", c.call, nth)
			}
			s.Forgive() // it may have been called fewer times
			require.Empty(t, l.Holdings(), "%s %d: %v", c.call, nth, err)
			require.Zero(t, s.Used(0), "%s %d", c.call, nth)
		}
		require.Equal(t, c.most, failures, "every failure of %s was met", c.call)
	}
}

// TestHooks: hooks fail construction and release, and are named for what they are called for.
func TestHooks(t *testing.T) {
	s, v := stubDevice(t)
	planted := errors.New("planted")
	for _, owner := range []string{"weights", "rope", "workspace", "staging"} {
		l := ledger.New(false)
		_, err := openStub(t, v, Options{Ledger: l, Hooks: modelrunner.Hooks{Allocate: func(o string, n int64) error {
			if o == owner {
				return planted
			}
			return nil
		}}})
		require.ErrorIs(t, err, planted, owner)
		require.Empty(t, l.Holdings(), owner)
		require.Zero(t, s.Used(0), owner)
	}
	_, err := openStub(t, v, Options{Hooks: modelrunner.Hooks{Load: func() error { return planted }}})
	require.ErrorIs(t, err, planted)

	l, refuse := ledger.New(false), true
	r, err := openStub(t, v, Options{Ledger: l, Hooks: modelrunner.Hooks{Release: func(o string, n int64) error {
		if o == "weights" && refuse {
			panic(planted)
		}
		return nil
	}}})
	require.NoError(t, err)
	err = r.Close()
	require.ErrorIs(t, err, planted)
	require.ErrorContains(t, err, "releasing weights (")
	require.Positive(t, ledger.ByOwner(l.Holdings())["weights"], "it stays in the ledger")
	require.Zero(t, ledger.ByOwner(l.Holdings())["workspace"], "the others went")
	refuse = false
	require.NoError(t, r.Close())
	require.Empty(t, l.Holdings())
}

// TestBadBatches: every one is refused, by name, before the device is asked.
func TestBadBatches(t *testing.T) {
	_, v := stubDevice(t)
	r, err := openStub(t, v, Options{MaxNumBatchedTokens: 8})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	batch := func(change func(b *modelrunner.Batch)) *modelrunner.Batch {
		b := &modelrunner.Batch{
			Tokens: []int32{1, 2}, Positions: []int32{0, 1}, Slots: []int32{0, 1},
			Seqs: []modelrunner.Seq{{Len: 2, Context: 2, Blocks: []int32{0}, PromptLogprobs: -1}},
		}
		change(b)
		return b
	}
	_, err = r.Execute(batch(func(*modelrunner.Batch) {}))
	require.ErrorContains(t, err, "there is no KV cache")
	require.NoError(t, r.AllocateKV(4))
	for want, change := range map[string]func(b *modelrunner.Batch){
		"no tokens":              func(b *modelrunner.Batch) { *b = modelrunner.Batch{} },
		"room for 8":             func(b *modelrunner.Batch) { b.Tokens = make([]int32, 9) },
		"1 positions":            func(b *modelrunner.Batch) { b.Positions = b.Positions[:1] },
		"token -1 in row 1":      func(b *modelrunner.Batch) { b.Tokens[1] = -1 },
		"position 100000 in row": func(b *modelrunner.Batch) { b.Positions[1] = 100000 },
		"slot 64 in row 1":       func(b *modelrunner.Batch) { b.Slots[1] = 64 },
		"has rows [1, 3) of 2":   func(b *modelrunner.Batch) { b.Seqs[0].Start = 1 },
		"context 3":              func(b *modelrunner.Batch) { b.Seqs[0].Context = 3 },
		"block 4, the KV cache":  func(b *modelrunner.Batch) { b.Seqs[0].Blocks = []int32{4} },
		"the sequences have 1": func(b *modelrunner.Batch) {
			b.Seqs[0].Len, b.Seqs[0].Context, b.Positions[0] = 1, 1, 0
		},
		"3 prompt targets in 2 r": func(b *modelrunner.Batch) { b.Seqs[0].Targets = make([]int32, 3) },
	} {
		_, err := r.Execute(batch(change))
		require.ErrorContains(t, err, want)
	}
	_, err = r.Execute(batch(func(*modelrunner.Batch) {}))
	require.NoError(t, err, "a good one still runs")
}

// TestExpertsAreRefused before any memory is taken.
func TestExpertsAreRefused(t *testing.T) {
	_, v := stubDevice(t)
	l := ledger.New(false)
	dir := fixtures.Checkpoint(t, fixtures.Spec{Architecture: fixtures.Qwen3MoE})
	_, err := openDir(t, v, dir, Options{Ledger: l})
	var e *checkpoint.Error
	require.ErrorAs(t, err, &e)
	require.EqualError(t, e, "checkpoint: "+dir+": num_experts: the CUDA device computes no mixtures of experts: "+
		`got 4, want 0, or the device "cpu"`)
	require.Zero(t, l.Peak())
}
