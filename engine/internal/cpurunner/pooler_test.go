package cpurunner

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine/internal/cpu"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/ledger"
)

// pooled is what transformers gave for a prompt, in float32 on a CPU.
type pooled struct {
	IDs    []int32
	Types  []int32 `json:"token_types"`
	Last   []float32
	Mean   []float32
	CLS    []float32
	Pooler []float32
	Logits []float32
}

func readPooled(tb testing.TB, dir string) []pooled {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	require.NoError(tb, err)
	var g struct{ Prompts []pooled }
	require.NoError(tb, json.Unmarshal(data, &g))
	require.NotEmpty(tb, g.Prompts)
	return g.Prompts
}

// openPooling makes a runner for a pooling; "" is the checkpoint's own, "pooler" an encoder's.
func openPooling(tb testing.TB, dir, how string, o Options, ranks int) modelrunner.Runner {
	tb.Helper()
	ckpt, err := checkpoint.Open(dir)
	require.NoError(tb, err)
	if kind, pooler := strings.CutPrefix(how, "pooler"); pooler {
		ckpt.UsePooling("cls", true)
	} else if kind != "" {
		ckpt.UsePooling(how, false)
	}
	o.Ledger = ledger.New(true)
	var r modelrunner.Runner
	if ranks == 1 {
		r, err = New(ckpt, o)
	} else {
		r, err = NewGroup(ckpt, ranks, o, func(int) modelrunner.Hooks { return modelrunner.Hooks{} })
	}
	require.NoError(tb, err)
	tb.Cleanup(func() {
		require.NoError(tb, r.Close())
		require.Empty(tb, o.Ledger.Holdings())
	})
	require.NoError(tb, r.AllocateKV(64))
	return r
}

// poolBatch puts whole prompts in one batch, each with blocks of its own. types may be nil.
func poolBatch(prompts ...pooled) *modelrunner.Batch {
	const size = 16
	b := &modelrunner.Batch{}
	block := int32(0)
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
			kind := int32(0)
			if p.Types != nil {
				kind = p.Types[i]
			}
			b.TokenTypes = append(b.TokenTypes, kind)
		}
		b.Seqs = append(b.Seqs, s)
	}
	return b
}

var poolingCases = []struct {
	dir, how string
	want     func(pooled) []float32
}{
	{"qwen3-embedding", "last", func(p pooled) []float32 { return p.Last }},
	{"qwen3-embedding", "mean", func(p pooled) []float32 { return p.Mean }},
	{"qwen3-embedding", "cls", func(p pooled) []float32 { return p.CLS }},
	{"bert-embed", "mean", func(p pooled) []float32 { return p.Mean }},
	{"bert-embed", "cls", func(p pooled) []float32 { return p.CLS }},
	{"bert-embed", "last", func(p pooled) []float32 { return p.Last }},
	{"bert-embed", "pooler", func(p pooled) []float32 { return p.Pooler }},
	{"qwen2-classify", "", func(p pooled) []float32 { return p.Logits }},
	{"qwen3-rerank", "", func(p pooled) []float32 { return p.Logits }},
	{"bert-classify", "", func(p pooled) []float32 { return p.Logits }},
	{"bert-cross-encoder", "", func(p pooled) []float32 { return p.Logits }},
}

const poolingTestdata = "../modelrunner/testdata/pooling"

// TestPooledEqualsTransformers compares every pooling and head with transformers, alone and in one
// batch, for every tier of kernels; with -short, for the best.
func TestPooledEqualsTransformers(t *testing.T) {
	first := cpu.Generic
	if testing.Short() {
		first = cpu.Best()
	}
	for tier := first; tier <= cpu.Best(); tier++ {
		t.Setenv(cpu.TierEnv, tier.String())
		for _, c := range poolingCases {
			t.Run(tier.String()+"/"+c.dir+" "+c.how, func(t *testing.T) {
				dir := filepath.Join(poolingTestdata, c.dir)
				prompts, most := readPooled(t, dir), 0.0
				r := openPooling(t, dir, c.how, Options{}, 1)
				together, err := r.Execute(poolBatch(prompts...))
				require.NoError(t, err)
				for i, p := range prompts {
					alone, err := r.Execute(poolBatch(p))
					require.NoError(t, err)
					assert.Equal(t, alone[0].Pooled, together[i].Pooled, "prompt %d depends on its batch", i)
					most = max(most, worst(t, alone[0].Pooled, c.want(p)))
				}
				t.Logf("largest difference %.2g", most)
				assert.LessOrEqual(t, most, 1e-4)
			})
		}
	}
}

