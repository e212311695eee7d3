package checkpoint

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Config is a model's config.json, resolved: every default of the architecture is filled in, as
// transformers 5 has it.
type Config struct {
	Architecture string // "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM" or "Qwen3ForCausalLM"

	VocabSize        int
	HiddenSize       int
	IntermediateSize int // of the MLP
	NumLayers        int
	NumHeads         int // query heads
	NumKVHeads       int // divides NumHeads
	HeadDim          int // even; NumHeads*HeadDim need not be HiddenSize
	MaxPositions     int // max_position_embeddings
	RMSNormEps       float64
	Rope             Rope

	TieEmbeddings bool // lm_head is embed_tokens
	QKVBias       bool // q_proj, k_proj and v_proj have a bias
	OBias         bool // o_proj has
	MLPBias       bool // gate_proj, up_proj and down_proj have
	QKNorm        bool // q_norm and k_norm (RMS over HeadDim) before the rotation

	// SlidingWindow is the number of positions that a token attends to, itself included (position i
	// sees j > i − SlidingWindow), in the layers for which LayerWindow gives it; 0 means full
	// attention everywhere. A window that no sequence can outgrow is given as 0.
	SlidingWindow int
	sliding       []bool // per layer; nil means all

	EOS []int32
}

// LayerWindow is the sliding window of a layer, or 0 for full attention.
func (c *Config) LayerWindow(layer int) int {
	if c.SlidingWindow > 0 && (c.sliding == nil || c.sliding[layer]) {
		return c.SlidingWindow
	}
	return 0
}

// Bounds on what a config.json may ask for, well above any published model. They keep products of
// two of them inside an int64.
const (
	maxVocab     = 1 << 24
	maxWidth     = 1 << 20 // hidden and intermediate size
	maxLayers    = 1 << 12
	maxHeads     = 1 << 12
	maxHeadDim   = 1 << 12
	maxPositions = 1 << 30
)

// architecture is what a class of transformers fixes outside config.json.
type architecture struct {
	modelType      string
	maxPositions   int
	eos            int32 // -1: none
	headDim        int   // default; 0 is hidden_size / num_attention_heads
	kvHeads        int   // when the key is missing; 0 is num_attention_heads
	qkvBias        bool
	attentionBias  bool // attention_bias adds a bias to q, k, v and o
	mlpBias        bool // mlp_bias is honoured
	qkNorm         bool
	slidingWindow  int  // when the key is missing; 0: the class has no window at all
	slidingOptedIn bool // only with use_sliding_window, from layer max_window_layers on, or as layer_types says
}

// Source: configuration_*.py and modeling_*.py of transformers 5.12.
var architectures = map[string]architecture{
	"LlamaForCausalLM": {
		modelType: "llama", maxPositions: 2048, eos: 2, attentionBias: true, mlpBias: true,
	},
	"MistralForCausalLM": {
		modelType: "mistral", maxPositions: 4096 * 32, eos: 2, kvHeads: 8, slidingWindow: 4096,
	},
	"Qwen2ForCausalLM": {
		modelType: "qwen2", maxPositions: 32768, eos: -1, kvHeads: 32, qkvBias: true, slidingWindow: 4096, slidingOptedIn: true,
	},
	"Qwen3ForCausalLM": {
		modelType: "qwen3", maxPositions: 32768, eos: -1, kvHeads: 32, headDim: 128, attentionBias: true, qkNorm: true,
		slidingWindow: 4096, slidingOptedIn: true,
	},
}

// ReadConfig reads and checks a config.json.
func ReadConfig(path string) (Config, error) {
	data, err := readJSON(path)
	if err != nil {
		return Config{}, err
	}
	return parseConfig(path, data)
}

func parseConfig(path string, data []byte) (Config, error) {
	f, err := parseFields(path, data)
	if err != nil {
		return Config{}, err
	}
	name := f.architecture()
	if f.has("quantization_config") {
		got := "an unnamed scheme"
		if q := f.object("quantization_config"); q != nil {
			got = strconv.Quote(q.string("quant_method", "an unnamed scheme"))
		}
		f.fail("quantization_config", "quantized weights are not supported", got, weightTypes+" weights without it")
	}
	if *f.err != nil {
		return Config{}, *f.err
	}
	c := f.config(name, architectures[name])
	return c, *f.err
}

// architecture finds the name in architectures, or else by model_type.
func (f *fields) architecture() string {
	names := f.strings("architectures")
	for _, name := range names {
		if _, ok := architectures[name]; ok {
			return name
		}
	}
	known := oneOf(slices.Sorted(maps.Keys(architectures)))
	if len(names) > 0 {
		f.fail("architectures", "unknown architecture", strings.Join(names, ", "), known)
		return ""
	}
	modelType := f.string("model_type", "")
	for name, a := range architectures {
		if a.modelType == modelType {
			return name
		}
	}
	if modelType == "" {
		f.fail("architectures", "missing (and so is model_type): not the config.json of a language model", "", known)
	} else {
		f.fail("model_type", "unknown, and architectures is missing", modelType, known)
	}
	return ""
}

