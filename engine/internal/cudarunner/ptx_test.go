package cudarunner

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/cpurunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/fixtures"
)

// TestPTX: what a GPU without machine code in the package gets, the kernels as its driver compiles
// them, against the CPU.
func TestPTX(t *testing.T) {
	gpu(t)
	for _, s := range []struct {
		shape
		fast bool
	}{
		{shape{"f32, every size odd", fixtures.Spec{
			Hidden: 37, Heads: 3, KVHeads: 1, HeadDim: 10, Intermediate: 51,
			Vocab: 301, DType: fixtures.F32,
		}, 1e-3}, false},
		{shape{"bf16", fixtures.Spec{}, 1e-3}, false},
		{shape{"Gemma 3, f32, odd, tied", fixtures.Spec{
			Architecture: fixtures.Gemma3, Hidden: 37, Heads: 3, KVHeads: 1, HeadDim: 10, Intermediate: 51, Vocab: 301,
			DType: fixtures.F32, Tied: true,
		}, 1e-3}, false},
		{shape{"Gemma 3, bf16", fixtures.Spec{Architecture: fixtures.Gemma3, SlidingWindow: 33, Layers: 4}, 1e-3}, false},
		{shape{"Gemma 3, f16, biases", fixtures.Spec{
			Architecture: fixtures.Gemma3, SlidingWindow: 70, Hidden: 256, Heads: 8, KVHeads: 2, HeadDim: 128,
			Intermediate: 300, Bias: true, DType: fixtures.F16,
		}, 0.06}, true},
		{shape{"f16, biases everywhere", fixtures.Spec{
			Hidden: 72, Heads: 4, KVHeads: 2, HeadDim: 18, Intermediate: 90,
			Bias: true, DType: fixtures.F16,
		}, 1e-3}, false},
		// as in TestFast
		{shape{
			"f16, head size 128, as large models are computed",
			fixtures.Spec{Hidden: 256, Heads: 8, KVHeads: 1, HeadDim: 128, DType: fixtures.F16},
			0.06,
		}, true},
	} {
		t.Run(s.why, func(t *testing.T) {
			dir := fixtures.Checkpoint(t, s.Spec)
			const blocks = 128
			c := openCPU(t, dir, cpurunner.Options{}, blocks)
			g := openGPU(t, dir, Options{PTX: true, Fast: s.fast}, blocks)
			for _, chunk := range []int{1000, 1, 7} {
				d := newDriver(t, 16, blocks, 2048)
				for _, p := range prompts(g.VocabSize, 1, 5, 40, 130, 100) {
					d.add(p, 6, sample.Params{Logprobs: g.VocabSize})
				}
				worst := d.compare(c, g, chunk)
				t.Logf("chunks of %d: largest difference %.2g", chunk, worst)
				require.Less(t, worst, s.tolerance)
			}
			one := newDriver(t, 16, blocks, 2048)
			one.add(prompts(g.VocabSize, 70)[0], 12, sample.Params{Logprobs: g.VocabSize})
			require.Less(t, one.compare(c, g, 1000), s.tolerance)
		})
	}
}

// TestPTXCompileTime loads the PTX in two processes that share a new cache of the driver's: the
// first compiles it, the second finds it.
func TestPTXCompileTime(t *testing.T) {
	gpu(t)
	cache := t.TempDir()
	var took [2]time.Duration
	var files [2][]string
	for i := range took {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPTXLoad$", "-test.v")
		cmd.Env = append(os.Environ(), "ENGINETEST_PTX_LOAD=1", "CUDA_CACHE_PATH="+cache, "CUDA_CACHE_DISABLE=0")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		m := regexp.MustCompile(`loaded in (\S+)`).FindSubmatch(out)
		require.NotNil(t, m, "%s", out)
		took[i], err = time.ParseDuration(string(m[1]))
		require.NoError(t, err)
		if files[i], err = filepath.Glob(filepath.Join(cache, "*", "*", "*")); i == 0 {
			require.NoError(t, err)
			require.NotEmpty(t, files[0], "the driver compiled nothing")
		}
	}
	require.Equal(t, files[0], files[1], "the driver's cache was not used")
	t.Logf("PTX compiled in %s, from the driver's cache in %s", took[0], took[1])
}

// TestPTXLoad is the child of TestPTXCompileTime.
func TestPTXLoad(t *testing.T) {
	if os.Getenv("ENGINETEST_PTX_LOAD") == "" {
		t.Skip("run by TestPTXCompileTime")
	}
	w, err := cuda.NewWorker(gpu(t), cuda.Config{})
	require.NoError(t, err)
	require.NoError(t, w.Do(func() error {
		start := time.Now()
		k, err := loadKernels(w, true)
		if err != nil {
			return err
		}
		// drivers may compile when a function is asked for
		for _, name := range []string{"gemm_bf16", "prefill_128", "embed_f32"} {
			if _, err := k.function(name); err != nil {
				return err
			}
		}
		fmt.Println("loaded in", time.Since(start).Round(100*time.Microsecond))
		return k.module.Close()
	}))
	require.NoError(t, w.Close(context.Background()))
}
