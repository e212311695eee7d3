package engine

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

const poolingTestdata = "internal/modelrunner/testdata/pooling"

// pooledGolden is what transformers gave for a prompt, in float32 on a CPU.
type pooledGolden struct {
	IDs            []int32
	Types          []int32 `json:"token_types"`
	Last           []float32
	Mean           []float32
	CLS            []float32
	LastNormalized []float32 `json:"last_normalized"`
	MeanNormalized []float32 `json:"mean_normalized"`
	CLSNormalized  []float32 `json:"cls_normalized"`
	Pooler         []float32
	Logits         []float32
}

func (g pooledGolden) request(p llm.PoolingParams) llm.PoolingRequest {
	return llm.PoolingRequest{PromptTokenIDs: g.IDs, TokenTypeIDs: g.Types, Pooling: p}
}

func poolingGolden(t *testing.T, name string) []pooledGolden {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(poolingTestdata, name, "golden.json"))
	require.NoError(t, err)
	var g struct{ Prompts []pooledGolden }
	require.NoError(t, json.Unmarshal(data, &g))
	require.NotEmpty(t, g.Prompts)
	return g.Prompts
}

func openPooling(t *testing.T, name string, cfg Config) *Engine {
	t.Helper()
	cfg.Model, cfg.Device = filepath.Join(poolingTestdata, name), "cpu"
	return openTiny(t, cfg)
}

// farthest is the largest difference of two vectors; NaN is infinitely far.
func farthest(t *testing.T, got, want []float32) float64 {
	t.Helper()
	require.Len(t, got, len(want))
	most := 0.0
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		most = max(most, d)
	}
	return most
}

// TestPoolEqualsTransformers goes the whole way, in this process and in a child, with all prompts
// together and in steps of few tokens where the pooling allows it.
func TestPoolEqualsTransformers(t *testing.T) {
	raw := llm.PoolingParams{UseActivation: ptr(false)}
	for _, c := range []struct {
		name, pooling string
		params        llm.PoolingParams
		want          func(pooledGolden) []float32
	}{
		{"qwen3-embedding", "", llm.PoolingParams{}, func(g pooledGolden) []float32 { return g.LastNormalized }},
		{"qwen3-embedding", "last", raw, func(g pooledGolden) []float32 { return g.Last }},
		{"qwen3-embedding", "mean", llm.PoolingParams{}, func(g pooledGolden) []float32 { return g.MeanNormalized }},
		{"bert-embed", "", llm.PoolingParams{}, func(g pooledGolden) []float32 { return g.MeanNormalized }},
		{"bert-embed", "cls", llm.PoolingParams{}, func(g pooledGolden) []float32 { return g.CLSNormalized }},
		{"bert-embed", "pooler", raw, func(g pooledGolden) []float32 { return g.Pooler }},
		{"qwen2-classify", "", raw, func(g pooledGolden) []float32 { return g.Logits }},
		{"qwen3-rerank", "", raw, func(g pooledGolden) []float32 { return g.Logits }},
		{"bert-classify", "", raw, func(g pooledGolden) []float32 { return g.Logits }},
		{"bert-cross-encoder", "", raw, func(g pooledGolden) []float32 { return g.Logits }},
	} {
		for _, core := range []Core{InProcess, ChildProcess} {
			if core == ChildProcess && (runtime.GOOS != "linux" || testing.Short()) {
				continue
			}
			t.Run(c.name+" "+c.pooling+"/"+core.String(), func(t *testing.T) {
				cfg := Config{Core: core, Pooling: c.pooling}
				if c.pooling == "last" {
					cfg.MaxNumBatchedTokens = 32 // the longest prompt takes four steps
				}
				e, gs := openPooling(t, c.name, cfg), poolingGolden(t, c.name)
				var reqs []llm.PoolingRequest
				for _, g := range gs {
					reqs = append(reqs, g.request(c.params))
				}
				outs, err := e.Pool(t.Context(), reqs...)
				require.NoError(t, err)
				for i, g := range gs {
					assert.LessOrEqual(t, farthest(t, outs[i].Data, c.want(g)), 1e-4)
					assert.Equal(t, g.IDs, outs[i].PromptTokenIDs)
				}
				assert.Zero(t, e.Stats().OutputTokens)
				assert.Equal(t, len(gs), e.Stats().Finished)
			})
		}
	}
}

