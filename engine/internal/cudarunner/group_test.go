package cudarunner

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/internal/cudatest"
	"github.com/enginetest/enginetest/ledger"
)

// These tests run on the stand-in for libcuda, which is one for NCCL as well. What the kernels
// compute is checked in group_gpu_test.go.

func stubDevices(t *testing.T, n int) (*cudatest.Stub, []cuda.Device) {
	t.Helper()
	s := cudatest.New(t, n, 1<<30)
	t.Setenv("ENGINETEST_LIBNCCL", s.Path)
	d, err := cuda.Open(cuda.Library(s.Path))
	require.NoError(t, err)
	vs, err := d.Devices()
	require.NoError(t, err)
	return s, vs
}

func openGroup(tb testing.TB, vs []cuda.Device, dir string, o Options) (modelrunner.Runner, error) {
	tb.Helper()
	ckpt, err := checkpoint.Open(dir)
	require.NoError(tb, err)
	return NewGroup(ckpt, vs, o, nil)
}

// clear checks that nothing is left on any device.
func clearOf(t *testing.T, s *cudatest.Stub, l *ledger.Ledger, devices int, why ...any) {
	t.Helper()
	require.Empty(t, l.Holdings(), why...)
	for i := range devices {
		require.Zero(t, s.Used(i), why...)
		require.False(t, s.Active(i), why...)
	}
}

// TestGroupLifeOnStub: prompts, prompts' log-probabilities in several goes, decode with graphs,
// host sampling; on two devices, on three of four ranks, on one device twice, by both ways to
// reduce; and nothing is left anywhere.
func TestGroupLifeOnStub(t *testing.T) {
	s, vs := stubDevices(t, 4)
	dir := fixtures.Checkpoint(t, fixtures.Spec{Heads: 4, KVHeads: 2, Vocab: 1001, Bias: true})
	for _, c := range []struct {
		name    string
		devices []cuda.Device
		how     AllReduce
	}{
		{"two devices", vs[:2], Automatic},
		{"four devices, each KV head on two", vs, Own},
		{"two ranks on one device", []cuda.Device{vs[0], vs[0]}, Own},
		{"NCCL", vs[:2], NCCL},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := ledger.New(true)
			g, err := openGroup(t, c.devices, dir, Options{Ledger: l, Stacks: true, PTX: true, AllReduce: c.how})
			require.NoError(t, err)
			require.NoError(t, g.AllocateKV(200))
			d := newDriver(t, 16, 200, 2048)
			for i := range 20 {
				q := d.add(prompts(1000, 30+20*(i%3))[0], 5, sample.Params{Logprobs: -1 + i%2})
				q.promptLogprobs = i % 3
			}
			d.generate(g, 25)
			owners := ledger.ByOwner(g.Holdings())
			for _, owner := range []string{"weights", "kv_cache", "workspace", "all_reduce"} {
				require.Positive(t, owners[owner], owner)
			}
			require.Equal(t, c.how == NCCL, owners["nccl"] == 2*32<<20, "%v", owners)
			graphs := map[string]int{}
			for _, h := range g.Holdings() {
				if h.Owner == "cuda_graphs" {
					graphs[h.Device]++
				}
			}
			require.Positive(t, graphs[c.devices[0].UUID])
			require.Positive(t, graphs[c.devices[len(c.devices)-1].UUID], "every rank has graphs of its own")
			require.NoError(t, g.Close())
			clearOf(t, s, l, len(vs))
			require.NoError(t, g.Close(), "twice")
		})
	}
}

// TestGroupShares: each rank holds its part of the weights only.
func TestGroupShares(t *testing.T) {
	s, vs := stubDevices(t, 2)
	dir := fixtures.Checkpoint(t, fixtures.Spec{
		Hidden: 256, Heads: 8, KVHeads: 2, HeadDim: 64, Intermediate: 1024,
		Layers: 4, Vocab: 256,
	})
	l := ledger.New(false)
	one, err := openDir(t, vs[0], dir, Options{Ledger: l})
	require.NoError(t, err)
	require.NoError(t, one.AllocateKV(10))
	whole := ledger.ByOwner(one.Holdings())
	require.NoError(t, one.Close())
	g, err := openGroup(t, vs, dir, Options{Ledger: l, PTX: true})
	require.NoError(t, err)
	require.NoError(t, g.AllocateKV(10))
	require.Equal(t, one.KVBytesPerBlock(), 2*g.KVBytesPerBlock(), "a block of one rank")
	half := ledger.ByOwner(g.Holdings())
	require.Equal(t, whole["kv_cache"], half["kv_cache"], "two halves")
	extra := int64(256 * 256 * 2)                                               // the embedding is whole on both
	require.InDelta(t, whole["weights"]+extra, half["weights"], 1<<16, "norms") // are, too
	require.NoError(t, g.Close())
	clearOf(t, s, l, 2)
}

