package cpurunner

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/require"
)

var errBoom = errors.New("boom")

// sleeper is a runner that can also sleep and copy KV blocks.
type sleeper interface {
	modelrunner.Runner
	modelrunner.Sleeper
	modelrunner.KVCopier
}

// openGroup makes ranks of a checkpoint with this many KV blocks each; the test's end closes them
// and checks that the ledger is empty.
func openGroup(tb testing.TB, dir string, ranks int, o Options, hooks func(int) modelrunner.Hooks, blocks int) sleeper {
	tb.Helper()
	ckpt, err := checkpoint.Open(dir)
	require.NoError(tb, err)
	if hooks == nil {
		hooks = func(int) modelrunner.Hooks { return modelrunner.Hooks{} }
	}
	l := ledger.New(true)
	o.Ledger = l
	g, err := NewGroup(ckpt, ranks, o, hooks)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		require.NoError(tb, g.Close())
		require.Empty(tb, l.Holdings())
	})
	require.NoError(tb, g.AllocateKV(blocks))
	return g.(sleeper)
}

// sizesOf are the numbers of ranks, above one, that can share a checkpoint.
func sizesOf(tb testing.TB, dir string) (sizes []int) {
	tb.Helper()
	ckpt := openCheckpoint(tb, dir)
	defer ckpt.Close()
	for n := 2; n <= ckpt.Config.NumHeads; n++ {
		if _, err := modelrunner.Split(ckpt.Config, modelrunner.Shard{Size: n}); err == nil {
			sizes = append(sizes, n)
		}
	}
	return sizes
}

// TestGroupGoldens: several devices give what transformers gives, as one does; cut into chunks and
// in a batch, the same bits.
func TestGroupGoldens(t *testing.T) {
	for _, dir := range checkpoints(t) {
		sizes := sizesOf(t, dir)
		require.NotEmpty(t, sizes, dir)
		for _, n := range sizes {
			t.Run(fmt.Sprintf("%s/%d", filepath.Base(dir), n), func(t *testing.T) {
				g, most := readGolden(t, dir), 0.0
				r := openGroup(t, dir, n, Options{}, nil, 128)
				d, all := newDriver(t, r), newDriver(t, r)
				for i, p := range g.Prompts {
					if i < 5 {
						whole, want := d.logits(p.IDs, len(p.IDs)), g.tensor(t, fmt.Sprintf("p%d.logits", i))
						most = max(most, worst(t, whole[len(whole)-len(want):], want))
						require.True(t, slices.Equal(whole, d.logits(p.IDs, 3)), "prompt %d in chunks", i)
					}
					one := newDriver(t, r)
					s := one.add(p.IDs, greedy)
					one.run(1000, len(p.Greedy))
					require.Equal(t, p.Greedy, s.Output, "prompt %d (the smallest margin is %g)", i, p.MinMargin)
					for j, lp := range p.Logprobs {
						require.InDelta(t, lp, s.logprobs[j][0].Logprob, 1e-4)
					}
					all.add(p.IDs, greedy)
				}
				require.Less(t, most, 1e-4)
				all.run(11, len(g.Prompts[0].Greedy))
				for i, s := range all.seqs {
					require.Equal(t, g.Prompts[i].Greedy, s.Output, "prompt %d in the batch", i)
				}
			})
		}
	}
}

