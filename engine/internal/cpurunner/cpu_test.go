package cpurunner

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
)

const tiny = "../modelrunner/testdata/tiny-llama"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openCheckpoint(tb testing.TB, dir string) *checkpoint.Checkpoint {
	tb.Helper()
	ckpt, err := checkpoint.Open(dir)
	require.NoError(tb, err)
	return ckpt
}

// TestGoldensNotice plants an error of the forward pass in each checkpoint's configuration: the
// reference logits must not agree any more.
func TestGoldensNotice(t *testing.T) {
	for _, c := range []struct {
		dir, fault string
		plant      func(*checkpoint.Config)
	}{
		{"mistral-window", "window one too long", func(c *checkpoint.Config) { c.SlidingWindow++ }},
		{"mistral-window", "window one too short", func(c *checkpoint.Config) { c.SlidingWindow-- }},
		{"mistral-window", "no window", func(c *checkpoint.Config) { c.SlidingWindow = 0 }},
		{"qwen2-sharded-window", "no window in the last layer", func(c *checkpoint.Config) { c.SlidingWindow = 0 }},
		{"qwen2-bias-bf16", "no bias", func(c *checkpoint.Config) { c.QKVBias = false }},
		{"qwen2-bias-bf16", "another theta", func(c *checkpoint.Config) { c.Rope.Theta = 1e4 }},
		{"qwen3-tied", "no q and k norm", func(c *checkpoint.Config) { c.QKNorm = false }},
		{"llama3-rope-f16", "no rope scaling", func(c *checkpoint.Config) { c.Rope.Type = "default" }},
		{"llama3-rope-f16", "no bias of o_proj", func(c *checkpoint.Config) { c.OBias = false }},
		{"llama3-rope-f16", "no bias of the MLP", func(c *checkpoint.Config) { c.MLPBias = false }},
		{"gemma3-window", "another activation", func(c *checkpoint.Config) { c.Activation = checkpoint.SiLU }},
		{"gemma3-window", "no norms of results", func(c *checkpoint.Config) { c.PostNorms = false }},
		{"gemma3-window", "norms without the 1", func(c *checkpoint.Config) { c.NormOffset = 0 }},
		{"gemma3-window", "queries by head_dim", func(c *checkpoint.Config) { c.AttentionScale = 1 / math.Sqrt(12) }},
		{"gemma3-window", "embeddings as they are", func(c *checkpoint.Config) { c.EmbeddingScale = 1 }},
		{"gemma3-window", "one rope for all", func(c *checkpoint.Config) { c.LocalRope = nil }},
		{"gemma3-window", "window one too long", func(c *checkpoint.Config) { c.SlidingWindow++ }},
		{"gemma3-rope-bf16", "no rope scaling", func(c *checkpoint.Config) { c.Rope.Type = "default" }},
		{"gemma3-rope-bf16", "one rope for all", func(c *checkpoint.Config) { *c.LocalRope = c.Rope }},
		{"qwen3-moe", "an expert less a token", func(c *checkpoint.Config) { c.ExpertsPerToken-- }},
		{"qwen3-moe", "weights of experts as they are", func(c *checkpoint.Config) { c.NormExperts = false }},
		{"qwen3-moe-raw", "weights of experts scaled", func(c *checkpoint.Config) { c.NormExperts = true }},
		{"tiny-llama", "another epsilon", func(c *checkpoint.Config) { c.RMSNormEps = 1e-3 }},
	} {
		t.Run(c.dir+"/"+c.fault, func(t *testing.T) {
			dir := filepath.Join("../modelrunner/testdata", c.dir)
			g, ckpt := readGolden(t, dir), openCheckpoint(t, dir)
			c.plant(&ckpt.Config)
			r, err := New(ckpt, Options{})
			require.NoError(t, err)
			defer r.Close()
			require.NoError(t, r.AllocateKV(32))
			got := newDriver(t, r).logits(g.Prompts[4].IDs, 100)
			require.Greater(t, worst(t, got, g.tensor(t, "p4.logits")), 1e-3)
		})
	}
}

