package cudarunner

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
)

// gpus are this many GPUs; with fewer the test is skipped, and says how many there are.
func gpus(tb testing.TB, n int) []cuda.Device {
	tb.Helper()
	all, err := gpu(tb).Driver().Devices()
	require.NoError(tb, err)
	if len(all) < n {
		tb.Skipf("the test needs %d GPUs, there are %d", n, len(all))
	}
	return all[:n]
}

// sharedGPU is the first GPU, for two ranks, in a process whose driver loads kernels with their
// module: one that it loads when it is first launched would wait for those that run, which wait for
// it. Elsewhere the test is run again in such a process, and ok is false.
func sharedGPU(t *testing.T) (d cuda.Device, ok bool) {
	t.Helper()
	d = gpu(t)
	if os.Getenv("CUDA_MODULE_LOADING") == "EAGER" {
		return d, true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), "CUDA_MODULE_LOADING=EAGER")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "with CUDA_MODULE_LOADING=EAGER:\n%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name(), "it was not run")
	return d, false
}

// openGroupGPU makes a group; the test's end closes it and checks that its ledger is empty.
func openGroupGPU(tb testing.TB, devices []cuda.Device, dir string, o Options, blocks int) modelrunner.Runner {
	tb.Helper()
	o.Ledger, o.Stacks = ledger.New(true), true
	g, err := openGroup(tb, devices, dir, o)
	if o.AllReduce == NCCL && errors.Is(err, ErrNoNCCL) {
		tb.Skipf("%v", err)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() {
		require.NoError(tb, g.Close())
		require.Empty(tb, o.Ledger.Holdings())
	})
	require.NoError(tb, g.AllocateKV(blocks))
	return g
}

// TestRanksOnOneGPU: what two GPUs do, on one, which both ranks use; so that it is tested where
// there is one only.
func TestRanksOnOneGPU(t *testing.T) {
	if d, ok := sharedGPU(t); ok {
		againstOne(t, []cuda.Device{d, d}, Options{}, shardable(t, 2)[:6])
	}
}

// TestTwoGPUs: the same tokens and, but for the order of sums, the same log-probabilities as on one
// GPU.
func TestTwoGPUs(t *testing.T) {
	two := gpus(t, 2)
	for _, c := range []struct {
		name string
		Options
	}{
		{"own", Options{AllReduce: Own}},
		{"own, no graphs", Options{AllReduce: Own, NoGraphs: true}},
		{"NCCL", Options{AllReduce: NCCL}},
		{"NCCL, no graphs", Options{AllReduce: NCCL, NoGraphs: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			models := shardable(t, 2)
			if c.AllReduce == NCCL || c.NoGraphs { // NCCL takes half a second to open
				models = models[len(models)-4:]
			}
			againstOne(t, two, c.Options, models)
		})
	}
}

type groupModel struct{ name, dir string }

// shardable are the models of shapes, others whose split is odd, and the reference checkpoints:
// those that n devices can share.
func shardable(t *testing.T, n int) []groupModel {
	t.Helper()
	odd := []shape{
		{"one KV head on both", fixtures.Spec{Heads: 8, KVHeads: 1, HeadDim: 16, Bias: true}, 0},
		{"tied, an odd vocabulary", fixtures.Spec{Heads: 4, KVHeads: 2, Vocab: 1001, Tied: true}, 0},
		{"tied, shares begin on a panel", fixtures.Spec{
			Heads: 4, KVHeads: 2, Vocab: 512, Tied: true,
			DType: fixtures.F16,
		}, 0},
		{"shares of odd sizes", fixtures.Spec{
			Hidden: 38, Heads: 2, KVHeads: 2, HeadDim: 10, Intermediate: 50,
			Vocab: 301, Bias: true,
		}, 0},
		{"rows of several messages on one device", fixtures.Spec{
			Hidden: 8448, Heads: 4, KVHeads: 2, HeadDim: 16,
			Intermediate: 64, Layers: 1,
		}, 0},
	}
	var models []groupModel
	for _, s := range append(odd, shapes()...) {
		models = append(models, groupModel{s.why, fixtures.Checkpoint(t, s.Spec)})
	}
	for _, dir := range goldens(t) {
		models = append(models, groupModel{filepath.Base(dir), dir})
	}
	models = append(models, groupModel{"bundled", fixtures.Bundled()})
	var can []groupModel
	for _, m := range models {
		ckpt, err := checkpoint.Open(m.dir)
		require.NoError(t, err)
		if _, err := modelrunner.Split(ckpt.Config, modelrunner.Shard{Size: n}); err == nil {
			can = append(can, m)
		}
		require.NoError(t, ckpt.Close())
	}
	require.Greater(t, len(can), 12)
	return can
}