// TestGroupShapes: what one device gives, on checkpoints of every kind.
func TestGroupShapes(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spec  fixtures.Spec
		sizes []int
	}{
		{"as many KV heads as heads", fixtures.Spec{Heads: 4, KVHeads: 4, DType: fixtures.F32}, []int{2, 4}},
		{"one KV head, on every rank", fixtures.Spec{Heads: 4, KVHeads: 1}, []int{2, 4}},
		{"KV heads copied on some", fixtures.Spec{Heads: 8, KVHeads: 2, HeadDim: 8}, []int{2, 4, 8}},
		{
			"three ranks",
			fixtures.Spec{Hidden: 96, Heads: 6, KVHeads: 3, Intermediate: 90, DType: fixtures.F16},
			[]int{3, 6},
		},
		{"biases", fixtures.Spec{Bias: true}, []int{2, 4}},
		{
			"Qwen2's biases, tied",
			fixtures.Spec{Architecture: fixtures.Qwen2, Tied: true, DType: fixtures.F32},
			[]int{2, 4},
		},
		{"Qwen3's norms and biases", fixtures.Spec{Architecture: fixtures.Qwen3, HeadDim: 24, Bias: true}, []int{2, 4}},
		{"a window", fixtures.Spec{Architecture: fixtures.Mistral, SlidingWindow: 9}, []int{2, 4}},
		{"experts", fixtures.Spec{Architecture: fixtures.Qwen3MoE, Layers: 3}, []int{2, 4}},
		{"Gemma 3", fixtures.Spec{Architecture: fixtures.Gemma3, SlidingWindow: 9, Tied: true}, []int{2, 4}},
		{"a vocabulary that no number divides", fixtures.Spec{Vocab: 251, Tied: true}, []int{2, 4}},
		{"a matrix in each of several files", fixtures.Spec{Shards: 5, Layers: 3}, []int{2}},
	} {
		dir := fixtures.Checkpoint(t, tc.spec)
		one := newDriver(t, open(t, dir, Options{}, 32))
		prompt := make([]int32, 37)
		for i := range prompt {
			prompt[i] = int32(i*i*7+3) % 200
		}
		want, s := one.logits(prompt, 37), one.add(prompt, greedy)
		s.promptLogprobs = 2
		one.run(16, 12)
		for _, n := range tc.sizes {
			t.Run(fmt.Sprintf("%s/%d", tc.name, n), func(t *testing.T) {
				r := openGroup(t, dir, n, Options{Threads: n + 1}, nil, 32)
				d := newDriver(t, r)
				require.Less(t, worst(t, d.logits(prompt, 37), want), 1e-4)
				got := d.add(prompt, greedy)
				got.promptLogprobs = 2
				d.run(5, 12)
				require.Equal(t, s.Output, got.Output)
				for i, row := range s.prompt {
					for j := range row {
						require.InDelta(t, row[j].Logprob, got.prompt[i][j].Logprob, 1e-4)
					}
				}
			})
		}
	}
}

// TestGroupNoticesALeftOutSum: the comparisons above fail when one rank's part of one sum, or of
// the logits, is missing.
func TestGroupNoticesALeftOutSum(t *testing.T) {
	dir := "../modelrunner/testdata/tiny-llama"
	p := readGolden(t, dir).Prompts[4]
	zeros := func(w *cpu.Matrix) { w.Data = make([]byte, len(w.Data)) }
	for name, plant := range map[string]func(r *Runner){
		"nothing":             func(*Runner) {},
		"o of the last layer": func(r *Runner) { zeros(&r.layers[3].linear[checkpoint.AttentionOut].w) },
		"down of the first":   func(r *Runner) { zeros(&r.layers[0].linear[checkpoint.Down].w) },
		"its half of lm_head": func(r *Runner) { zeros(&r.outer.linear[checkpoint.Output].w) },
	} {
		t.Run(name, func(t *testing.T) {
			r := openGroup(t, dir, 2, Options{}, nil, 8)
			plant(cpusOf(r)[1])
			d := newDriver(t, r)
			s := d.add(p.IDs, greedy)
			d.run(100, len(p.Greedy))
			if name == "nothing" {
				require.Equal(t, p.Greedy, s.Output)
			} else {
				require.NotEqual(t, p.Greedy, s.Output)
			}
		})
	}
}

// TestGroupLedger: every device has its own entries, and of the weights what it uses of them.
func TestGroupLedger(t *testing.T) {
	r := openGroup(t, tiny, 2, Options{MaxModelLen: 100, MaxNumBatchedTokens: 10}, nil, 7)
	one := open(t, tiny, Options{MaxModelLen: 100, MaxNumBatchedTokens: 10}, 7)
	whole := ledger.ByOwner(one.Holdings())
	const (
		layers, d, heads, kv, inner, vocab = 4, 64, 64, 32, 128, 512
		// bytes that are shared out
		split = 4 * (layers*(2*d*heads+2*d*kv+3*d*inner) + d*vocab)
	)
	for i, c := range cpusOf(r) {
		require.Equal(t, map[string]int64{
			"weights":   whole["weights"] - split/2,
			"rope":      whole["rope"],
			"workspace": 4 * 10 * (64 + 64 + 32 + 32 + 16 + 16 + 64 + 64 + 64 + 64 + []int64{512, 256}[i]),
			"kv_cache":  whole["kv_cache"] / 2,
		}, ledger.ByOwner(c.Holdings()), "rank %d", i)
		require.Equal(t, fmt.Sprint("cpu:", i), c.Device())
	}
	require.Equal(t, one.KVBytesPerBlock()/2, r.KVBytesPerBlock())
	require.Len(t, r.Holdings(), len(cpusOf(r)[0].Holdings())+len(cpusOf(r)[1].Holdings()))

	var free, total [2]int64
	var err error
	free[0], total[0], err = one.FreeMemory()
	require.NoError(t, err)
	free[1], total[1], err = r.FreeMemory()
	require.NoError(t, err)
	require.Equal(t, total[0]/2, total[1], "the machine's memory is shared out")
	require.InDelta(t, free[0]/2, free[1], float64(free[0])/4)
}

