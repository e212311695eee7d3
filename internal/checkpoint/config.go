package checkpoint

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Config is a model's config.json, resolved: every default of the architecture is filled in, as
// transformers 5 has it.
type Config struct {
	Architecture string // a class of transformers, one of [Architectures]

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
	LocalRope        *Rope // of the layers with sliding attention; nil: Rope

	TieEmbeddings bool // lm_head is embed_tokens
	QKVBias       bool // q_proj, k_proj and v_proj have a bias
	OBias         bool // o_proj has
	MLPBias       bool // gate_proj, up_proj and down_proj have
	QKNorm        bool // q_norm and k_norm (RMS over HeadDim) before the rotation
	PostNorms     bool // the results of attention and MLP are normalized before they are added

	Activation     Activation // of the MLP's gate
	AttentionScale float64    // scores are multiplied by it
	NormOffset     float32    // norms multiply by weight + NormOffset
	EmbeddingScale float64    // embeddings are multiplied by it: 1 or √HiddenSize, not rounded as in 16 bits

	// Of a mixture of experts: in layers that have them, each token takes the MLPs of a few.
	NumExperts      int    // 0: no layer has experts
	ExpertsPerToken int    // at most NumExperts
	ExpertSize      int    // as IntermediateSize, of an expert
	NormExperts     bool   // the weights of a token's experts add up to 1
	experts         []bool // per layer

	// SlidingWindow is the number of positions that a token attends to, itself included (position i
	// sees j > i − SlidingWindow), in the layers for which LayerWindow returns it; 0 means full
	// attention everywhere. A window that no sequence can outgrow is 0 here.
	SlidingWindow int
	sliding       []bool // per layer; nil means all

	EOS []int32

	// Encoder says that the model is one of BERT's kind: a row attends to all others, positions and
	// token types have embeddings, norms subtract the mean and follow what they normalize, every
	// matrix has a bias, the MLP has no gate. RMSNormEps is its layer_norm_eps.
	Encoder   bool
	TypeVocab int // token types of an encoder

	Head       Head
	Pooling    string   // "last", "mean" or "cls": the hidden states that a head other than OutputHead reads
	UsePooler  bool     // an encoder's dense layer with tanh between the first token and what reads it
	Labels     []string // of the classes, of a ScoreHead
	Problem    string   // problem_type, of a ScoreHead; ""
	PadTokenID int32    // -1: none

	bare bool // tensors are named without the prefix of the decoder or encoder, "model." or "bert."
}

// Activation is the function that the MLP applies to its gate.
type Activation int

// The activations of config.json: "silu" and "gelu_pytorch_tanh".
const (
	SiLU Activation = iota
	GELUTanh
	GELU // with the error function, an encoder's
)

// LayerWindow is the sliding window of a layer, or 0 for full attention.
func (c *Config) LayerWindow(layer int) int {
	if c.slides(layer) {
		return c.SlidingWindow
	}
	return 0
}

func (c *Config) slides(layer int) bool { return c.sliding == nil || c.sliding[layer] }

// HasExperts reports whether a layer has experts in the place of one MLP.
func (c *Config) HasExperts(layer int) bool { return c.experts != nil && c.experts[layer] }

// Ropes lists the rotary embeddings of the model; LayerRope is an index into it.
func (c *Config) Ropes() []Rope {
	if c.Encoder {
		return nil
	}
	if c.LocalRope == nil {
		return []Rope{c.Rope}
	}
	return []Rope{c.Rope, *c.LocalRope}
}