// TestGroupRefusals: what cannot be a group is refused by name, before the devices are touched.
func TestGroupRefusals(t *testing.T) {
	s, vs := stubDevices(t, 3)
	dir := fixtures.Bundled()
	l := ledger.New(false)
	_, err := openGroup(t, vs[:1], dir, Options{Ledger: l, PTX: true})
	require.ErrorContains(t, err, "a group of 1 devices, want 2 to 8")
	_, err = openGroup(t, vs, fixtures.Checkpoint(t, fixtures.Spec{Heads: 4, KVHeads: 4}),
		Options{Ledger: l, PTX: true})
	var split *modelrunner.SplitError
	require.ErrorAs(t, err, &split)
	require.Equal(t, "num_attention_heads", split.Field)
	_, err = openGroup(t, vs[:2], dir, Options{Ledger: l, PTX: true, AllReduce: "mpi"})
	require.ErrorContains(t, err, `AllReduce "mpi", want "", "own" or "nccl"`)
	t.Setenv(AllReduceEnv, "gloo")
	_, err = openGroup(t, vs[:2], dir, Options{Ledger: l, PTX: true})
	require.ErrorContains(t, err, `AllReduce "gloo", want`)
	_, err = openGroup(t, []cuda.Device{vs[0], vs[0]}, dir, Options{Ledger: l, PTX: true, AllReduce: NCCL})
	require.ErrorIs(t, err, ErrNoNCCL)
	t.Setenv("ENGINETEST_LIBNCCL", "/nonexistent/libnccl.so.2")
	_, err = openGroup(t, vs[:2], dir, Options{Ledger: l, PTX: true, AllReduce: NCCL})
	require.ErrorIs(t, err, ErrNoNCCL)
	require.ErrorContains(t, err, "/nonexistent/libnccl.so.2")
	require.Zero(t, s.Calls("cuDevicePrimaryCtxRetain"), "no refusal touched a device")
	clearOf(t, s, l, 3)
}

// TestGroupHalfBuilt fails the second rank's calls of construction and of the first steps in turn:
// the error names rank and device, the other rank ends too, and whatever either had made until then
// is given back.
func TestGroupHalfBuilt(t *testing.T) {
	s, vs := stubDevices(t, 2)
	dir := fixtures.Checkpoint(t, fixtures.Spec{Vocab: 1000})
	for _, c := range []struct {
		call string
		code int
		nth  []int
		how  AllReduce
	}{
		{"cuMemAlloc_v2", 2, []int{1, 2, 4, 6, 7}, Own},
		{"cuMemHostAlloc", 2, []int{1, 3, 8, 10}, Own},
		{"cuModuleLoadDataEx", 218, []int{1}, Own},
		{"cuStreamCreateWithPriority", 2, []int{1}, Own},
		{"cuCtxEnablePeerAccess", 217, []int{1}, Own},
		{"cuMemsetD8Async", 1, []int{1, 3}, Own},
		{"cuLaunchKernel", 1, []int{1, 10, 25, 40}, Own},
		{"cuGraphInstantiateWithFlags", 2, []int{1}, Own},
		{"cuGraphLaunch", 700, []int{1}, Own},
		{"cuStreamSynchronize", 719, []int{1, 3}, Own},
		{"ncclAllReduce", 5, []int{1, 5}, NCCL},
		{"cuLaunchKernel", 1, []int{40}, NCCL},
	} {
		sticky := c.code >= 700 // the other device's context is dead as well
		for _, nth := range c.nth {
			s.Reset(2, 1<<30) // after a sticky error the process gets no context
			_, err := cuda.Open(cuda.Library(s.Path))
			require.NoError(t, err)
			l := ledger.New(false)
			s.FailOn(1, c.call, nth, c.code)
			g, err := openGroup(t, vs, dir, Options{Ledger: l, PTX: true, MaxNumBatchedTokens: 16, AllReduce: c.how})
			if err == nil {
				err = stepsOf(g)
				closed := g.Close()
				if !sticky { // else it has more to say
					require.NoError(t, closed, "%s %d", c.call, nth)
				}
			}
			require.Error(t, err, "%s %d", c.call, nth)
			var rank *modelrunner.RankError
			require.ErrorAs(t, err, &rank, "%s %d", c.call, nth)
			if !sticky {
				require.Equal(t, 1, rank.Rank, "the first one is not to blame")
			}
			require.ErrorContains(t, err, "rank 1 (cuda:"+vs[1].UUID+"): ")
			require.NotErrorIs(t, err, modelrunner.ErrAborted, "the rank that only waited is not named")
			if _, isNCCL := errors.AsType[*NCCLError](err); !isNCCL {
				require.ErrorIs(t, err, cuda.Code(c.code), "%s %d", c.call, nth)
			} else {
				require.ErrorContains(t, err,
					"ncclAllReduce: NCCL error 5: invalid usage: the stand-in has no more to say")
			}
			clearOf(t, s, l, 2, "%s %d: %v", c.call, nth, err)
		}
	}
}

