package cudarunner

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
)

const poolingTestdata = "../modelrunner/testdata/pooling"

// pooled is what transformers gave for a prompt, in float32 on a CPU.
type pooled struct {
	IDs    []int32
	Last   []float32
	Mean   []float32
	CLS    []float32
	Logits []float32
}

func readPooled(tb testing.TB, name string) []pooled {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join(poolingTestdata, name, "golden.json"))
	require.NoError(tb, err)
	var g struct{ Prompts []pooled }
	require.NoError(tb, json.Unmarshal(data, &g))
	require.NotEmpty(tb, g.Prompts)
	return g.Prompts
}

// poolBatch puts whole prompts in one batch, each with blocks of its own.
func poolBatch(prompts ...pooled) *modelrunner.Batch {
	const size = 16
	b, block := &modelrunner.Batch{}, int32(0)
	for _, p := range prompts {
		s := modelrunner.Seq{
			Start: len(b.Tokens), Len: len(p.IDs), Context: len(p.IDs), PromptLogprobs: -1, Pool: true,
		}
		for i, id := range p.IDs {
			if i%size == 0 {
				s.Blocks = append(s.Blocks, block)
				block++
			}
			b.Tokens, b.Positions = append(b.Tokens, id), append(b.Positions, int32(i))
			b.Slots = append(b.Slots, s.Blocks[i/size]*size+int32(i%size))
		}
		b.Seqs = append(b.Seqs, s)
	}
	return b
}

func openPooling(tb testing.TB, v cuda.Device, name, how string, o Options) (*Runner, error) {
	tb.Helper()
	ckpt, err := checkpoint.Open(filepath.Join(poolingTestdata, name))
	require.NoError(tb, err)
	if how != "" {
		ckpt.UsePooling(how, false)
	}
	o.Device = v
	return New(ckpt, o)
}

// TestPoolingOnStub: the pooler is an owner of its own, gone after Close and while the runner
// sleeps, and a failure on the way leaves nothing. The stand-in's kernels compute nothing, so every
// number is zero.
func TestPoolingOnStub(t *testing.T) {
	s, v := stubDevice(t)
	for _, c := range []struct {
		name, how string
		numbers   int
	}{{"qwen3-embedding", "last", 48}, {"qwen3-embedding", "mean", 48}, {"qwen2-classify", "", 3}} {
		l := ledger.New(true)
		r, err := openPooling(t, v, c.name, c.how, Options{Ledger: l, PTX: true})
		require.NoError(t, err)
		require.NoError(t, r.AllocateKV(64))
		pooling := func() int64 { return ledger.ByOwner(l.Holdings())[poolingOwner] }
		held := pooling()
		assert.Positive(t, held)
		b := poolBatch(readPooled(t, c.name)...)
		execute := func() {
			out, err := r.Execute(b)
			require.NoError(t, err)
			require.Len(t, out, len(b.Seqs))
			for _, res := range out {
				assert.Equal(t, make([]float32, c.numbers), res.Pooled)
			}
		}
		execute()
		for _, keep := range []bool{true, false} {
			require.NoError(t, r.Sleep(keep))
			assert.Zero(t, pooling(), "asleep")
			require.NoError(t, r.WakeWeights())
			require.NoError(t, r.AllocateKV(64))
			assert.Equal(t, held, pooling())
			execute()
		}
		require.NoError(t, r.Close())
		require.Empty(t, l.Holdings())
		require.Zero(t, s.Used(0))
	}
	planted := errors.New("planted")
	refuse := Options{PTX: true, Hooks: modelrunner.Hooks{Allocate: func(owner string, _ int64) error {
		if owner == poolingOwner {
			return planted
		}
		return nil
	}}}
	refuse.Ledger = ledger.New(false)
	_, err := openPooling(t, v, "qwen3-embedding", "mean", refuse)
	require.ErrorIs(t, err, planted)
	require.Empty(t, refuse.Ledger.Holdings())
	r, err := openPooling(t, v, "qwen3-embedding", "", refuse)
	require.NoError(t, err, "a model that generates has no pooler")
	require.NoError(t, r.Close())
}

// TestEncoderIsRefused checks that the device which computes no encoder says so, before it is asked.
func TestEncoderIsRefused(t *testing.T) {
	_, v := stubDevice(t)
	_, err := openPooling(t, v, "bert-embed", "", Options{})
	var e *checkpoint.Error
	require.ErrorAs(t, err, &e)
	assert.ErrorContains(t, err, `the CUDA device does not compute this architecture: got BertModel, want the device "cpu"`)
}

// TestGPUPooled compares every pooling and head of decoders with transformers: alone, in one batch,
// and in passes of few rows.
func TestGPUPooled(t *testing.T) {
	v := gpu(t)
	for _, c := range []struct {
		name, how string
		want      func(pooled) []float32
	}{
		{"qwen3-embedding", "last", func(p pooled) []float32 { return p.Last }},
		{"qwen3-embedding", "mean", func(p pooled) []float32 { return p.Mean }},
		{"qwen3-embedding", "cls", func(p pooled) []float32 { return p.CLS }},
		{"qwen2-classify", "", func(p pooled) []float32 { return p.Logits }},
		{"qwen3-rerank", "", func(p pooled) []float32 { return p.Logits }},
	} {
		t.Run(c.name+" "+c.how, func(t *testing.T) {
			l := ledger.New(true)
			r, err := openPooling(t, v, c.name, c.how, Options{Ledger: l})
			require.NoError(t, err)
			require.NoError(t, r.AllocateKV(64))
			prompts, most := readPooled(t, c.name), 0.0
			compare := func(got []float32, p pooled) {
				require.Len(t, got, len(c.want(p)))
				for i, want := range c.want(p) {
					d := math.Abs(float64(got[i]) - float64(want))
					if math.IsNaN(d) {
						d = math.Inf(1)
					}
					most = max(most, d)
				}
			}
			for _, p := range prompts {
				out, err := r.Execute(poolBatch(p))
				require.NoError(t, err)
				compare(out[0].Pooled, p)
			}
			for _, rows := range []int{r.work.tokens, 50, 16} {
				r.work.tokens = rows
				out, err := r.Execute(poolBatch(prompts...))
				require.NoError(t, err)
				for i, p := range prompts {
					compare(out[i].Pooled, p)
				}
			}
			t.Logf("largest difference %.2g", most)
			assert.LessOrEqual(t, most, 1e-4)
			require.NoError(t, r.Close())
			require.Empty(t, l.Holdings())
		})
	}
}