func TestGroupIsRefused(t *testing.T) {
	l := ledger.New(false)
	_, err := NewGroup(openCheckpoint(t, tiny), 3, Options{Ledger: l}, nil)
	var e *modelrunner.SplitError
	require.ErrorAs(t, err, &e)
	require.EqualError(t, err,
		"modelrunner: 3 devices cannot share the model: num_attention_heads is 4 (possible: 1, 2 or 4)")
	require.Zero(t, l.Peak())
}

// TestGroupConstructionFails at every point on each rank, by error and by panic: nothing is left,
// and the rank is named.
func TestGroupConstructionFails(t *testing.T) {
	for _, point := range []string{"load", "weights", "rope", "workspace", "kv_cache"} {
		for bad := range 2 {
			for _, panics := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s rank=%d panic=%v", point, bad, panics), func(t *testing.T) {
					strike := func() error {
						if panics {
							panic(errBoom)
						}
						return errBoom
					}
					hooks := func(rank int) (h modelrunner.Hooks) {
						h.Allocate = func(owner string, _ int64) error {
							if owner == point && rank == bad {
								return strike()
							}
							return nil
						}
						if point == "load" && rank == bad {
							h.Load = strike
						}
						return h
					}
					l := ledger.New(false)
					r, err := NewGroup(openCheckpoint(t, tiny), 2, Options{Ledger: l}, hooks)
					if err == nil {
						before := l.Bytes()
						err = r.AllocateKV(3)
						require.Equal(t, before, l.Bytes(), "what the other rank had is given back")
						require.NoError(t, r.Close())
					}
					require.ErrorIs(t, err, errBoom)
					require.ErrorContains(t, err, fmt.Sprintf("rank %d (cpu:%d): ", bad, bad))
					require.Empty(t, l.Holdings())
				})
			}
		}
	}
}

// TestGroupReleaseFails: a rank that does not give a part back is named; the other one's is gone,
// and another Close works.
func TestGroupReleaseFails(t *testing.T) {
	stuck := true
	r := openGroup(t, tiny, 2, Options{}, func(rank int) modelrunner.Hooks {
		return modelrunner.Hooks{Release: func(owner string, _ int64) error {
			if rank == 1 && owner == "rope" && stuck {
				return errBoom
			}
			return nil
		}}
	}, 3)
	require.EqualError(t, r.Close(), "rank 1 (cpu:1): cpurunner: releasing rope (64.0 KiB): boom")
	require.Len(t, r.Holdings(), 1)
	require.Equal(t, "cpu:1", r.Holdings()[0].Device)
	stuck = false
	require.NoError(t, r.Close())
}

// TestGroupStepHooks: a rank that fails, panics or is late at any point of a step neither hangs the
// others nor spoils the next step.
func TestGroupStepHooks(t *testing.T) {
	for _, n := range []int{2, 4} {
		hook := map[string]func() error{}
		r := openGroup(t, tiny, n, Options{}, func(rank int) modelrunner.Hooks {
			pass := func(point string) func() error {
				return func() error { return modelrunner.Call(hook[fmt.Sprint(point, rank)]) }
			}
			return modelrunner.Hooks{Forward: pass("forward"), Sample: pass("sample")}
		}, 8)
		p := readGolden(t, tiny).Prompts[3]
		points := []string{"sample0"}
		for rank := range n {
			points = append(points, fmt.Sprint("forward", rank))
		}
		for _, point := range points {
			for _, panics := range []bool{false, true} {
				d := newDriver(t, r)
				d.add(p.IDs, greedy)
				b, _ := d.batch(100)
				hook[point] = func() error {
					if panics {
						panic(errBoom)
					}
					return errBoom
				}
				_, err := r.Execute(b)
				require.ErrorIs(t, err, errBoom)
				require.NotErrorIs(t, err, modelrunner.ErrAborted)
				require.ErrorContains(t, err, fmt.Sprintf("rank %c (cpu:%[1]c): ", point[len(point)-1]))
				hook[point] = func() error { time.Sleep(time.Millisecond); return nil }
				res, err := r.Execute(b)
				require.NoError(t, err)
				require.Equal(t, p.Greedy[0], res[0].Token)
				delete(hook, point)
			}
		}
		hook["sample1"] = func() error { return errors.New("only the first rank samples") }
		d := newDriver(t, r)
		d.add(p.IDs, greedy)
		d.run(100, 2)
	}
}