// stepsOf runs three decode steps: kernel by kernel, captured, and a graph again.
func stepsOf(g modelrunner.Runner) error {
	if err := g.AllocateKV(32); err != nil {
		return err
	}
	return threeSteps(g)
}

func threeSteps(g modelrunner.Runner) error {
	b := batchOf(2, 5, 1)
	for range 3 {
		for i := range b.Tokens {
			b.Tokens[i] %= 1000
			b.Slots[i], b.Seqs[i].Blocks[0] = int32(16*i+5), int32(i)
		}
		if _, err := g.Execute(b); err != nil {
			return err
		}
	}
	return nil
}

// TestGroupNCCLRefuses: communicators that cannot be made leave nothing.
func TestGroupNCCLRefuses(t *testing.T) {
	s, vs := stubDevices(t, 2)
	l := ledger.New(false)
	s.Fail("ncclCommInitAll", 1, 2)
	_, err := openGroup(t, vs, fixtures.Bundled(), Options{Ledger: l, PTX: true, AllReduce: NCCL})
	require.ErrorContains(t, err, "ncclCommInitAll: NCCL error 2: ")
	clearOf(t, s, l, 2)
}

// TestGroupNCCLAborts: a rank that fails aborts NCCL's communicators. That call returns when there
// are no graphs with them any more, which is at Close: the step does not wait for it. No graph is
// launched after it.
func TestGroupNCCLAborts(t *testing.T) {
	s, vs := stubDevices(t, 2)
	for i := range 2 {
		f, l := &failing{rank: i}, ledger.New(true)
		ckpt, err := checkpoint.Open(fixtures.Bundled())
		require.NoError(t, err)
		g, err := NewGroup(ckpt, vs, Options{Ledger: l, PTX: true, AllReduce: NCCL}, f.hooks)
		require.NoError(t, err)
		require.NoError(t, stepsOf(g))
		aborts, destroys, launches := s.Calls("ncclCommAbort"), s.Calls("ncclCommDestroy"), s.Calls("cuGraphLaunch")
		require.Positive(t, launches)
		f.armed.Store(true)
		began := time.Now()
		require.ErrorIs(t, threeSteps(g), errPlanted)
		require.Less(t, time.Since(began), closeTimeout, "the step waited for the abort")
		launches = s.Calls("cuGraphLaunch") // the other rank's may have been one
		_, err = g.Execute(oneStep())
		require.ErrorIs(t, err, modelrunner.ErrAborted)
		require.ErrorContains(t, err, "NCCL's communicators were aborted; a new group is needed")
		require.ErrorIs(t, threeSteps(g), modelrunner.ErrAborted)
		require.Equal(t, launches, s.Calls("cuGraphLaunch"))
		require.NoError(t, g.Close())
		require.Equal(t, aborts+2, s.Calls("ncclCommAbort"))
		require.Equal(t, destroys, s.Calls("ncclCommDestroy"))
		clearOf(t, s, l, 2)
	}
}

// TestGroupHooks: a hook that fails on one rank's step wakes the other; the group can take another
// step; a panic keeps its stack.
func TestGroupHooks(t *testing.T) {
	s, vs := stubDevices(t, 2)
	l, planted := ledger.New(false), errors.New("planted")
	calls := make(chan int, 2)
	g, err := openGroup(t, vs, fixtures.Bundled(), Options{
		Ledger: l, PTX: true,
		Hooks: modelrunner.Hooks{Forward: func() error {
			select {
			case n := <-calls:
				if n == 1 {
					return planted
				}
				panic(planted)
			default:
				return nil
			}
		}},
	})
	require.NoError(t, err)
	require.NoError(t, g.AllocateKV(16))
	b := batchOf(1, 0, 3)
	for i := range b.Tokens {
		b.Tokens[i], b.Slots[i] = 1, int32(i)
	}
	b.Seqs[0].Blocks = []int32{0}
	for n := range 2 {
		calls <- 1 + n // for whichever rank comes first
		_, err = g.Execute(b)
		require.ErrorIs(t, err, planted)
		var rank *modelrunner.RankError
		require.ErrorAs(t, err, &rank)
		_, err = g.Execute(b)
		require.NoError(t, err, "mended")
	}
	require.NoError(t, g.Close())
	clearOf(t, s, l, 2)
}

