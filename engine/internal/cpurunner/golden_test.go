package cpurunner

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// golden is what transformers gave for a checkpoint, in float32 on a CPU: golden.json and
// golden.safetensors beside it.
type golden struct {
	Prompts []struct {
		IDs             []int32
		Greedy          []int32
		MinMargin       float64   `json:"min_margin"` // smallest distance of the two best logits over the greedy steps
		Logprobs        []float64 `json:"logprob_of_greedy"`
		Top5FirstIDs    []int32   `json:"top5_first_ids"`
		Top5FirstLogpbs []float64 `json:"top5_first_logprobs"`
	}
	EOSStops []struct {
		Prompt int
		EOS    int32
		Out    []int32
	} `json:"eos_stops"`
	Processors []struct {
		Prompt int
		KW     struct {
			Repetition float64 `json:"repetition_penalty"`
			NGram      int     `json:"no_repeat_ngram_size"`
			MinNew     int     `json:"min_new_tokens"`
			EOS        int32   `json:"eos_token_id"`
		}
		Out []int32
	} `json:"greedy_with_processors"`
	file *checkpoint.File
}

func readGolden(tb testing.TB, dir string) *golden {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	require.NoError(tb, err)
	g := &golden{}
	require.NoError(tb, json.Unmarshal(data, g))
	g.file, err = checkpoint.OpenFile(filepath.Join(dir, "golden.safetensors"))
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, g.file.Close()) })
	return g
}

func (g *golden) tensor(tb testing.TB, name string) []float32 {
	tb.Helper()
	x, ok := g.file.Tensor(name)
	require.True(tb, ok, name)
	require.Equal(tb, checkpoint.F32, x.DType)
	out := make([]float32, len(x.Data)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(x.Data[4*i:]))
	}
	return out
}

// worst is the largest difference of two tensors; NaN is infinitely far.
func worst(tb testing.TB, got, want []float32) float64 {
	tb.Helper()
	require.Len(tb, got, len(want))
	w := 0.0
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if d != d {
			return math.Inf(1)
		}
		w = max(w, d)
	}
	return w
}

var greedy = sample.Params{Logprobs: 5}

// checkpoints are all of testdata. Those with 16-bit weights were computed by transformers from the
// same weights widened to float32, as this runner computes.
func checkpoints(tb testing.TB) []string {
	tb.Helper()
	dirs, err := filepath.Glob("../modelrunner/testdata/*/golden.json")
	require.NoError(tb, err)
	require.NotEmpty(tb, dirs)
	for i := range dirs {
		dirs[i] = filepath.Dir(dirs[i])
	}
	return dirs
}

// TestLogits compares the logits at the prompt positions of the golden file (of a long prompt, the
// last ones) with transformers, for every tier of kernels; and prompts in chunks with whole ones,
// bit by bit.
func TestLogits(t *testing.T) {
	for tier := cpu.Generic; tier <= cpu.Best(); tier++ {
		t.Setenv(cpu.TierEnv, tier.String())
		chunks := []int{7}
		if tier == cpu.Best() {
			chunks = []int{1, 3, 7, 16}
		}
		for _, dir := range checkpoints(t) {
			t.Run(tier.String()+"/"+filepath.Base(dir), func(t *testing.T) {
				g, most := readGolden(t, dir), 0.0
				d := newDriver(t, open(t, dir, Options{}, 32))
				for i, p := range g.Prompts {
					whole := d.logits(p.IDs, len(p.IDs))
					want := g.tensor(t, fmt.Sprintf("p%d.logits", i))
					most = max(most, worst(t, whole[len(whole)-len(want):], want))
					for _, chunk := range chunks {
						require.True(t, slices.Equal(whole, d.logits(p.IDs, chunk)), "prompt %d in chunks of %d", i,
							chunk)
					}
				}
				t.Logf("largest error %.2g", most)
				require.Less(t, most, 1e-4)
			})
		}
	}
}