// TestGroupSleeps: the devices give everything back and take it again; what one rank cannot wake
// leaves the others asleep as they were.
func TestGroupSleeps(t *testing.T) {
	for _, keep := range []bool{true, false} {
		for _, kvAwake := range []bool{true, false} {
			for _, bad := range []string{"", "load0", "workspace1", "kv_cache1"} {
				t.Run(fmt.Sprintf("keep=%v kvAwake=%v %s", keep, kvAwake, bad), func(t *testing.T) {
					armed := false
					strike := func(at string) error {
						if armed && at == bad {
							return errBoom
						}
						return nil
					}
					r := openGroup(t, tiny, 2, Options{}, func(rank int) modelrunner.Hooks {
						return modelrunner.Hooks{
							Load:     func() error { return strike(fmt.Sprint("load", rank)) },
							Allocate: func(owner string, _ int64) error { return strike(fmt.Sprint(owner, rank)) },
						}
					}, 8)
					l := cpusOf(r)[0].options.Ledger
					before, want := ledger.ByDevice(l.Holdings()), answer(t, r)
					require.NoError(t, r.Sleep(keep))
					require.Empty(t, r.Holdings())
					if kept := ledger.ByDevice(l.Holdings()); keep {
						require.Equal(t, []string{"host"}, slices.Collect(maps.Keys(kept)))
					} else {
						require.Empty(t, kept)
					}
					if kvAwake {
						require.NoError(t, r.AllocateKV(8))
					}
					asleep := ledger.ByDevice(l.Holdings())
					armed = true
					if err := r.WakeWeights(); bad == "load0" || bad == "workspace1" {
						require.ErrorIs(t, err, errBoom)
						require.Equal(t, asleep, ledger.ByDevice(l.Holdings()))
						armed = false
						err = r.WakeWeights()
						require.NoError(t, err)
					} else {
						require.NoError(t, err)
					}
					if !kvAwake {
						half := ledger.ByDevice(l.Holdings())
						if err := r.AllocateKV(8); bad == "kv_cache1" {
							require.ErrorIs(t, err, errBoom)
							require.Equal(t, half, ledger.ByDevice(l.Holdings()))
							armed = false
							require.NoError(t, r.AllocateKV(8))
						} else {
							require.NoError(t, err)
						}
					}
					require.Equal(t, before, ledger.ByDevice(l.Holdings()))
					require.Equal(t, want, answer(t, r))
				})
			}
		}
	}
}

// TestGroupMovesKV: a block goes to the host and back on all ranks.
func TestGroupMovesKV(t *testing.T) {
	r := openGroup(t, tiny, 2, Options{}, nil, 8)
	want := answer(t, r)
	d := newDriver(t, r)
	s := d.add([]int32{206, 5, 7, 9}, sample.Params{TopP: 1, TypicalP: 1, RepetitionPenalty: 1, Logprobs: -1})
	d.run(64, 1)
	data := make([]byte, 2*r.KVBytesPerBlock())
	from, to := s.blocks[0], d.free[len(d.free)-1]
	require.NoError(t, r.ReadKV(from, data))
	require.NoError(t, r.WriteKV(to, data))
	require.NoError(t, r.WriteKV(from, make([]byte, len(data))))
	s.blocks[0] = to
	d.run(64, 8)
	require.Equal(t, want, s.Output)
	for rank := range 2 { // a rank whose part is not copied is noticed
		part := slices.Clone(data)
		clear(part[rank*len(data)/2 : (rank+1)*len(data)/2])
		require.NoError(t, r.WriteKV(to, part))
		s.Output, s.computed = s.Output[:1], 4
		d.run(64, 8)
		require.NotEqual(t, want, s.Output)
	}
	require.ErrorContains(t, r.ReadKV(8, data), "rank 0 (cpu:0): cpurunner: copy of KV block 8")
}