// LayerRope is the index in Ropes of a layer's rotary embedding.
func (c *Config) LayerRope(layer int) int {
	if c.LocalRope != nil && c.slides(layer) {
		return 1
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
	maxExperts   = 1 << 12
	maxPositions = 1 << 30
)

// ReadConfig reads and checks a config.json.
func ReadConfig(path string) (Config, error) {
	data, err := readJSON(path)
	if err != nil {
		return Config{}, err
	}
	return ParseConfig(path, data)
}

// ParseConfig reads and checks the contents of a config.json; path is its name in errors.
func ParseConfig(path string, data []byte) (Config, error) {
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
	a := architectures[name]
	c := Config{}
	if a.encoder {
		c = f.encoderConfig(name, a)
	} else {
		c = f.config(name, a)
	}
	f.head(&c, a)
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
		if a.modelType == modelType && (a.head == OutputHead || a.encoder && a.head == NoHead) {
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
		TieEmbeddings:    a.tied,
		QKVBias:          a.qkvBias,
		QKNorm:           a.qkNorm,
		PostNorms:        a.postNorms,
		NormOffset:       a.normOffset,
		EmbeddingScale:   1,
	}
	if a.scaleEmbedding {
		c.EmbeddingScale = math.Sqrt(float64(c.HiddenSize))
	}
	if f.has("tie_word_embeddings") {
		c.TieEmbeddings = f.bool("tie_word_embeddings")
	}
	if a.attentionBias {
		c.OBias = f.bool("attention_bias")
		c.QKVBias = c.QKVBias || c.OBias
	}
	if a.mlpBias {
		c.MLPBias = f.bool("mlp_bias")
	}
	f.activation(&c, a)
	f.heads(&c, a)
	f.window(&c, a)
	f.ropes(&c, a)
	if a.experts {
		f.experts(&c)
	}
	f.refuse(a)
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
	scalar := float64(c.HeadDim)
	if a.queryScalar > 0 {
		scalar = f.number("query_pre_attn_scalar", a.queryScalar, 1e-6, 1e6)
	}
	c.AttentionScale = 1 / math.Sqrt(scalar)
}

// experts reads which layers have how many experts: transformers 5 writes num_local_experts.
func (f *fields) experts(c *Config) {
	key := "num_experts"
	if !f.has(key) {
		key = "num_local_experts"
	}
	c.NumExperts = f.integer(key, 128, 0, maxExperts)
	c.ExpertsPerToken = f.integer("num_experts_per_tok", 8, 1, maxExperts)
	c.ExpertSize = f.integer("moe_intermediate_size", 768, 1, maxWidth)
	c.NormExperts = f.bool("norm_topk_prob")
	step := f.integer("decoder_sparse_step", 1, 1, maxLayers)
	dense := f.ids("mlp_only_layers", maxLayers)
	c.experts = make([]bool, c.NumLayers) // bounded by maxLayers
	for i := range c.experts {
		c.experts[i] = c.NumExperts > 0 && (i+1)%step == 0 && !slices.Contains(dense, int32(i))
	}
	if c.NumExperts > 0 && c.ExpertsPerToken > c.NumExperts {
		f.fail("num_experts_per_tok", "more than there are", strconv.Itoa(c.ExpertsPerToken),
			fmt.Sprintf("at most %s, %d", key, c.NumExperts))
	}
}

// activation reads the MLP's activation, of which each class has one.
func (f *fields) activation(c *Config, a architecture) {
	key, want := "hidden_act", "silu"
	if c.Activation = a.activation; c.Activation == GELUTanh {
		key, want = "hidden_activation", "gelu_pytorch_tanh"
	}
	if act := f.string(key, want); act != want {
		f.fail(key, "unknown activation", strconv.Quote(act), strconv.Quote(want))
	}
}

// refuse fails on keys of the class that change what it computes and that no runner implements.
func (f *fields) refuse(a architecture) {
	for _, key := range a.refused {
		if on := string(f.raw[key]); f.has(key) && on != "false" {
			f.fail(key, "not supported", clip(on), "null or no such key")
		}
	}
}

// window fills in the sliding window. Every layer of Mistral has it (a missing key means 4096, null
// means none); elsewhere layer_types says which layers have it, or else, in the Qwen classes, those
// from max_window_layers on, and in Gemma all but every sixth (sliding_window_pattern).
func (f *fields) window(c *Config, a architecture) {
	if a.fullEvery > 0 {
		every := f.integer("sliding_window_pattern", a.fullEvery, 1, maxLayers)
		f.layerTypes(c, func(layer int) bool { return (layer+1)%every != 0 })
	}
	if a.slidingWindow == 0 || f.isNull("sliding_window") || a.slidingOptedIn && !f.bool("use_sliding_window") {
		return
	}
	c.SlidingWindow = f.integer("sliding_window", a.slidingWindow, 1, maxPositions)
	if c.SlidingWindow >= c.MaxPositions {
		c.SlidingWindow = 0
		return
	}
	if a.slidingOptedIn {
		from := f.integer("max_window_layers", 28, 0, maxPositions)
		f.layerTypes(c, func(layer int) bool { return layer >= from })
	}
}

// layerTypes fills in which layers have sliding attention: what layer_types says, or else def.
func (f *fields) layerTypes(c *Config, def func(layer int) bool) {
	types := f.strings("layer_types")
	if types != nil && len(types) != c.NumLayers {
		f.fail("layer_types", "wrong length", strconv.Itoa(len(types)),
			fmt.Sprintf("num_hidden_layers, %d", c.NumLayers))
		return
	}
	c.sliding = make([]bool, c.NumLayers) // bounded by maxLayers
	for i := range c.sliding {
		c.sliding[i] = def(i)
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