func (f *fields) config(name string, a architecture) Config {
	c := Config{
		Architecture:     name,
		VocabSize:        f.required("vocab_size", maxVocab),
		HiddenSize:       f.required("hidden_size", maxWidth),
		IntermediateSize: f.required("intermediate_size", maxWidth),
		NumLayers:        f.required("num_hidden_layers", maxLayers),
		NumHeads:         f.required("num_attention_heads", maxHeads),
		MaxPositions:     f.integer("max_position_embeddings", a.maxPositions, 1, maxPositions),
		RMSNormEps:       f.number("rms_norm_eps", 1e-6, 0, 1),
		TieEmbeddings:    f.bool("tie_word_embeddings"),
		QKVBias:          a.qkvBias,
		QKNorm:           a.qkNorm,
	}
	if a.attentionBias {
		c.OBias = f.bool("attention_bias")
		c.QKVBias = c.QKVBias || c.OBias
	}
	if a.mlpBias {
		c.MLPBias = f.bool("mlp_bias")
	}
	if act := f.string("hidden_act", "silu"); act != "silu" {
		f.fail("hidden_act", "unknown activation", strconv.Quote(act), `"silu"`)
	}
	f.heads(&c, a)
	f.window(&c, a)
	c.Rope = f.rope(c.MaxPositions)
	c.EOS = f.eos(a, c.VocabSize)
	f.checkDType()
	return c
}

func (f *fields) heads(c *Config, a architecture) {
	kv := c.NumHeads
	if a.kvHeads > 0 && !f.isNull("num_key_value_heads") {
		kv = a.kvHeads
	}
	c.NumKVHeads = f.integer("num_key_value_heads", kv, 1, maxHeads)
	if c.NumHeads%c.NumKVHeads != 0 {
		f.fail("num_key_value_heads", "does not divide num_attention_heads", strconv.Itoa(c.NumKVHeads),
			fmt.Sprintf("a divisor of %d", c.NumHeads))
	}
	def := a.headDim
	if def == 0 {
		def = c.HiddenSize / c.NumHeads
		if !f.has("head_dim") && c.HiddenSize%c.NumHeads != 0 {
			f.fail("hidden_size", "not a multiple of num_attention_heads, and head_dim is missing",
				strconv.Itoa(c.HiddenSize), fmt.Sprintf("a multiple of %d", c.NumHeads))
		}
	}
	c.HeadDim = f.integer("head_dim", def, 2, maxHeadDim)
	if c.HeadDim%2 != 0 || c.HeadDim < 2 || c.HeadDim > maxHeadDim {
		f.fail("head_dim", "rotary embeddings cannot turn it", strconv.Itoa(c.HeadDim),
			fmt.Sprintf("an even number in [2, %d]", maxHeadDim))
	}
}

// window fills in the sliding window. Every layer of Mistral has it (a missing key means 4096, null
// means none); in the Qwen classes layer_types says which layers have it, or else those from
// max_window_layers on.
func (f *fields) window(c *Config, a architecture) {
	if a.slidingWindow == 0 || f.isNull("sliding_window") || a.slidingOptedIn && !f.bool("use_sliding_window") {
		return
	}
	c.SlidingWindow = f.integer("sliding_window", a.slidingWindow, 1, maxPositions)
	if c.SlidingWindow >= c.MaxPositions {
		c.SlidingWindow = 0
		return
	}
	if !a.slidingOptedIn {
		return
	}
	from := f.integer("max_window_layers", 28, 0, maxPositions)
	types := f.strings("layer_types")
	if types != nil && len(types) != c.NumLayers {
		f.fail("layer_types", "wrong length", strconv.Itoa(len(types)),
			fmt.Sprintf("num_hidden_layers, %d", c.NumLayers))
		return
	}
	c.sliding = make([]bool, c.NumLayers) // bounded by maxLayers
	for i := range c.sliding {
		c.sliding[i] = i >= from
		if types == nil {
			continue
		}
		switch c.sliding[i] = types[i] == "sliding_attention"; {
		case !c.sliding[i] && types[i] != "full_attention":
			f.fail("layer_types", "unknown layer type", strconv.Quote(types[i]), "full_attention or sliding_attention")
		}
	}
}

// eos reads the ids that end a sequence; null means none, a missing key the class's default.
func (f *fields) eos(a architecture, vocab int) []int32 {
	if _, set := f.raw["eos_token_id"]; set || a.eos < 0 {
		return f.ids("eos_token_id", vocab)
	}
	return []int32{a.eos}
}

// checkDType reads dtype (transformers 5) or torch_dtype (before). The tensors have the last word.
func (f *fields) checkDType() {
	key := "dtype"
	if !f.has(key) {
		key = "torch_dtype"
	}
	name := f.string(key, "")
	if !slices.Contains([]string{"", "float32", "bfloat16", "float16"}, strings.TrimPrefix(name, "torch.")) {
		f.fail(key, "unsupported type", strconv.Quote(name), "float32, bfloat16 or float16")
	}
}
