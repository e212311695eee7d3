package checkpoint

import (
	"maps"
	"slices"
)

// architecture is what a class of transformers fixes outside config.json. A new class that differs
// from these by a flag is a line in architectures and the flag's use in [Config.Weights] or in the
// runners.
type architecture struct {
	modelType      string
	maxPositions   int
	eos            int32 // -1: none
	headDim        int   // default; 0 is hidden_size / num_attention_heads
	kvHeads        int   // when the key is missing; 0 is num_attention_heads
	tied           bool  // when the key is missing
	qkvBias        bool
	attentionBias  bool // attention_bias adds a bias to q, k, v and o
	mlpBias        bool // mlp_bias is honoured
	qkNorm         bool
	postNorms      bool
	normOffset     float32
	scaleEmbedding bool
	activation     Activation
	queryScalar    float64  // when query_pre_attn_scalar is missing; 0: the class has none
	ropeTheta      float64  // when the key is missing; 0 is 10,000
	localTheta     float64  // when the key is missing; 0: sliding layers have no embedding of their own
	slidingWindow  int      // when the key is missing; 0: the class has no window at all
	slidingOptedIn bool     // only with use_sliding_window, from layer max_window_layers on, or as layer_types says
	fullEvery      int      // every so many layers one has full attention, unless layer_types says otherwise; 0: none
	experts        bool     // layers may be mixtures of experts
	refused        []string // keys that no runner honours; null and false are no refusal
	head           Head
	encoder        bool // of BERT's kind
}

// Source: configuration_*.py and modeling_*.py of transformers 5.12.
var architectures = withHeads(map[string]architecture{
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
	"Qwen3MoeForCausalLM": {
		modelType: "qwen3_moe", maxPositions: 32768, eos: -1, kvHeads: 4, attentionBias: true, qkNorm: true, experts: true,
		refused: []string{"use_sliding_window"},
	},
	"Gemma3ForCausalLM": {
		modelType: "gemma3_text", maxPositions: 131072, eos: 1, kvHeads: 4, headDim: 256, tied: true,
		attentionBias: true, qkNorm: true, postNorms: true, normOffset: 1, scaleEmbedding: true,
		activation: GELUTanh, queryScalar: 256, ropeTheta: 1e6, localTheta: 10000, slidingWindow: 4096, fullEvery: 6,
		refused: []string{"attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"},
	},
	"BertModel": {modelType: "bert", maxPositions: 512, eos: -1, encoder: true, head: NoHead},
	"BertForSequenceClassification": {
		modelType: "bert", maxPositions: 512, eos: -1, encoder: true, head: ScoreHead,
	},
})

// withHeads adds to classes …ForCausalLM their siblings: the same decoder without an output layer,
// …Model, and with a layer of scores, …ForSequenceClassification.
func withHeads(all map[string]architecture) map[string]architecture {
	for _, family := range []string{"Llama", "Mistral", "Qwen2", "Qwen3"} {
		a := all[family+"ForCausalLM"]
		a.head = NoHead
		all[family+"Model"] = a
		a.head = ScoreHead
		all[family+"ForSequenceClassification"] = a
	}
	return all
}

// Architectures lists the architectures that can be read, sorted.
func Architectures() []string { return slices.Sorted(maps.Keys(architectures)) }

// ModelType is the model_type of an architecture's config.json, or "" if it is not one of
// [Architectures].
func ModelType(architecture string) string { return architectures[architecture].modelType }
