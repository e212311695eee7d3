package cudarunner

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/cpurunner"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
)

// gpu is the first GPU; without one the test is skipped, and says why.
func gpu(tb testing.TB) cuda.Device {
	tb.Helper()
	d, err := cuda.Open()
	if err != nil {
		tb.Skipf("no GPU: %v", err)
	}
	v, err := d.Device("0")
	if err != nil {
		tb.Skipf("no GPU: %v", err)
	}
	if v.Major < 8 {
		tb.Skipf("the kernels need compute capability 8.0, %s has %d.%d", v, v.Major, v.Minor)
	}
	return v
}

// openGPU makes a runner; the test's end closes it and checks that its ledger is empty. With
// ENGINETEST_PTX set, the driver compiles its kernels.
func openGPU(tb testing.TB, dir string, o Options, blocks int) *Runner {
	tb.Helper()
	o.Device, o.PTX = gpu(tb), o.PTX || os.Getenv("ENGINETEST_PTX") != ""
	ckpt, err := checkpoint.Open(dir)
	require.NoError(tb, err)
	o.Ledger, o.Stacks = ledger.New(true), true
	r, err := New(ckpt, o)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		require.NoError(tb, r.Close())
		require.Empty(tb, o.Ledger.Holdings())
	})
	require.NoError(tb, r.AllocateKV(blocks))
	return r
}

func openCPU(tb testing.TB, dir string, o cpurunner.Options, blocks int) modelrunner.Runner {
	tb.Helper()
	ckpt, err := checkpoint.Open(dir)
	require.NoError(tb, err)
	r, err := cpurunner.New(ckpt, o)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, r.Close()) })
	require.NoError(tb, r.AllocateKV(blocks))
	return r
}

type shape struct {
	why string
	fixtures.Spec
	tolerance float64
}

// shapes are odd in one way each.
func shapes() []shape {
	const exact = 1e-3 // float32 sums in another order, logits of about 10
	return []shape{
		{"the default", fixtures.Spec{DType: fixtures.F32}, exact},
		{"bf16", fixtures.Spec{}, exact},
		{"f16", fixtures.Spec{DType: fixtures.F16}, exact},
		{"a vocabulary that is a multiple of nothing", fixtures.Spec{Vocab: 1009}, exact},
		{"head size 96, 7 query heads a KV head", fixtures.Spec{
			Hidden: 136, Heads: 7, KVHeads: 1, HeadDim: 96,
			Intermediate: 200,
		}, exact},
		{"head size 80, 5 query heads a KV head", fixtures.Spec{
			Hidden: 100, Heads: 10, KVHeads: 2, HeadDim: 80,
			Intermediate: 140,
		}, exact},
		{
			"head size 128, 8 query heads a KV head",
			fixtures.Spec{Hidden: 256, Heads: 8, KVHeads: 1, HeadDim: 128},
			exact,
		},
		{"head size 64, 3 query heads a KV head", fixtures.Spec{Hidden: 96, Heads: 6, KVHeads: 2, HeadDim: 64}, exact},
		{"head size 256", fixtures.Spec{Hidden: 64, Heads: 2, KVHeads: 1, HeadDim: 256}, exact},
		{"head size 2, every size odd", fixtures.Spec{
			Hidden: 37, Heads: 3, KVHeads: 3, HeadDim: 2, Intermediate: 51,
			Vocab: 301,
		}, exact},
		{"head size 10, f32, every size odd", fixtures.Spec{
			Hidden: 37, Heads: 3, KVHeads: 1, HeadDim: 10,
			Intermediate: 51, Vocab: 301, DType: fixtures.F32,
		}, exact},
		{"biases everywhere, f16", fixtures.Spec{
			Hidden: 72, Heads: 4, KVHeads: 2, HeadDim: 18, Intermediate: 90,
			Bias: true, DType: fixtures.F16,
		}, exact},
		{"biases everywhere, tied", fixtures.Spec{
			Hidden: 72, Heads: 4, KVHeads: 4, HeadDim: 18, Intermediate: 90,
			Bias: true, Tied: true,
		}, exact},
		{"a window of 5", fixtures.Spec{Architecture: fixtures.Mistral, SlidingWindow: 5}, exact},
		{"Qwen2, window", fixtures.Spec{Architecture: fixtures.Qwen2, SlidingWindow: 33, DType: fixtures.F32}, exact},
		{
			"Qwen3: norms of q and k, biases",
			fixtures.Spec{Architecture: fixtures.Qwen3, Bias: true, HeadDim: 24},
			exact,
		},
		{"llama3's rope", fixtures.Spec{RopeScaling: fixtures.RopeScaling{
			Factor: 8, LowFreqFactor: 1,
			HighFreqFactor: 4, OriginalMaxPositions: 64,
		}}, exact},
		{"Gemma 3", fixtures.Spec{Architecture: fixtures.Gemma3, SlidingWindow: 33, Layers: 4}, exact},
		{"Gemma 3, f32, tied, every size odd", fixtures.Spec{
			Architecture: fixtures.Gemma3, Hidden: 37, Heads: 3, KVHeads: 1, HeadDim: 10, Intermediate: 51, Vocab: 301,
			DType: fixtures.F32, Tied: true,
		}, exact},
		{"Gemma 3, f16, biases, head size 256", fixtures.Spec{
			Architecture: fixtures.Gemma3, SlidingWindow: 20, Hidden: 72, Heads: 4, KVHeads: 1, HeadDim: 256,
			Intermediate: 90, Bias: true, DType: fixtures.F16,
		}, exact},
		{"wide: rows longer than a block's registers", fixtures.Spec{
			Hidden: 8448, Heads: 4, KVHeads: 2, HeadDim: 16,
			Intermediate: 64, Layers: 1,
		}, exact},
	}
}