// TestGreedy generates with the KV cache: ids and log-probabilities equal transformers', one prompt
// at a time and all in a batch.
func TestGreedy(t *testing.T) {
	for _, dir := range checkpoints(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			g := readGolden(t, dir)
			r := open(t, dir, Options{}, 128)
			all := newDriver(t, r)
			for i, p := range g.Prompts {
				one := newDriver(t, r)
				s := one.add(p.IDs, greedy)
				one.run(1000, len(p.Greedy))
				require.Equal(t, p.Greedy, s.Output, "prompt %d (the smallest margin is %g)", i, p.MinMargin)
				for j, lp := range p.Logprobs {
					require.InDelta(t, lp, s.logprobs[j][0].Logprob, 1e-4, "prompt %d, token %d", i, j)
				}
				for j, id := range p.Top5FirstIDs {
					require.Equal(t, id, s.logprobs[0][j].Token)
					require.InDelta(t, p.Top5FirstLogpbs[j], s.logprobs[0][j].Logprob, 1e-4)
				}
				all.add(p.IDs, greedy)
			}
			// prompts of different lengths in chunks: prefill and decode rows are mixed
			all.run(11, len(g.Prompts[0].Greedy))
			for i, s := range all.seqs {
				require.Equal(t, g.Prompts[i].Greedy, s.Output, "prompt %d in the batch", i)
			}
		})
	}
}

func TestHiddenStates(t *testing.T) {
	dir := "../modelrunner/testdata/tiny-llama"
	g := readGolden(t, dir)
	want := g.tensor(t, "p4.hidden")
	d := newDriver(t, open(t, dir, Options{}, 8))
	n := 17 * 64
	d.cpus[0].trace = func(layer int, x []float32) {
		require.Less(t, worst(t, x, want[layer*n:(layer+1)*n]), 1e-5, "layer %d", layer)
	}
	d.logits(g.Prompts[4].IDs, 17)
	d.cpus[0].trace = nil
	var final []float32
	d.add(g.Prompts[4].IDs, greedy)
	b, _ := d.batch(17)
	require.NoError(t, d.cpus[0].forward(b))
	for row := range 17 {
		_, err := d.cpus[0].project([]int{row})
		require.NoError(t, err)
		final = append(final, d.cpus[0].work.h[:64]...)
	}
	require.Less(t, worst(t, final, want[4*n:]), 1e-5)
}

// TestProcessors generates greedily with Hugging Face's processors and stops.
func TestProcessors(t *testing.T) {
	dir := "../modelrunner/testdata/tiny-llama"
	g := readGolden(t, dir)
	r := open(t, dir, Options{}, 32)
	for _, c := range g.Processors {
		p := sample.Params{
			RepetitionPenalty: c.KW.Repetition, NoRepeatNGram: c.KW.NGram, MinTokens: c.KW.MinNew,
			Logprobs: -1,
		}
		if c.KW.MinNew > 0 {
			p.StopIDs = []int32{c.KW.EOS}
		}
		d := newDriver(t, r)
		s := d.add(g.Prompts[c.Prompt].IDs, p)
		d.run(1000, len(c.Out))
		require.Equal(t, c.Out, s.Output, "%+v", c.KW)
	}
	for _, c := range g.EOSStops {
		d := newDriver(t, r)
		s := d.add(g.Prompts[c.Prompt].IDs, greedy)
		d.run(1000, len(c.Out))
		require.Equal(t, c.Out, s.Output)
		require.Equal(t, len(c.Out)-1, slices.Index(s.Output, c.EOS))
	}
}

// TestPromptLogprobs: of every prompt token but the first, however the prompt is cut, from the same
// logits that the golden file has.
func TestPromptLogprobs(t *testing.T) {
	dir := "../modelrunner/testdata/tiny-llama"
	g := readGolden(t, dir)
	r := open(t, dir, Options{MaxNumBatchedTokens: 100}, 32)
	for i, p := range g.Prompts {
		logits := g.tensor(t, fmt.Sprintf("p%d.logits", i))
		for _, chunk := range []int{5, 100} {
			d := newDriver(t, r)
			s := d.add(p.IDs, greedy)
			s.promptLogprobs = 3
			d.run(chunk, 1)
			require.Len(t, s.prompt, len(p.IDs)-1)
			for j, lps := range s.prompt {
				row, sum := logits[j*512:(j+1)*512], 0.0
				for _, x := range row {
					sum += math.Exp(float64(x))
				}
				at := slices.IndexFunc(lps, func(l sample.Logprob) bool { return l.Token == p.IDs[j+1] })
				require.GreaterOrEqual(t, at, 0, "the target is among them")
				for _, l := range lps {
					require.InDelta(t, float64(row[l.Token])-math.Log(sum), l.Logprob, 1e-4)
				}
				require.True(t, len(lps) == 3 || len(lps) == 4 && at == 3 && lps[3].Rank > 3)
			}
		}
	}
}