func TestPoolingActivations(t *testing.T) {
	softmax := func(x []float32) []float32 {
		var sum float64
		for _, v := range x {
			sum += math.Exp(float64(v))
		}
		out := make([]float32, len(x))
		for i, v := range x {
			out[i] = float32(math.Exp(float64(v)) / sum)
		}
		return out
	}
	for name, act := range map[string]func([]float32) []float32{
		"qwen2-classify": softmax,
		"bert-cross-encoder": func(x []float32) []float32 {
			return []float32{float32(1 / (1 + math.Exp(-float64(x[0]))))}
		},
	} {
		e, g := openPooling(t, name, Config{}), poolingGolden(t, name)[2]
		outs, err := e.Pool(t.Context(), g.request(llm.PoolingParams{}))
		require.NoError(t, err)
		assert.LessOrEqual(t, farthest(t, outs[0].Data, act(g.Logits)), 1e-5)
	}
	// Matryoshka: the first numbers, then the length.
	e, g := openPooling(t, "qwen3-embedding", Config{}), poolingGolden(t, "qwen3-embedding")[3]
	outs, err := e.Pool(t.Context(), g.request(llm.PoolingParams{Dimensions: 7}))
	require.NoError(t, err)
	var length float64
	for _, v := range g.Last[:7] {
		length += float64(v) * float64(v)
	}
	want := make([]float32, 7)
	for i := range want {
		want[i] = float32(float64(g.Last[i]) / math.Sqrt(length))
	}
	assert.LessOrEqual(t, farthest(t, outs[0].Data, want), 1e-5)
}

// TestPaddingIsLeftOut checks that a decoder's classifier reads the last token that is no padding.
func TestPaddingIsLeftOut(t *testing.T) {
	e, g := openPooling(t, "qwen2-classify", Config{}), poolingGolden(t, "qwen2-classify")[2]
	q := g.request(llm.PoolingParams{UseActivation: ptr(false)})
	q.PromptTokenIDs = append(append([]int32{}, g.IDs...), 0, 0, 0)
	outs, err := e.Pool(t.Context(), q, llm.PoolingRequest{PromptTokenIDs: []int32{0, 0}})
	require.NoError(t, err)
	assert.LessOrEqual(t, farthest(t, outs[0].Data, g.Logits), 1e-4)
	assert.Equal(t, []int32{0}, outs[1].PromptTokenIDs)
}

func TestPoolingInfo(t *testing.T) {
	for name, want := range map[string]llm.PoolingInfo{
		"qwen3-embedding": {Task: llm.TaskEmbed, Pooling: "last", Dimensions: 48, Normalized: true},
		"bert-embed":      {Task: llm.TaskEmbed, Pooling: "mean", Dimensions: 48, Normalized: true},
		"qwen2-classify": {
			Task: llm.TaskClassify, Pooling: "last", Dimensions: 3, Activation: "softmax",
			Labels: []string{"LABEL_0", "LABEL_1", "LABEL_2"},
		},
		"bert-cross-encoder": {
			Task: llm.TaskClassify, Pooling: "cls", Dimensions: 1, Activation: "sigmoid",
			Labels: []string{"LABEL_0"},
		},
	} {
		e := openPooling(t, name, Config{})
		assert.Equal(t, want, e.PoolingInfo())
		whole := name != "qwen3-embedding" && name != "qwen2-classify"
		assert.Equal(t, whole, e.Config().DisableChunkedPrefill && e.Config().DisablePrefixCache, name)
		assert.Empty(t, e.b.(*core).unused, "an output layer or a pooler that is not wanted is no surprise")
	}
	assert.Zero(t, openTiny(t, Config{}).PoolingInfo())
}

// TestEmbedWithAGenerator checks that a model that generates can be opened to embed: with text, the
// prefix cache and scores.
func TestEmbedWithAGenerator(t *testing.T) {
	e := openTiny(t, Config{Model: fixtures.Bundled(), Device: "cpu", Task: llm.TaskEmbed})
	text := strings.Repeat("The lighthouse keeper wrote a letter. ", 6)
	first, err := e.Embed(t.Context(), text, "2+3=")
	require.NoError(t, err)
	require.Len(t, first, 2)
	var length float64
	for _, v := range first[0] {
		length += float64(v) * float64(v)
	}
	assert.InDelta(t, 1, length, 1e-5)

	outs, err := e.Pool(t.Context(), llm.PoolingRequest{Prompt: text})
	require.NoError(t, err)
	assert.Positive(t, outs[0].CachedTokens, "the last row alone is computed again")
	assert.LessOrEqual(t, farthest(t, outs[0].Data, first[0]), 1e-5)

	scores, err := e.Score(t.Context(), text, text, "2+3=")
	require.NoError(t, err)
	assert.InDelta(t, 1, scores[0], 1e-5)
	assert.Less(t, scores[1], float32(0.99))
}