// TestTensorsAreChecked: each tensor of each architecture, missing or misshapen, is named before
// any memory is taken.
func TestTensorsAreChecked(t *testing.T) {
	for _, dir := range checkpoints(t) {
		if dir == tiny {
			continue // larger, and nothing that llama3-rope-f16 has not
		}
		t.Run(filepath.Base(dir), func(t *testing.T) {
			full := openCheckpoint(t, dir)
			defer full.Close()
			for _, name := range full.Names() {
				for _, fault := range []string{"missing", "misshapen", "I32"} {
					if fault == "I32" && name != "model.norm.weight" && name != "model.embed_tokens.weight" {
						continue // one vector and one matrix
					}
					var tensors []checkpoint.Tensor
					for _, n := range full.Names() {
						x, err := full.Tensor(n)
						require.NoError(t, err)
						switch {
						case n != name:
						case fault == "missing":
							continue
						case fault == "misshapen":
							x.Shape = append([]int{1}, x.Shape...)
						case fault == "I32":
							x.DType, x.Data = checkpoint.DType("I32"), make([]byte, 4*len(x.Data)/x.DType.Size())
						}
						tensors = append(tensors, x)
					}
					l := ledger.New(false)
					_, err := New(openCheckpoint(t, write(t, dir, tensors)), Options{Ledger: l})
					var e *checkpoint.Error
					require.ErrorAs(t, err, &e, "%s %s", name, fault)
					require.Equal(t, name, e.Tensor)
					require.Empty(t, l.Holdings())
					require.Less(t, l.Peak(), int64(1<<20), "only the mapped file was entered")
				}
			}
		})
	}
}

// write makes a checkpoint with the configuration of dir and other tensors.
func write(t *testing.T, dir string, tensors []checkpoint.Tensor) string {
	t.Helper()
	to := t.TempDir()
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(to, "config.json"), config, 0o600))
	require.NoError(t, checkpoint.WriteSafetensors(filepath.Join(to, "model.safetensors"), tensors, nil))
	return to
}

func TestOwners(t *testing.T) {
	l := ledger.New(true)
	r, err := New(openCheckpoint(t, tiny), Options{Ledger: l, MaxModelLen: 100, MaxNumBatchedTokens: 10})
	require.NoError(t, err)
	require.NoError(t, r.AllocateKV(7))
	info, err := os.Stat(tiny + "/model.safetensors")
	require.NoError(t, err)
	require.Equal(t, map[string]int64{
		"weights":   info.Size() + 4*64*9, // nine norms
		"rope":      4 * 2 * 100 * 8,
		"workspace": 4 * 10 * (64 + 64 + 64 + 64 + 32 + 32 + 128 + 128 + 512),
		"kv_cache":  7 * r.KVBytesPerBlock(),
	}, ledger.ByOwner(r.Holdings()))
	require.EqualValues(t, 4*2*4*16*2*16, r.KVBytesPerBlock(),
		"4 bytes, K and V, 4 layers, 16 tokens, 2 heads, head_dim 16")
	kinds := map[string]int{}
	for _, h := range r.Holdings() {
		kinds[h.Kind]++
		require.Equal(t, "cpu:0", h.Device)
		require.NotZero(t, h.Addr)
		require.Contains(t, fmt.Sprint(h.Stack), "cpurunner")
	}
	require.Equal(t, map[string]int{"file": 1, "mapped": 4}, kinds)

	require.ErrorContains(t, r.AllocateKV(7), "has its 7 KV blocks already")
	require.NoError(t, r.Close())
	require.Empty(t, r.Holdings())
	require.NoError(t, r.Close(), "a second Close has nothing to do")
	_, err = r.Execute(&modelrunner.Batch{})
	require.ErrorContains(t, err, "no KV cache")
}

// TestConstructionFails at every allocation and hook, by error and by panic: nothing is left.
func TestConstructionFails(t *testing.T) {
	boom := errors.New("boom")
	for _, point := range []string{"load", "weights", "rope", "workspace", "kv_cache"} {
		for _, panics := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s panic=%v", point, panics), func(t *testing.T) {
				strike := func() error {
					if panics {
						panic(boom)
					}
					return boom
				}
				o := Options{Ledger: ledger.New(false)}
				o.Hooks.Allocate = func(owner string, _ int64) error {
					if owner == point {
						return strike()
					}
					return nil
				}
				if point == "load" {
					o.Hooks.Load = strike
				}
				var r *Runner
				var err error
				func() {
					defer func() {
						if v := recover(); v != nil {
							err, _ = v.(error)
						}
					}()
					if r, err = New(openCheckpoint(t, tiny), o); err == nil {
						err = r.AllocateKV(3)
					}
				}()
				require.ErrorIs(t, err, boom)
				if r != nil {
					require.Equal(t, "kv_cache", point)
					require.NoError(t, r.Close())
				}
				require.Empty(t, o.Ledger.Holdings())
			})
		}
	}
}

func TestOutOfMemory(t *testing.T) {
	o := Options{Ledger: ledger.New(false), Capacity: 1 << 20, MaxNumBatchedTokens: 64}
	r, err := New(openCheckpoint(t, tiny), o)
	require.NoError(t, err)
	defer r.Close()
	var oom *cpu.OutOfMemory
	require.ErrorAs(t, r.AllocateKV(1000), &oom)
	require.Equal(t, "kv_cache", oom.Owner)
	require.NoError(t, r.AllocateKV(10), "a refused KV cache can be asked for again, smaller")
	require.Error(t, r.AllocateKV(0))
}