// TestPooledOnTwoDevices compares devices that share the model with one device.
func TestPooledOnTwoDevices(t *testing.T) {
	for _, c := range []struct{ dir, how string }{
		{"qwen3-embedding", "mean"}, {"qwen2-classify", ""}, {"bert-embed", "pooler"}, {"bert-cross-encoder", ""},
	} {
		t.Run(c.dir, func(t *testing.T) {
			dir := filepath.Join(poolingTestdata, c.dir)
			b := poolBatch(readPooled(t, dir)...)
			want, err := openPooling(t, dir, c.how, Options{}, 1).Execute(b)
			require.NoError(t, err)
			got, err := openPooling(t, dir, c.how, Options{}, 2).Execute(b)
			require.NoError(t, err)
			for i := range want {
				assert.LessOrEqual(t, worst(t, got[i].Pooled, want[i].Pooled), 1e-5)
			}
		})
	}
}

// TestPoolingIsAnOwner checks what the pooler holds: of a model that pools, until Close and while it
// is awake; of a model that generates, nothing.
func TestPoolingIsAnOwner(t *testing.T) {
	bytes := func(r modelrunner.Runner) (sum int64) {
		for _, h := range r.Holdings() {
			if h.Owner == poolingOwner {
				sum += h.Bytes
			}
		}
		return sum
	}
	dir := filepath.Join(poolingTestdata, "bert-classify")
	b := poolBatch(readPooled(t, dir)...)
	r := openPooling(t, dir, "", Options{}, 1)
	want, err := r.Execute(b)
	require.NoError(t, err)
	assert.Equal(t, int64(4*64*(40+40+4)), bytes(r))
	for _, keep := range []bool{true, false} {
		require.NoError(t, r.(modelrunner.Sleeper).Sleep(keep))
		assert.Zero(t, bytes(r), "asleep")
		require.NoError(t, r.(modelrunner.Sleeper).WakeWeights())
		require.NoError(t, r.AllocateKV(64))
		got, err := r.Execute(b)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	assert.Zero(t, bytes(open(t, "../modelrunner/testdata/tiny-llama", Options{}, 8)))
}

// TestPoolingWakesAsItSlept checks that a checkpoint whose hidden states are wanted is opened again
// for that, not for its output layer.
func TestPoolingWakesAsItSlept(t *testing.T) {
	dir := filepath.Join(poolingTestdata, "qwen3-embedding")
	b := poolBatch(readPooled(t, dir)...)
	r := openPooling(t, dir, "mean", Options{}, 1)
	want, err := r.Execute(b)
	require.NoError(t, err)
	require.NoError(t, r.(modelrunner.Sleeper).Sleep(false))
	require.NoError(t, r.(modelrunner.Sleeper).WakeWeights())
	require.NoError(t, r.AllocateKV(64))
	got, err := r.Execute(b)
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

// TestWholeSequencesOnly checks that a batch with a part of a sequence is refused where the part
// would be pooled, or see too little.
func TestWholeSequencesOnly(t *testing.T) {
	for how, whole := range map[string]bool{"mean": true, "cls": true, "last": false} {
		dir := filepath.Join(poolingTestdata, "qwen3-embedding")
		r := openPooling(t, dir, how, Options{}, 1)
		b := poolBatch(readPooled(t, dir)[2])
		_, err := r.Execute(b)
		require.NoError(t, err)
		b.Tokens, b.Positions, b.Slots, b.TokenTypes = b.Tokens[1:], b.Positions[1:], b.Slots[1:], nil
		b.Seqs[0].Len--
		if _, err := r.Execute(b); whole {
			assert.ErrorContains(t, err, "sequence 0 has 8 rows of 9, and must be computed in one step")
		} else {
			assert.NoError(t, err)
		}
	}
	dir := filepath.Join(poolingTestdata, "bert-embed")
	b := poolBatch(readPooled(t, dir)[0])
	b.TokenTypes[0] = 2
	_, err := openPooling(t, dir, "last", Options{}, 1).Execute(b)
	assert.ErrorContains(t, err, "token type 2 in row 0, the model has 2")
}