func TestPoolingRefusals(t *testing.T) {
	ids := []int32{5, 6, 7}
	generator := openTiny(t, Config{})
	embedder := openPooling(t, "qwen3-embedding", Config{MaxModelLen: 8})
	encoder := openPooling(t, "bert-embed", Config{})
	classifier := openPooling(t, "qwen2-classify", Config{})

	for name, c := range map[string]struct {
		call func() error
		want string
	}{
		"generate on an embedder": {func() error {
			_, err := embedder.Generate(t.Context(), Request{PromptTokenIDs: ids})
			return err
		}, `cannot generate: ` + poolingTestdata + `/qwen3-embedding was opened to embed; a checkpoint with an output layer can be opened with Config.Task "generate"`},
		"stream on an encoder": {func() error {
			for _, err := range encoder.Stream(t.Context(), Request{PromptTokenIDs: ids}) {
				return err
			}
			return nil
		}, "cannot generate"},
		"embed on a generator": {func() error {
			_, err := generator.Embed(t.Context(), "x")
			return err
		}, `cannot embed: ` + tinyLlama + ` was opened to generate; open it with Config.Task "embed"`},
		"score on a generator": {func() error {
			_, err := generator.Score(t.Context(), "x", "y")
			return err
		}, "cannot score"},
		"classify on an embedder": {func() error {
			_, err := embedder.Classify(t.Context(), "x")
			return err
		}, "cannot classify: " + poolingTestdata + "/qwen3-embedding was opened to embed; classes need a checkpoint"},
		"embed on a classifier": {func() error {
			_, err := classifier.Embed(t.Context(), "x")
			return err
		}, "cannot embed: " + poolingTestdata + "/qwen2-classify was opened to classify"},
		"score on three classes": {func() error {
			_, err := classifier.Score(t.Context(), "x", "y")
			return err
		}, "it has 3 classes, and a score needs a model with one"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.call()
			var refused *llm.TaskError
			require.ErrorAs(t, err, &refused)
			require.ErrorIs(t, err, llm.ErrUnsupported)
			assert.ErrorContains(t, err, c.want)
		})
	}

	pool := func(e *Engine, q llm.PoolingRequest) error { _, err := e.Pool(t.Context(), q); return err }
	for want, q := range map[string]llm.PoolingRequest{
		"Dimensions is 49, must be in [1, 48], or 0 for all": {
			PromptTokenIDs: ids,
			Pooling:        llm.PoolingParams{Dimensions: 49},
		},
		"Dimensions is -1":         {PromptTokenIDs: ids, Pooling: llm.PoolingParams{Dimensions: -1}},
		"PromptTokenIDs[1] is 259": {PromptTokenIDs: []int32{1, 259}},
		"the prompt is empty":      {PromptTokenIDs: []int32{}},
		"TokenTypeIDs is a list of 3, must be left out: the model tells no segments": {
			PromptTokenIDs: ids,
			TokenTypeIDs:   []int32{0, 0, 1},
		},
		`Pair is a second text, must be "" with PromptTokenIDs`: {PromptTokenIDs: ids, Pair: "x"},
	} {
		err := pool(embedder, q)
		var param *llm.ParamError
		require.ErrorAs(t, err, &param, want)
		assert.ErrorContains(t, err, want)
	}
	assert.ErrorContains(t, pool(encoder, llm.PoolingRequest{PromptTokenIDs: ids, TokenTypeIDs: []int32{0, 2, 1}}),
		"TokenTypeIDs[1] is 2, must be in [0, 2)")
	assert.ErrorContains(t, pool(encoder, llm.PoolingRequest{PromptTokenIDs: ids, TokenTypeIDs: []int32{0}}),
		"as long as PromptTokenIDs (3)")
	assert.ErrorContains(t, pool(classifier, llm.PoolingRequest{
		PromptTokenIDs: ids,
		Pooling:        llm.PoolingParams{Dimensions: 2},
	}), "only an embedding can be cut")
	assert.ErrorIs(t, pool(embedder, llm.PoolingRequest{Prompt: "x"}), llm.ErrNoTokenizer)
	err := pool(embedder, llm.PoolingRequest{PromptTokenIDs: make([]int32, 9)})
	require.ErrorIs(t, err, llm.ErrPromptTooBig)
	assert.ErrorContains(t, err, "9 tokens, at most 8 with MaxModelLen 8")
	require.NoError(t, pool(embedder, llm.PoolingRequest{PromptTokenIDs: make([]int32, 8)}),
		"no place is kept for an output")
}