// TestReleaseFails: one part that will not go is reported by name and stays in the ledger;
// everything else is released; Close can be repeated.
func TestReleaseFails(t *testing.T) {
	o, stuck := Options{Ledger: ledger.New(true)}, true
	o.Hooks.Release = func(owner string, _ int64) error {
		if owner == "rope" && stuck {
			return errors.New("injected")
		}
		return nil
	}
	r, err := New(openCheckpoint(t, tiny), o)
	require.NoError(t, err)
	require.NoError(t, r.AllocateKV(3))
	require.EqualError(t, r.Close(), "cpurunner: releasing rope (64.0 KiB): injected")
	require.Len(t, r.Holdings(), 1)
	require.Equal(t, "rope", r.Holdings()[0].Owner)
	stuck = false
	require.NoError(t, r.Close())
	require.Empty(t, r.Holdings())
}

// TestReleasePanics: a panic in one release is an error like another.
func TestReleasePanics(t *testing.T) {
	o := Options{Ledger: ledger.New(false)}
	o.Hooks.Release = func(owner string, _ int64) error {
		if owner == "workspace" {
			panic(errors.New("injected"))
		}
		return nil
	}
	r, err := New(openCheckpoint(t, tiny), o)
	require.NoError(t, err)
	require.Regexp(t, `^cpurunner: releasing workspace \(.* MiB\): panic: injected$`, r.Close())
	require.Len(t, r.Holdings(), 1)
	r.options.Hooks.Release = nil
	require.NoError(t, r.Close())
	require.Empty(t, r.Holdings())
}

// TestStepHooks: an error or panic in a step leaves a runner that works on and that can be closed.
func TestStepHooks(t *testing.T) {
	var hook func() error
	passes := map[string]int{}
	o := Options{Hooks: modelrunner.Hooks{
		Forward: func() error { passes["forward"]++; return hook() },
		Sample:  func() error { passes["sample"]++; return hook() },
	}}
	r := open(t, tiny, o, 8)
	prompt := readGolden(t, tiny).Prompts[3].IDs
	r.options.Hooks = o.Hooks
	hook = func() error { return nil }
	d := newDriver(t, r)
	s := d.add(prompt, greedy)
	d.run(6, 1)
	require.Equal(t, map[string]int{"forward": 3, "sample": 1}, passes,
		"16 tokens in chunks of 6: only the last one samples")

	boom := errors.New("boom")
	again := newDriver(t, r)
	again.add(prompt, greedy)
	b, _ := again.batch(100)
	hook = func() error { return boom }
	_, err := r.Execute(b)
	require.ErrorIs(t, err, boom)
	hook = func() error { panic(boom) }
	require.PanicsWithValue(t, boom, func() { _, _ = r.Execute(b) })
	hook = func() error { return nil }
	res, err := r.Execute(b)
	require.NoError(t, err)
	require.Equal(t, s.Output[0], res[0].Token)
}

// TestOneSequenceFails: a sequence whose parameters mask every token fails alone.
func TestOneSequenceFails(t *testing.T) {
	g := readGolden(t, tiny)
	d := newDriver(t, open(t, tiny, Options{}, 32))
	for i, p := range g.Prompts[:3] {
		params := greedy
		if i == 1 {
			params.Allowed = []int32{}
		}
		d.add(p.IDs, params)
	}
	b, _ := d.batch(100)
	res, err := d.r.Execute(b)
	require.NoError(t, err)
	require.ErrorIs(t, res[1].Err, sample.ErrNoToken)
	require.ErrorContains(t, res[1].Err, "allowed_token_ids masked 512")
	require.NoError(t, errors.Join(res[0].Err, res[2].Err))
	require.Equal(t, g.Prompts[0].Greedy[0], res[0].Token)
	require.Equal(t, g.Prompts[2].Greedy[0], res[2].Token)
}

// TestSeedsIgnoreBatchMates: a seeded request draws the same tokens alone, among others, and
// whatever the chunks of its prompt.
func TestSeedsIgnoreBatchMates(t *testing.T) {
	g := readGolden(t, tiny)
	r := open(t, tiny, Options{}, 64)
	params := sample.Params{Temperature: 1, TopP: 0.95, Seed: 42, Logprobs: -1}
	alone := newDriver(t, r)
	want := alone.add(g.Prompts[5].IDs, params)
	alone.run(100, 20)
	for chunk := range 5 {
		d := newDriver(t, r)
		for i := range chunk {
			d.add(g.Prompts[i].IDs, sample.Params{Temperature: 0.7, Seed: uint64(i), Logprobs: -1})
		}
		got := d.add(g.Prompts[5].IDs, params)
		d.run(chunk*4+1, 20)
		require.Equal(t, want.Output, got.Output)
	}
	other := newDriver(t, r)
	params.Seed++
	s := other.add(g.Prompts[5].IDs, params)
	other.run(100, 20)
	require.NotEqual(t, want.Output, s.Output)
}