func againstOne(t *testing.T, devices []cuda.Device, o Options, models []groupModel) {
	const blocks, tolerance = 128, 1e-3
	for _, m := range models {
		t.Run(m.name, func(t *testing.T) {
			one := openGPU(t, m.dir, Options{}, blocks)
			g := openGroupGPU(t, devices, m.dir, o, blocks)
			vocab := one.VocabSize
			all := sample.Params{Logprobs: vocab}
			worst := 0.0
			for _, chunk := range []int{1000, 7} {
				d := newDriver(t, 16, blocks, 2048)
				for i, p := range prompts(vocab, 1, 5, 40, 130, 100) {
					if s := d.add(p, 6, all); i == 3 { // more rows than get their logits together
						s.promptLogprobs = vocab
					}
				}
				worst = max(worst, d.compare(one, g, chunk))
			}
			d := newDriver(t, 16, blocks, 2048)
			d.add(prompts(vocab, 70)[0], 12, all)
			worst = max(worst, d.compare(one, g, 1000))
			t.Logf("largest difference %.2g", worst)
			require.Less(t, worst, tolerance)
			sameTokens(t, one, g, 16, blocks, vocab)
		})
	}
}

// TestTwoGPUsSameBits: the own kernels, in words and in blocks, and NCCL give the same bits.
func TestTwoGPUsSameBits(t *testing.T) {
	two := gpus(t, 2)
	dir := fixtures.Checkpoint(t, fixtures.Spec{Heads: 4, KVHeads: 2, Bias: true})
	const blocks = 128
	var l *link
	own := openGroupGPU(t, two, dir, Options{AllReduce: Own, NoGraphs: true, linked: func(x *link) { l = x }}, blocks)
	nccl := openGroupGPU(t, two, dir, Options{AllReduce: NCCL}, blocks)
	same := func(what string) {
		for _, chunk := range []int{1000, 9} {
			d := newDriver(t, 16, blocks, 2048)
			for _, p := range prompts(256, 1, 40, 130, 64) {
				d.add(p, 10, sample.Params{Logprobs: 256})
			}
			require.Zero(t, d.compare(own, nccl, chunk), what)
		}
	}
	same("words")
	for _, r := range l.runners {
		r.group.mailbox.fast = 0
	}
	same("blocks")
}

// failing are hooks that make one rank's step fail once, when it is armed.
type failing struct {
	rank  int
	armed atomic.Bool
}

var errPlanted = errors.New("planted")

func (f *failing) hooks(rank int) modelrunner.Hooks {
	return modelrunner.Hooks{Forward: func() error {
		if rank == f.rank && f.armed.Swap(false) {
			return errPlanted
		}
		return nil
	}}
}

// TestRankFailsOnOneGPU and TestTwoGPUsRankFails: a rank whose step fails wakes the one that waits
// for it on the device, at once; the group goes on.
func TestRankFailsOnOneGPU(t *testing.T) {
	if d, ok := sharedGPU(t); ok {
		rankFails(t, []cuda.Device{d, d}, Own)
	}
}

func TestTwoGPUsRankFails(t *testing.T) { rankFails(t, gpus(t, 2), Own) }

func TestTwoGPUsRankFailsNCCL(t *testing.T) { rankFails(t, gpus(t, 2), NCCL) }