func TestTaskIsResolved(t *testing.T) {
	open := func(name string, cfg Config) error {
		cfg.Model, cfg.Device, cfg.Logger = filepath.Join(poolingTestdata, name), "cpu", quiet
		e, err := Open(t.Context(), cfg)
		if err == nil {
			require.NoError(t, e.Shutdown(t.Context()))
		}
		return err
	}
	for want, c := range map[string]struct {
		name string
		cfg  Config
	}{
		`Task is "chat", must be "generate", "embed" or "classify"`: {"bert-embed", Config{Task: "chat"}},
		`Task is "generate", must be "embed" for BertModel`: {
			"bert-embed",
			Config{Task: llm.TaskGenerate},
		},
		`Task is "embed", must be "classify" for Qwen2ForSequenceClassification`: {
			"qwen2-classify",
			Config{Task: llm.TaskEmbed},
		},
		`Task is "classify", must be "embed" or "generate"`: {
			"qwen3-embedding",
			Config{Task: llm.TaskClassify},
		},
		`Pooling is "max", must be "last", "mean" or "cls" for Qwen3ForCausalLM`: {
			"qwen3-embedding",
			Config{Pooling: "max"},
		},
		`Pooling is "pooler", must be "last", "mean" or "cls"`: {
			"qwen3-embedding",
			Config{Pooling: "pooler"},
		},
		`Pooling is "mean", must be "cls", which BertForSequence`: {
			"bert-classify",
			Config{Pooling: "mean"},
		},
		`Pooling is "last", must be "" for Task "generate"`: {
			"qwen3-embedding",
			Config{Task: llm.TaskGenerate, Pooling: "last"},
		},
		`OffloadBytes is 1048576, must be 0 with Pooling "mean"`: {
			"bert-embed",
			Config{OffloadBytes: 1 << 20},
		},
	} {
		err := open(c.name, c.cfg)
		var param *llm.ParamError
		require.ErrorAs(t, err, &param, want)
		assert.ErrorContains(t, err, want)
	}
}

// TestPoolingSleeps checks that the vectors are the same after each level of sleep.
func TestPoolingSleeps(t *testing.T) {
	e, g := openPooling(t, "bert-cross-encoder", Config{}), poolingGolden(t, "bert-cross-encoder")[4]
	before, err := e.Pool(t.Context(), g.request(llm.PoolingParams{}))
	require.NoError(t, err)
	for level := 1; level <= 2; level++ {
		require.NoError(t, e.Sleep(t.Context(), level))
		_, err := e.Pool(t.Context(), g.request(llm.PoolingParams{}))
		require.ErrorIs(t, err, llm.ErrSleeping)
		require.NoError(t, e.Wake(t.Context()))
		after, err := e.Pool(t.Context(), g.request(llm.PoolingParams{}))
		require.NoError(t, err)
		assert.Equal(t, before[0].Data, after[0].Data)
	}
}

// TestPoolingUnderLoad has callers pool while others are cancelled, in steps that hold few of them.
func TestPoolingUnderLoad(t *testing.T) {
	e, gs := openPooling(t, "bert-embed", Config{MaxNumSeqs: 3, KVCacheBytes: 1 << 20}), poolingGolden(t, "bert-embed")
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			g := gs[i%len(gs)]
			outs, err := e.Pool(t.Context(), g.request(llm.PoolingParams{}))
			if assert.NoError(t, err) {
				assert.LessOrEqual(t, farthest(t, outs[0].Data, g.MeanNormalized), 1e-4)
			}
		})
	}
	wg.Wait()
	assert.Equal(t, 40, e.Stats().Finished)
	assert.Zero(t, e.Stats().KVBlocksUsed)
}