// goldens are the folders of the golden checkpoints, but for those that this device refuses.
func goldens(t *testing.T) (dirs []string) {
	t.Helper()
	configs, err := filepath.Glob("../modelrunner/testdata/*/config.json")
	require.NoError(t, err)
	for _, path := range configs {
		c, err := checkpoint.ReadConfig(path)
		require.NoError(t, err)
		if c.NumExperts == 0 && c.Head == checkpoint.OutputHead {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	require.NotEmpty(t, dirs, "the golden checkpoints")
	return dirs
}

// TestAgainstCPU runs prompts in chunks, decode and both mixed, on both devices.
func TestAgainstCPU(t *testing.T) {
	gpu(t)
	type model struct {
		name, dir string
		tolerance float64
	}
	var models []model
	for _, s := range shapes() {
		models = append(models, model{s.why, fixtures.Checkpoint(t, s.Spec), s.tolerance})
	}
	models = append(models, model{"bundled", fixtures.Bundled(), 1e-3})
	for _, dir := range goldens(t) {
		models = append(models, model{filepath.Base(dir), dir, 1e-3})
	}
	for _, m := range models {
		t.Run(m.name, func(t *testing.T) {
			const blocks, size = 128, 16
			c := openCPU(t, m.dir, cpurunner.Options{}, blocks)
			g := openGPU(t, m.dir, Options{}, blocks)
			vocab := g.VocabSize
			all := sample.Params{Logprobs: vocab}
			for _, chunk := range []int{1000, 1, 7} {
				d := newDriver(t, size, blocks, 2048)
				for i, p := range prompts(vocab, 1, 5, 40, 130, 100) {
					if s := d.add(p, 6, all); i == 2 {
						s.promptLogprobs = vocab
					}
				}
				worst := d.compare(c, g, chunk)
				t.Logf("chunks of %d: largest difference %.2g", chunk, worst)
				require.Less(t, worst, m.tolerance)
			}
			one := newDriver(t, size, blocks, 2048)
			one.add(prompts(vocab, 70)[0], 12, all)
			worst := one.compare(c, g, 1000)
			t.Logf("one sequence: largest difference %.2g", worst)
			require.Less(t, worst, m.tolerance)
			sameTokens(t, c, g, size, blocks, vocab)
		})
	}
}

// sameTokens compares what two runners generate, greedily and seeded.
func sameTokens(t *testing.T, a, b modelrunner.Runner, blockSize, blocks, vocab int) {
	t.Helper()
	for _, p := range []sample.Params{{Logprobs: -1}, {Logprobs: -1, Temperature: 0.9, Seed: 0x123456789abcdef}} {
		var out [2][]*sequence
		for i, r := range []modelrunner.Runner{a, b} {
			d := newDriver(t, blockSize, blocks, 2048)
			for j, ids := range prompts(vocab, 3, 17, 60) {
				q := p
				q.Seed += uint64(j)
				d.add(ids, 20, q)
			}
			d.generate(r, 16)
			out[i] = d.seqs
		}
		for j := range out[0] {
			require.Equal(t, out[0][j].Output, out[1][j].Output, "sequence %d, temperature %g", j, p.Temperature)
		}
	}
}

// TestFast: the way that large models are computed, rounded activations and a float16 KV cache. The
// tolerance is what the type's rounding of activations does to logits of about 10: 8 bits of
// mantissa in bf16, 11 in f16.
func TestFast(t *testing.T) {
	gpu(t)
	for _, s := range []shape{
		{"head size 64", fixtures.Spec{Hidden: 128, Heads: 4, KVHeads: 2, HeadDim: 64, DType: fixtures.F16}, 0.06},
		{"head size 64, a window of 70", fixtures.Spec{
			Architecture: fixtures.Mistral, SlidingWindow: 70, Hidden: 128,
			Heads: 4, HeadDim: 64, DType: fixtures.F16,
		}, 0.06},
		{"head size 80, 5 query heads a KV head", fixtures.Spec{
			Hidden: 100, Heads: 10, KVHeads: 2, HeadDim: 80,
			Intermediate: 140, DType: fixtures.F16,
		}, 0.06},
		{"head size 96, biases", fixtures.Spec{
			Hidden: 136, Heads: 7, KVHeads: 7, HeadDim: 96, Intermediate: 200,
			Bias: true, DType: fixtures.F16,
		}, 0.06},
		{"head size 128", fixtures.Spec{Hidden: 256, Heads: 8, KVHeads: 1, HeadDim: 128, DType: fixtures.F16}, 0.06},
		{"Qwen3, head size 128", fixtures.Spec{
			Architecture: fixtures.Qwen3, Hidden: 160, Heads: 2, KVHeads: 2,
			HeadDim: 128, DType: fixtures.F16,
		}, 0.06},
		{"head size 18: no prefill kernel", fixtures.Spec{
			Hidden: 72, Heads: 4, KVHeads: 2, HeadDim: 18,
			Intermediate: 90, DType: fixtures.F16,
		}, 0.06},
		{"Gemma 3, head size 128, a window of 70", fixtures.Spec{
			Architecture: fixtures.Gemma3, SlidingWindow: 70, Hidden: 256, Heads: 8, KVHeads: 2, HeadDim: 128,
			Intermediate: 300, DType: fixtures.F16,
		}, 0.06},
		{"bf16", fixtures.Spec{Hidden: 128, Heads: 4, KVHeads: 2, HeadDim: 64}, 0.4},
	} {
		t.Run(s.why, func(t *testing.T) {
			dir := fixtures.Checkpoint(t, s.Spec)
			const blocks = 128
			c := openCPU(t, dir, cpurunner.Options{}, blocks)
			g := openGPU(t, dir, Options{Fast: true}, blocks)
			for _, chunk := range []int{1000, 1, 7, 50} {
				d := newDriver(t, 16, blocks, 2048)
				for i, p := range prompts(g.VocabSize, 1, 5, 40, 130, 200, 64) {
					if q := d.add(p, 6, sample.Params{Logprobs: g.VocabSize}); i == 3 {
						q.promptLogprobs = g.VocabSize
					}
				}
				worst := d.compare(c, g, chunk)
				t.Logf("chunks of %d: largest difference %.2g", chunk, worst)
				require.Less(t, worst, s.tolerance)
			}
		})
	}
}

// TestBatchSizes decodes every size of batch, empty rows of graphs included; each sequence gets
// what it gets alone.
func TestBatchSizes(t *testing.T) {
	const blocks = 600
	r := openGPU(t, fixtures.Bundled(), Options{}, blocks)
	prompt := func(i int) []int32 { return prompts(1000, 100)[0][i : i+20] }
	var alone [][]int32
	for i := range 70 {
		d := newDriver(t, 16, blocks, 2048)
		s := d.add(prompt(i), 4, sample.Params{Logprobs: -1})
		d.generate(r, 100)
		alone = append(alone, s.Output)
	}
	for _, n := range []int{2, 3, 8, 9, 17, 31, 33, 64, 65, 70} {
		d := newDriver(t, 16, blocks, 2048)
		for i := range n {
			d.add(prompt(i), 4, sample.Params{Logprobs: -1})
		}
		d.generate(r, 100)
		for i, s := range d.seqs {
			require.Equal(t, alone[i], s.Output, "sequence %d of %d", i, n)
		}
	}
	require.NotEmpty(t, ledger.ByOwner(r.Holdings()))
}

// TestLongContext: a context that many blocks share, and a table that grows, against the CPU.
func TestLongContext(t *testing.T) {
	dir := fixtures.Checkpoint(t, fixtures.Spec{MaxPositions: 4096, Heads: 4, KVHeads: 1})
	const blocks = 260
	c := openCPU(t, dir, cpurunner.Options{}, blocks)
	g := openGPU(t, dir, Options{}, blocks)
	room := g.work.tokens
	for _, n := range []int{63, 64, 65, 500, 3000} {
		for _, g.work.tokens = range []int{room, 300} { // with 300, most steps take several passes
			d := newDriver(t, 16, blocks, 2048)
			d.add(prompts(256, n)[0], 5, sample.Params{Logprobs: 256})
			worst := d.compare(c, g, 1500)
			t.Logf("context %d: largest difference %.2g", n, worst)
			require.Less(t, worst, 2e-4)
		}
	}
}

// TestHostSampling: parameters that only the host knows, mixed with those of the device.
func TestHostSampling(t *testing.T) {
	dir := fixtures.Bundled()
	const blocks = 64
	c := openCPU(t, dir, cpurunner.Options{}, blocks)
	g := openGPU(t, dir, Options{}, blocks)
	params := []sample.Params{
		{Logprobs: -1},
		{Logprobs: -1, Temperature: 0.8, TopK: 20, Seed: 1},
		{Logprobs: -1, Temperature: 1.2, TopP: 0.9, Seed: 2},
		{Logprobs: 3, RepetitionPenalty: 1.3},
		{Logprobs: -1, Temperature: 2, Seed: 3},
		{Logprobs: -1, Temperature: 1, MinP: 0.1, Seed: 4},
	}
	var out [2][]*sequence
	for i, r := range []modelrunner.Runner{c, g} {
		d := newDriver(t, 16, blocks, 2048)
		for _, p := range params {
			d.add(prompts(1000, 12)[0], 16, p)
		}
		d.generate(r, 100)
		out[i] = d.seqs
	}
	for i := range params {
		require.Equal(t, out[0][i].Output, out[1][i].Output, "%+v", params[i])
	}
}

// TestCycles: nothing stays on the device, whatever way a runner ends.
func TestCycles(t *testing.T) {
	dir := fixtures.Bundled()
	for i := range 5 {
		ckpt, err := checkpoint.Open(dir)
		require.NoError(t, err)
		l := ledger.New(false)
		r, err := New(ckpt, Options{Device: gpu(t), Ledger: l})
		require.NoError(t, err)
		require.NoError(t, r.AllocateKV(16))
		d := newDriver(t, 16, 16, 2048)
		d.add([]int32{1, 2, 3}, 1+3*i, sample.Params{Logprobs: -1})
		d.generate(r, 10)
		require.NoError(t, r.Close())
		require.Empty(t, l.Holdings())
		require.NoError(t, r.Close(), "twice")
	}
}

func TestMain(m *testing.M) {
	code := m.Run()
	if os.Getenv("ENGINETEST_GPU_REPORT") != "" {
		fmt.Print(report())
	}
	os.Exit(code)
}
