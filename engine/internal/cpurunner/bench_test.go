package cpurunner

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// The benchmarks run a Llama of 110M parameters (768/2048, 12 layers, 12 heads, 32000 tokens) with
// random weights. Decoding reads every weight once a token, so its floor is bytes of weights ÷
// memory bandwidth; floor-% is how much of the time that explains, with the bandwidth that plain
// reading reaches in the same run (see readBandwidth). Threads share the machine with whatever else
// runs: compare within one run.
//
//	go test ./internal/modelrunner -run '^$' -bench 110M

var shape110M = checkpoint.Config{
	HiddenSize: 768, IntermediateSize: 2048, NumLayers: 12, NumHeads: 12,
	VocabSize: 32000,
}

func BenchmarkDecode110M(b *testing.B) {
	eachSetup(b, func(b *testing.B, r *Runner, weights int64, bandwidth float64) {
		b.Helper()
		d := newDriver(b, r)
		s := d.add(make([]int32, 64), greedy)
		s.Params.Logprobs = -1
		d.step(64)
		b.ResetTimer()
		for range b.N {
			if s.computed == 192 { // back to the prompt: the cache is still right
				s.computed, s.Output = 64, s.Output[:1]
			}
			d.step(1)
		}
		perToken := b.Elapsed().Seconds() / float64(b.N)
		b.ReportMetric(1/perToken, "tok/s")
		b.ReportMetric(100*float64(weights)/bandwidth/perToken, "floor-%")
		b.ReportMetric(bandwidth/1e9, "read-GB/s")
	})
}

func BenchmarkPrefill110M(b *testing.B) {
	eachSetup(b, func(b *testing.B, r *Runner, _ int64, _ float64) {
		b.Helper()
		d := newDriver(b, r)
		s := d.add(make([]int32, 128), greedy)
		s.Params.Logprobs = -1
		for b.Loop() {
			s.computed, s.Output = 0, nil
			d.step(128)
		}
		b.ReportMetric(128*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
	})
}

// BenchmarkCycle opens a tiny checkpoint, draws one token and closes.
func BenchmarkCycle(b *testing.B) {
	for b.Loop() {
		ckpt, err := checkpoint.Open(tiny)
		require.NoError(b, err)
		r, err := New(ckpt, Options{})
		require.NoError(b, err)
		require.NoError(b, r.AllocateKV(1024))
		d := newDriver(b, r)
		d.add([]int32{1, 2, 3}, greedy)
		d.run(3, 1)
		require.NoError(b, r.Close())
	}
}

// BenchmarkDecodeTiny is a step that costs next to no arithmetic: what batches and kernel launches
// cost.
func BenchmarkDecodeTiny(b *testing.B) {
	for _, seqs := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("seqs=%d", seqs), func(b *testing.B) {
			d := newDriver(b, open(b, tiny, Options{}, 1024))
			for i := range seqs {
				d.add([]int32{int32(i), 2, 3}, sample.Params{Logprobs: -1})
			}
			d.step(3)
			batch, _ := d.batch(1)
			for b.Loop() {
				if _, err := d.r.Execute(batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func eachSetup(b *testing.B, run func(b *testing.B, r *Runner, weights int64, bandwidth float64)) {
	b.Helper()
	for _, t := range []checkpoint.DType{checkpoint.F32, checkpoint.BF16} {
		dir := writeRandom(b, shape110M, t)
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/threads=%d", t, threads), func(b *testing.B) {
				r := open(b, dir, Options{Threads: threads, MaxModelLen: 256, MaxNumBatchedTokens: 128}, 32)
				run(b, r, passBytes(r), readBandwidth(r.pool))
			})
		}
	}
}

// passBytes is the size of the matrices that one decode step reads.
func passBytes(r *Runner) int64 {
	n := r.outer.linear[checkpoint.Output].w.Bytes()
	for _, l := range r.layers {
		for _, m := range l.linear {
			n += m.w.Bytes()
		}
	}
	return n
}

// readBandwidth is the bytes a second that a pool's threads read from memory: the best of ten
// passes over 256 MiB, by the standard library's byte search or by one matrix times a vector,
// whichever is faster (one stream a thread does not always fill the memory's pipes).
func readBandwidth(p *cpu.Pool) float64 {
	memory := bytes.Repeat([]byte{1}, 256<<20)
	const cols = 1 << 12
	w := cpu.Matrix{Data: memory, Type: cpu.F32, Rows: len(memory) / 4 / cols, Cols: cols}
	x, y := make([]float32, cols), make([]float32, w.Rows)
	best := 0.0
	for range 10 {
		for _, read := range []func(){
			func() {
				p.Run(len(memory), len(memory)/p.Threads(), func(lo, hi int) {
					if bytes.IndexByte(memory[lo:hi], 0) >= 0 {
						panic("unreachable")
					}
				})
			},
			func() { cpu.MatMul(p, y, x, 1, w, nil) },
		} {
			start := time.Now()
			read()
			best = max(best, float64(len(memory))/time.Since(start).Seconds())
		}
	}
	return best
}

// writeRandom writes a random Llama checkpoint. Its tensors share their numbers, so that making it
// costs little memory.
func writeRandom(b *testing.B, c checkpoint.Config, t checkpoint.DType) string {
	b.Helper()
	dir := b.TempDir()
	config := fmt.Sprintf(`{"architectures": ["LlamaForCausalLM"], "vocab_size": %d, "hidden_size": %d, "intermediate_size": %d,
		"num_hidden_layers": %d, "num_attention_heads": %d, "max_position_embeddings": 2048}`,
		c.VocabSize, c.HiddenSize, c.IntermediateSize, c.NumLayers, c.NumHeads)
	require.NoError(b, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
	rng := rand.New(rand.NewPCG(1, 1))
	var numbers []byte
	for range c.VocabSize * c.HiddenSize {
		bits := math.Float32bits(float32(rng.NormFloat64() * 0.03))
		if t == checkpoint.F32 {
			numbers = binary.LittleEndian.AppendUint32(numbers, bits)
		} else {
			numbers = binary.LittleEndian.AppendUint16(numbers, uint16(bits>>16))
		}
	}
	var tensors []checkpoint.Tensor
	add := func(name string, shape ...int) {
		n := t.Size()
		for _, d := range shape {
			n *= d
		}
		tensors = append(tensors, checkpoint.Tensor{Name: name, DType: t, Shape: shape, Data: numbers[:n]})
	}
	h, i := c.HiddenSize, c.IntermediateSize
	add("model.embed_tokens.weight", c.VocabSize, h)
	add("lm_head.weight", c.VocabSize, h)
	add("model.norm.weight", h)
	for l := range c.NumLayers {
		at := fmt.Sprintf("model.layers.%d.", l)
		for _, name := range []string{"q", "k", "v", "o"} {
			add(at+"self_attn."+name+"_proj.weight", h, h)
		}
		add(at+"mlp.gate_proj.weight", i, h)
		add(at+"mlp.up_proj.weight", i, h)
		add(at+"mlp.down_proj.weight", h, i)
		add(at+"input_layernorm.weight", h)
		add(at+"post_attention_layernorm.weight", h)
	}
	require.NoError(b, checkpoint.WriteSafetensors(filepath.Join(dir, "model.safetensors"), tensors, nil))
	return dir
}