// TestPoolingThatIsNotReleased plants a pooler that keeps its memory: the shutdown names it.
func TestPoolingThatIsNotReleased(t *testing.T) {
	e, err := Open(t.Context(), Config{
		Model: filepath.Join(poolingTestdata, "bert-embed"), Logger: quiet, Device: "cpu",
		// the KV cache is the first to go
		Faults: []llm.Fault{{Point: llm.FaultShutdown, Action: llm.ActError, After: 1}},
	})
	require.NoError(t, err)
	err = e.Shutdown(t.Context())
	require.ErrorIs(t, err, llm.ErrInjected)
	var leak *LeakError
	require.ErrorAs(t, err, &leak)
	require.Len(t, leak.Holdings, 1)
	assert.Equal(t, "pooling", leak.Holdings[0].Owner)
	assert.ErrorContains(t, err, "release of pooling")
}

// TestGPUPoolEqualsTransformers compares what decoders make on a GPU with transformers: prompts
// alone, and together in steps of few tokens where the pooling allows it.
func TestGPUPoolEqualsTransformers(t *testing.T) {
	if err := cuda.Available(); err != nil {
		t.Skipf("no GPU: %v", err)
	}
	raw := llm.PoolingParams{UseActivation: ptr(false)}
	for _, c := range []struct {
		name, pooling string
		want          func(pooledGolden) []float32
	}{
		{"qwen3-embedding", PoolingLast, func(g pooledGolden) []float32 { return g.Last }},
		{"qwen3-embedding", PoolingMean, func(g pooledGolden) []float32 { return g.Mean }},
		{"qwen3-embedding", PoolingCLS, func(g pooledGolden) []float32 { return g.CLS }},
		{"qwen2-classify", "", func(g pooledGolden) []float32 { return g.Logits }},
		{"qwen3-rerank", "", func(g pooledGolden) []float32 { return g.Logits }},
	} {
		t.Run(c.name+" "+c.pooling, func(t *testing.T) {
			cfg := Config{Model: filepath.Join(poolingTestdata, c.name), Device: "cuda", Pooling: c.pooling}
			if c.pooling == PoolingLast || c.pooling == "" {
				cfg.MaxNumBatchedTokens = 32
			}
			e, gs, most := openTiny(t, cfg), poolingGolden(t, c.name), 0.0
			var reqs []llm.PoolingRequest
			for _, g := range gs {
				reqs = append(reqs, g.request(raw))
				outs, err := e.Pool(t.Context(), g.request(raw))
				require.NoError(t, err)
				most = max(most, farthest(t, outs[0].Data, c.want(g)))
			}
			outs, err := e.Pool(t.Context(), reqs...)
			require.NoError(t, err)
			for i, g := range gs {
				most = max(most, farthest(t, outs[i].Data, c.want(g)))
			}
			t.Logf("largest difference %.2g", most)
			assert.LessOrEqual(t, most, 1e-4)
		})
	}
}

// TestPoolingOnDevices checks that the pooler is there, is one of the parts that no one may reach
// later, and is gone. The stand-in computes nothing: its vectors are zero.
func TestPoolingOnDevices(t *testing.T) { onDevices(t, testPoolingOnDevices) }

func testPoolingOnDevices(t *testing.T, d testDevice) {
	for _, how := range []string{PoolingLast, PoolingMean} {
		e, err := Open(t.Context(), Config{
			Model: fixtures.Bundled(), Device: d.config, Task: llm.TaskEmbed, Pooling: how, Logger: quiet,
		})
		require.NoError(t, err)
		assert.Positive(t, ledger.ByOwner(e.Holdings())["pooling"])
		assert.Contains(t, e.Parts(), "pooler")
		before, err := e.Embed(t.Context(), "The lighthouse", "2+3=")
		require.NoError(t, err)
		require.NoError(t, e.Sleep(t.Context(), 1))
		assert.Zero(t, ledger.ByOwner(e.Holdings())["pooling"])
		require.NoError(t, e.Wake(t.Context()))
		after, err := e.Embed(t.Context(), "The lighthouse", "2+3=")
		require.NoError(t, err)
		for i := range before {
			assert.LessOrEqual(t, farthest(t, after[i], before[i]), 1e-5)
		}
		require.NoError(t, e.Shutdown(t.Context()))
		assert.Empty(t, e.Holdings())
		assert.Empty(t, e.Parts())
	}
}