func TestBadBatches(t *testing.T) {
	r := open(t, tiny, Options{MaxNumBatchedTokens: 20, MaxModelLen: 40}, 4)
	good := func() *modelrunner.Batch {
		return &modelrunner.Batch{
			Tokens: []int32{1, 2, 3}, Positions: []int32{0, 1, 16}, Slots: []int32{0, 1, 32},
			Seqs: []modelrunner.Seq{
				{Start: 0, Len: 2, Context: 2, Blocks: []int32{0}},
				{Start: 2, Len: 1, Context: 17, Blocks: []int32{1, 2}},
			},
		}
	}
	_, err := r.Execute(good())
	require.NoError(t, err)
	for want, spoil := range map[string]func(b *modelrunner.Batch){
		"token 512 in row 1, the vocabulary has 512": func(b *modelrunner.Batch) {
			b.Tokens[1] = 512
		},
		"token -1 in row 0": func(b *modelrunner.Batch) {
			b.Tokens[0] = -1
		},
		"position 40 in row 2, the longest sequence is 40 (MaxModelLen)": func(b *modelrunner.Batch) {
			b.Positions[2] = 40
		},
		"slot 64 in row 1, the KV cache has 64": func(b *modelrunner.Batch) {
			b.Slots[1] = 64
		},
		"slot -1 in row 1": func(b *modelrunner.Batch) {
			b.Slots[1] = -1
		},
		"3 tokens, 2 positions, 3 slots": func(b *modelrunner.Batch) {
			b.Positions = b.Positions[:2]
		},
		"sequence 1: block 4, the KV cache has 4": func(b *modelrunner.Batch) {
			b.Seqs[1].Blocks[1] = 4
		},
		"sequence 1: last position 16, context 17, 1 blocks of 16, 0 prompt targets": func(b *modelrunner.Batch) {
			b.Seqs[1].Blocks = b.Seqs[1].Blocks[:1]
		},
		"sequence 1: last position 16, context 18, 2 blocks": func(b *modelrunner.Batch) {
			b.Seqs[1].Context++
		},
		"sequence 0: last position 1, context 2, 1 blocks of 16, 3 prompt targets in 2": func(b *modelrunner.Batch) {
			b.Seqs[0].Targets = []int32{1, 2, 3}
		},
		"sequence 1 has rows [1, 2) of 3, want them to begin at 2": func(b *modelrunner.Batch) {
			b.Seqs[1].Start = 1
		},
		"3 tokens, the sequences have 2": func(b *modelrunner.Batch) {
			b.Seqs = b.Seqs[:1]
		},
		"21 tokens, room for 20 (MaxNumBatchedTokens)": func(b *modelrunner.Batch) {
			b.Tokens = make([]int32, 21)
		},
	} {
		b := good()
		spoil(b)
		_, err := r.Execute(b)
		require.ErrorContains(t, err, "cpurunner: bad batch: "+want)
	}
}

// TestThreadsAgree: the numbers do not depend on the threads.
func TestThreadsAgree(t *testing.T) {
	ids := readGolden(t, tiny).Prompts[6].IDs
	one := newDriver(t, open(t, tiny, Options{Threads: 1}, 8)).logits(ids, 100)
	three := newDriver(t, open(t, tiny, Options{Threads: 3}, 8)).logits(ids, 100)
	require.Equal(t, one, three)
}

// TestMisalignedFile: a writer that does not align its data gives the same numbers.
func TestMisalignedFile(t *testing.T) {
	dir := "../modelrunner/testdata/qwen3-tied"
	data, err := os.ReadFile(dir + "/model.safetensors")
	require.NoError(t, err)
	header := data[8 : 8+int(data[0])+int(data[1])<<8]
	require.True(t, json.Valid(header))
	odd := append([]byte{byte(len(header) + 1), byte((len(header) + 1) >> 8), 0, 0, 0, 0, 0, 0}, header...)
	odd = append(append(odd, ' '), data[8+len(header):]...)
	to := write(t, dir, nil)
	require.NoError(t, os.WriteFile(to+"/model.safetensors", odd, 0o600))
	ids := readGolden(t, dir).Prompts[3].IDs
	want := newDriver(t, open(t, dir, Options{}, 8)).logits(ids, 100)
	require.Equal(t, want, newDriver(t, open(t, to, Options{}, 8)).logits(ids, 100))
}