// TestWaitError: what the host makes of a kernel that gave up.
func TestWaitError(t *testing.T) {
	s, vs := stubDevices(t, 2)
	l := ledger.New(false)
	var group *link
	g, err := openGroup(t, vs, fixtures.Bundled(), Options{Ledger: l, PTX: true, Patience: 3 * time.Second, linked: func(l *link) { group = l }, Hooks: modelrunner.Hooks{Sample: func() error {
		group.runners[0].group.mailbox.set(stateWaited + 1) // as the kernel does
		return nil
	}}})
	require.NoError(t, err)
	require.NoError(t, g.AllocateKV(16))
	b := batchOf(1, 0, 1)
	b.Tokens[0], b.Slots[0], b.Seqs[0].Blocks = 1, 0, []int32{0}
	_, err = g.Execute(b)
	var waited *WaitError
	require.ErrorAs(t, err, &waited)
	require.Equal(t, 1, waited.Rank)
	require.ErrorContains(t, err,
		fmt.Sprintf("rank 0 (cuda:%s): cudarunner: waited 3s in an all-reduce for rank 1 (cuda:%s)", vs[0].UUID,
			vs[1].UUID))
	require.NoError(t, g.Close())
	clearOf(t, s, l, 2)
}

// TestGroupSleeps: both devices give back all that the ledger counts, and wake as one; a wake that
// fails on the second has taken nothing on the first.
func TestGroupSleeps(t *testing.T) {
	s, vs := stubDevices(t, 2)
	l := ledger.New(true)
	dir := fixtures.Checkpoint(t, fixtures.Spec{Vocab: 1000, Layers: 1})
	g, err := openGroup(t, vs, dir, Options{Ledger: l, PTX: true, MaxNumBatchedTokens: 16})
	require.NoError(t, err)
	require.NoError(t, stepsOf(g))
	sleeper := g.(modelrunner.Sleeper)
	before := l.Holdings()
	for _, keep := range []bool{true, false} {
		for nth := 1; nth <= 7; nth++ {
			require.NoError(t, sleeper.Sleep(keep))
			require.Zero(t, s.Used(0)+s.Used(1), "asleep")
			s.FailOn(1, "cuMemAlloc_v2", nth, 2)
			err := sleeper.WakeWeights()
			if s.Pending() > 0 {
				s.Forgive()
			} else {
				require.ErrorIs(t, err, cuda.ErrOutOfMemory)
				require.ErrorContains(t, err, "rank 1 (cuda:"+vs[1].UUID+"): ")
				require.Zero(t, s.Used(0)+s.Used(1), "rolled back, %d", nth)
				require.NoError(t, sleeper.WakeWeights())
			}
			require.NoError(t, stepsOf(g))
			require.Equal(t, ledger.ByOwner(before), ledger.ByOwner(l.Holdings()))
		}
	}
	copier, n := g.(modelrunner.KVCopier), int(g.KVBytesPerBlock())
	block, back := make([]byte, 2*n), make([]byte, 2*n)
	for i := range block {
		block[i] = byte(i * 7)
	}
	require.NoError(t, copier.WriteKV(3, block))
	require.NoError(t, copier.ReadKV(3, back))
	require.Equal(t, block, back)
	require.NoError(t, g.Close())
	clearOf(t, s, l, 2)
}

// TestGroupArguments: kernels of groups get as many arguments, of the same sizes, as their PTX
// declares.
func TestGroupArguments(t *testing.T) {
	_, vs := stubDevices(t, 2)
	declared, launched := declaredArguments(t), map[string]string{}
	for _, s := range []fixtures.Spec{{DType: fixtures.F32}, {DType: fixtures.F16, Hidden: 512}, {Intermediate: 2048}} {
		for _, how := range []AllReduce{Own, NCCL} {
			var l *link
			g, err := openGroup(t, vs, fixtures.Checkpoint(t, s), Options{PTX: true, AllReduce: how, linked: func(x *link) { l = x }})
			require.NoError(t, err)
			for _, r := range l.runners {
				r.kernels.launched = map[string]string{}
			}
			require.NoError(t, g.AllocateKV(200))
			d := newDriver(t, 16, 200, 2048)
			for range 6 {
				d.add(prompts(256, 200)[0], 2, sample.Params{Logprobs: -1})
			}
			d.generate(g, 200)
			one := newDriver(t, 16, 200, 2048)
			one.add(prompts(256, 10)[0], 2, sample.Params{Logprobs: -1})
			one.generate(g, 50)
			for _, r := range l.runners {
				maps.Copy(launched, r.kernels.launched)
			}
			require.NoError(t, g.Close())
		}
	}
	for _, name := range []string{"reduce_words", "reduce_blocks", "meet", "reduce_parts", "reduce_into"} {
		require.Equal(t, declared[name], launched[name], name)
	}
}