func rankFails(t *testing.T, devices []cuda.Device, how AllReduce) {
	for rank := range 2 {
		f := &failing{rank: rank}
		l := ledger.New(true)
		ckpt, err := checkpoint.Open(fixtures.Bundled())
		require.NoError(t, err)
		g, err := NewGroup(ckpt, devices, Options{Ledger: l, AllReduce: how}, f.hooks)
		if errors.Is(err, ErrNoNCCL) {
			t.Skipf("%v", err)
		}
		require.NoError(t, err)
		require.NoError(t, stepsOf(g))
		f.armed.Store(true)
		began, done := time.Now(), make(chan error)
		go func() {
			_, err := g.Execute(oneStep())
			done <- err
		}()
		var took time.Duration
		select {
		case err = <-done:
			took = time.Since(began)
		case <-time.After(20 * time.Second):
			t.Fatalf("the step with a failing rank %d hangs", rank)
		}
		require.ErrorIs(t, err, errPlanted)
		require.ErrorContains(t, err, fmt.Sprintf("rank %d (cuda:%s): planted", rank, devices[rank].UUID))
		require.NotErrorIs(t, err, modelrunner.ErrAborted, "who waited is not named")
		t.Logf("rank %d failed: the step ended after %s", rank, took)
		_, err = g.Execute(oneStep())
		if how == NCCL {
			require.ErrorIs(t, err, modelrunner.ErrAborted, "what was aborted stays so")
		} else {
			require.NoError(t, err, "mended")
		}
		require.NoError(t, g.Close())
		require.Empty(t, l.Holdings())
		require.Less(t, took, patience/2, "the other rank waited to the end; last: what is not closed spoils other tests")
	}
}

func oneStep() *modelrunner.Batch {
	b := batchOf(1, 5, 1)
	b.Tokens[0], b.Slots[0], b.Seqs[0].Blocks[0] = 7, 5, 0
	return b
}

// TestRankMissingOnOneGPU and TestTwoGPUsRankMissing: a rank that never comes is an error that
// names it, and no hang; nothing is left.
func TestRankMissingOnOneGPU(t *testing.T) {
	if d, ok := sharedGPU(t); ok {
		rankMissing(t, []cuda.Device{d, d})
	}
}

func TestTwoGPUsRankMissing(t *testing.T) { rankMissing(t, gpus(t, 2)) }

func rankMissing(t *testing.T, devices []cuda.Device) {
	var l *link
	o := Options{Ledger: ledger.New(true), Patience: 300 * time.Millisecond, linked: func(x *link) { l = x }}
	g, err := openGroup(t, devices, fixtures.Bundled(), o)
	require.NoError(t, err)
	require.NoError(t, stepsOf(g))
	alone := &rank{l.runners[0]}
	began := time.Now()
	_, err = alone.Execute(oneStep())
	var waited *WaitError
	require.ErrorAs(t, err, &waited)
	require.Equal(t, 1, waited.Rank)
	t.Logf("after %s: %v", time.Since(began), err)
	require.Less(t, time.Since(began), patience/2, "the default's patience, not the option's")
	_, err = g.Execute(oneStep())
	require.NoError(t, err, "mended")
	require.NoError(t, g.Close())
	require.Empty(t, o.Ledger.Holdings())
}

// TestTwoGPUsLives: 20 groups one after the other leave both devices' free memory as it was, NCCL's
// included. A context that another test has left would keep what libraries load into it.
func TestTwoGPUsLives(t *testing.T) {
	two := gpus(t, 2)
	free := func() (all [2]int64) {
		for i, d := range two {
			w, err := cuda.NewWorker(d, cuda.Config{})
			require.NoError(t, err)
			require.NoError(t, w.Do(func() (err error) {
				all[i], _, err = w.MemInfo()
				return err
			}))
			require.NoError(t, w.Close(t.Context()))
		}
		return all
	}
	var first [2]int64
	for i := range 20 {
		o := Options{Ledger: ledger.New(false)}
		if i%5 == 4 {
			o.AllReduce = NCCL
		}
		g, err := openGroup(t, two, fixtures.Bundled(), o)
		if errors.Is(err, ErrNoNCCL) {
			t.Logf("%v", err)
			continue
		}
		require.NoError(t, err)
		if i == 4 {
			t.Logf("NCCL holds %s on both", ledger.FormatBytes(ledger.ByOwner(g.Holdings())["nccl"]))
		}
		require.NoError(t, stepsOf(g))
		require.NoError(t, g.Close())
		require.Empty(t, o.Ledger.Holdings())
		now := free()
		if i == 0 {
			first = now
		}
		require.Equal(t, first, now, "free memory after life %d", i)
	}
	t.Logf("free after each of 20 lives: %v bytes", first)
}
