package checkpoint

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfigsResolveAsInTransformers(t *testing.T) {
	data, err := os.ReadFile("testdata/configs.json")
	require.NoError(t, err)
	var cases []struct {
		Why    string
		Config json.RawMessage
		Want   struct {
			NumKVHeads, HeadDim, MaxPositions int
			RMSNormEps                        float64
			TieEmbeddings                     bool
			Windows                           []int
			EOS                               []int32
			InvFreq                           []float64
		}
	}
	require.NoError(t, json.Unmarshal(data, &cases))
	require.NotEmpty(t, cases)
	for _, row := range cases {
		t.Run(row.Why, func(t *testing.T) {
			c, err := ParseConfig("config.json", row.Config)
			require.NoError(t, err)
			want := row.Want
			require.Equal(t, want.NumKVHeads, c.NumKVHeads)
			require.Equal(t, want.HeadDim, c.HeadDim)
			require.Equal(t, want.MaxPositions, c.MaxPositions)
			require.InEpsilon(t, want.RMSNormEps, c.RMSNormEps, 1e-12)
			require.Equal(t, want.TieEmbeddings, c.TieEmbeddings)
			require.ElementsMatch(t, want.EOS, c.EOS)
			for layer, window := range want.Windows {
				if window >= c.MaxPositions {
					window = 0 // no sequence outgrows it
				}
				require.Equal(t, window, c.LayerWindow(layer), "layer %d", layer)
			}
			require.InEpsilonSlice(t, want.InvFreq, c.Rope.InvFreq(c.HeadDim), 1e-6)
		})
	}
}

// TestGemma3 reads the forms that transformers 4 and 5 write, and what neither needs to say.
func TestGemma3(t *testing.T) {
	type m = map[string]string
	gemma := m{
		"architectures": `["Gemma3ForCausalLM"]`, "num_hidden_layers": "7", "num_key_value_heads": "1", "sliding_window": "8",
	}
	const local = 1 // in Ropes
	for _, row := range []struct {
		why     string
		fields  m
		windows []int
		ropes   []Rope
	}{
		{"defaults", nil, []int{8, 8, 8, 8, 8, 0, 8}, []Rope{{Type: "default", Theta: 1e6}, {Type: "default", Theta: 1e4}}},
		{
			"transformers 4",
			m{
				"sliding_window_pattern": "2", "rope_theta": "5e5", "rope_local_base_freq": "100",
				"rope_scaling": `{"rope_type":"linear","factor":8.0}`,
			},
			[]int{8, 0, 8, 0, 8, 0, 8},
			[]Rope{{Type: "linear", Theta: 5e5, Factor: 8}, {Type: "default", Theta: 100}},
		},
		{
			"transformers 5",
			m{
				"layer_types": `["full_attention","sliding_attention","full_attention","full_attention","full_attention",
					"full_attention","full_attention"]`,
				"rope_parameters": `{"full_attention":{"rope_type":"linear","factor":8.0,"rope_theta":5e5},
					"sliding_attention":{"rope_type":"default","rope_theta":100}}`,
			},
			[]int{0, 8, 0, 0, 0, 0, 0},
			[]Rope{{Type: "linear", Theta: 5e5, Factor: 8}, {Type: "default", Theta: 100}},
		},
		{
			"a window that no sequence outgrows",
			m{"sliding_window": "4096"},
			[]int{0, 0, 0, 0, 0, 0, 0},
			[]Rope{{Type: "default", Theta: 1e6}, {Type: "default", Theta: 1e4}},
		},
	} {
		t.Run(row.why, func(t *testing.T) {
			fields := maps.Clone(gemma)
			maps.Copy(fields, row.fields)
			c, err := ParseConfig("config.json", config(fields))
			require.NoError(t, err)
			require.Equal(t, row.ropes, c.Ropes())
			sliding := row.windows
			if c.SlidingWindow == 0 {
				sliding = []int{8, 8, 8, 8, 8, 0, 8}
			}
			for i, window := range row.windows {
				require.Equal(t, window, c.LayerWindow(i), "layer %d", i)
				require.Equal(t, sliding[i] > 0, c.LayerRope(i) == local, "layer %d", i)
			}
			require.Equal(t, []any{256, 1.0 / 16, true, float32(1), 8.0, GELUTanh, []int32{1}},
				[]any{c.HeadDim, c.AttentionScale, c.TieEmbeddings, c.NormOffset, c.EmbeddingScale, c.Activation, c.EOS})
		})
	}
	require.Equal(t, []float64{0.125}, Rope{Type: "linear", Theta: 1e6, Factor: 8}.InvFreq(2))
	for key, value := range map[string]string{
		"final_logit_softcapping": "30.0", "attn_logit_softcapping": "50.0", "use_bidirectional_attention": "true",
		"hidden_activation": `"silu"`,
	} {
		fields := maps.Clone(gemma)
		fields[key] = value
		_, err := ParseConfig("config.json", config(fields))
		var e *Error
		require.ErrorAs(t, err, &e, key)
		require.Equal(t, key, e.Field)
	}
}

// TestExperts: which layers have how many, in both forms of the key.
func TestExperts(t *testing.T) {
	type m = map[string]string
	moe := m{"architectures": `["Qwen3MoeForCausalLM"]`, "num_experts": "6", "num_hidden_layers": "5"}
	read := func(change m) (Config, error) {
		fields := maps.Clone(moe)
		maps.Copy(fields, change)
		return ParseConfig("config.json", config(fields))
	}
	layers := func(c Config) (with []int) {
		for i := range c.NumLayers {
			if c.HasExperts(i) {
				with = append(with, i)
			}
		}
		return with
	}
	for _, row := range []struct {
		change m
		want   []int
	}{
		{m{"num_experts_per_tok": "6"}, []int{0, 1, 2, 3, 4}},
		{m{"num_experts_per_tok": "2", "decoder_sparse_step": "2"}, []int{1, 3}},
		{m{"num_experts_per_tok": "2", "mlp_only_layers": "[0, 4, 9]"}, []int{1, 2, 3}},
		{m{"num_experts": "0"}, nil},
		{m{"num_experts": "", "num_local_experts": "8", "mlp_only_layers": "[]"}, []int{0, 1, 2, 3, 4}},
	} {
		c, err := read(row.change)
		require.NoError(t, err)
		require.Equal(t, row.want, layers(c), "%v", row.change)
		require.Equal(t, 768, c.ExpertSize)
		require.False(t, c.NormExperts)
	}
	for key, change := range map[string]m{
		"num_experts_per_tok": {"num_experts_per_tok": "7"},
		"num_experts":         {"num_experts": "1e9"},
		"use_sliding_window":  {"use_sliding_window": "true", "num_experts_per_tok": "1"},
		"mlp_only_layers":     {"mlp_only_layers": "[-1]", "num_experts_per_tok": "1"},
	} {
		_, err := read(change)
		var e *Error
		require.ErrorAs(t, err, &e, key)
		require.Equal(t, key, e.Field)
	}
}

// TestWeights: the list has each name once, and shapes that follow from the configuration.
func TestWeights(t *testing.T) {
	c, err := ParseConfig("config.json", config(map[string]string{
		"architectures": `["Qwen2ForCausalLM"]`, "num_key_value_heads": "2", "num_hidden_layers": "1",
	}))
	require.NoError(t, err)
	var got []string
	for w := range c.Weights() {
		got = append(got, fmt.Sprint(w.Name, c.Shape(w), w.Bias))
	}
	const at = "model.layers.0."
	require.Equal(t, []string{
		"model.embed_tokens.weight[512 64]",
		at + "input_layernorm.weight[64]",
		at + "self_attn.q_proj.weight[64 64]" + at + "self_attn.q_proj.bias",
		at + "self_attn.k_proj.weight[32 64]" + at + "self_attn.k_proj.bias",
		at + "self_attn.v_proj.weight[32 64]" + at + "self_attn.v_proj.bias",
		at + "self_attn.o_proj.weight[64 64]",
		at + "post_attention_layernorm.weight[64]",
		at + "mlp.gate_proj.weight[128 64]",
		at + "mlp.up_proj.weight[128 64]",
		at + "mlp.down_proj.weight[64 128]",
		"model.norm.weight[64]",
		"lm_head.weight[512 64]",
	}, got)
}

// config is a good config.json with fields replaced: "field": JSON text; "" removes it.
func config(fields map[string]string) []byte {
	all := map[string]string{
		"architectures": `["LlamaForCausalLM"]`, "vocab_size": "512", "hidden_size": "64", "intermediate_size": "128",
		"num_hidden_layers": "4", "num_attention_heads": "4", "max_position_embeddings": "1024",
	}
	maps.Copy(all, fields)
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if all[k] != "" {
			parts = append(parts, fmt.Sprintf("%q:%s", k, all[k]))
		}
	}
	return []byte("{" + strings.Join(parts, ",") + "}")
}

func TestBiasesOfEachArchitecture(t *testing.T) {
	for _, row := range []struct {
		why             string
		fields          map[string]string
		qkv, o, mlp, qk bool
	}{
		{"llama has none", nil, false, false, false, false},
		{
			"llama with attention_bias has all four",
			map[string]string{"attention_bias": "true"},
			true, true, false,
			false,
		},
		{"llama with mlp_bias", map[string]string{"mlp_bias": "true"}, false, false, true, false},
		{"mistral ignores both", map[string]string{
			"architectures":       `["MistralForCausalLM"]`,
			"num_key_value_heads": "2", "attention_bias": "true", "mlp_bias": "true",
		}, false, false, false, false},
		{"qwen2 always has q, k and v", map[string]string{
			"architectures":       `["Qwen2ForCausalLM"]`,
			"num_key_value_heads": "2",
		}, true, false, false, false},
		{
			"qwen3 has norms",
			map[string]string{"architectures": `["Qwen3ForCausalLM"]`, "num_key_value_heads": "2"},
			false, false, false, true,
		},
		{
			"the model type stands in for a missing architecture",
			map[string]string{
				"architectures": "", "model_type": `"qwen3"`,
				"num_key_value_heads": "2",
			},
			false, false, false, true,
		},
	} {
		c, err := ParseConfig("config.json", config(row.fields))
		require.NoError(t, err, row.why)
		require.Equal(t, []bool{row.qkv, row.o, row.mlp, row.qk}, []bool{c.QKVBias, c.OBias, c.MLPBias, c.QKNorm},
			row.why)
	}
}

func TestConfigRefusals(t *testing.T) {
	type m = map[string]string
	for _, row := range []struct {
		why         string
		fields      m
		field, says string
	}{
		{"unknown architecture", m{"architectures": `["GPT2LMHeadModel"]`}, "architectures", "got GPT2LMHeadModel, want one of BertForSequenceClassification, BertModel, "},
		{"unknown model type", m{"architectures": "", "model_type": `"gpt2"`}, "model_type", "got gpt2"},
		{"neither", m{"architectures": ""}, "architectures", "not the config.json of a language model"},
		{"quantized", m{"quantization_config": `{"quant_method":"gptq"}`}, "quantization_config", `got "gptq"`},
		{"quantized, unnamed", m{"quantization_config": `{}`}, "quantization_config", "not supported"},
		{
			"unknown rope type",
			m{"rope_scaling": `{"rope_type":"yarn","factor":2}`},
			"rope_scaling.rope_type",
			`got "yarn", want "default", "linear" or "llama3"`,
		},
		{
			"unknown rope type, new form",
			m{"rope_parameters": `{"rope_type":"dynamic"}`},
			"rope_parameters.rope_type",
			`"dynamic"`,
		},
		{
			"unknown rope type, old form",
			m{"rope_scaling": `{"type":"longrope","factor":2}`},
			"rope_scaling.rope_type",
			`"longrope"`,
		},
		{"llama3 rope without factor", m{"rope_scaling": `{"rope_type":"llama3"}`}, "rope_scaling.factor", "missing"},
		{"llama3 rope with crossed factors", m{"rope_scaling": `{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":1}`}, "rope_scaling.high_freq_factor", "got 1, want more than 4"},
		{
			"rope that differs by layer",
			m{"rope_parameters": `{"full_attention":{"rope_theta":1}}`},
			"rope_parameters.full_attention", "differ between layers",
		},
		{"half a rotation", m{"partial_rotary_factor": "0.5"}, "partial_rotary_factor", "0.5"},
		{
			"half a rotation, new form",
			m{"rope_parameters": `{"partial_rotary_factor":0.5}`},
			"rope_parameters.partial_rotary_factor", "0.5",
		},
		{"theta of zero", m{"rope_theta": "0"}, "rope_theta", "out of range"},
		{"another activation", m{"hidden_act": `"gelu"`}, "hidden_act", `got "gelu", want "silu"`},
		{"missing size", m{"hidden_size": ""}, "hidden_size", "missing"},
		{"negative size", m{"vocab_size": "-1"}, "vocab_size", "got -1, want an integer in [1, 16777216]"},
		{"no layers", m{"num_hidden_layers": "0"}, "num_hidden_layers", "got 0"},
		{"absurd layers", m{"num_hidden_layers": "1000000000"}, "num_hidden_layers", "[1, 4096]"},
		{"beyond any integer", m{"vocab_size": "1e300"}, "vocab_size", "got 1e300"},
		{"not whole", m{"vocab_size": "1.5"}, "vocab_size", "got 1.5"},
		{"a string for a number", m{"vocab_size": `"512"`}, "vocab_size", "wrong type"},
		{"a number for a string", m{"hidden_act": "3"}, "hidden_act", "wrong type"},
		{"a bool for a number", m{"rms_norm_eps": "true"}, "rms_norm_eps", "wrong type"},
		{"negative epsilon", m{"rms_norm_eps": "-1e-5"}, "rms_norm_eps", "out of range"},
		{"heads that do not divide", m{"num_attention_heads": "3"}, "hidden_size", "want a multiple of 3"},
		{
			"more heads than width",
			m{"num_attention_heads": "128", "hidden_size": "64"},
			"hidden_size",
			"want a multiple of 128",
		},
		{"odd head", m{"head_dim": "15"}, "head_dim", "got 15, want an even number"},
		{
			"key heads that do not divide",
			m{"num_key_value_heads": "3"},
			"num_key_value_heads",
			"got 3, want a divisor of 4",
		},
		{
			"end outside the vocabulary",
			m{"eos_token_id": "[1, 512]"},
			"eos_token_id",
			"got 512, want a token id in [0, 512)",
		},
		{
			"an end that is null inside a list",
			m{"eos_token_id": "[1, null]"},
			"eos_token_id",
			"wrong type: got [1, null]",
		},
		{
			"a name that would paint the terminal",
			m{"architectures": `["\u001b[31mred"]`},
			"architectures",
			`got \x1b[31mred`,
		},
		{"a named end", m{"eos_token_id": `"</s>"`}, "eos_token_id", "wrong type"},
		{"unknown dtype", m{"torch_dtype": `"int8"`}, "torch_dtype", `got "int8", want float32, bfloat16 or float16`},
		{"negative window", m{
			"architectures": `["MistralForCausalLM"]`, "num_key_value_heads": "2",
			"sliding_window": "-5",
		}, "sliding_window", "got -5"},
		{"layer types of another count", m{"architectures": `["Qwen2ForCausalLM"]`, "num_key_value_heads": "2", "use_sliding_window": "true", "sliding_window": "8", "layer_types": `["full_attention"]`}, "layer_types", "got 1"},
		{"unknown layer type", m{"architectures": `["Qwen2ForCausalLM"]`, "num_key_value_heads": "2", "use_sliding_window": "true", "sliding_window": "8", "layer_types": `["full_attention","full_attention","odd","full_attention"]`}, "layer_types", `"odd"`},
	} {
		t.Run(row.why, func(t *testing.T) {
			_, err := ParseConfig("m/config.json", config(row.fields))
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, "m/config.json", e.File)
			require.Equal(t, row.field, e.Field)
			require.Contains(t, err.Error(), row.says)
			t.Log(err)
		})
	}
	for _, text := range []string{"", "null", "[]", "{", `"x"`, "\x00"} {
		_, err := ParseConfig("m/config.json", []byte(text))
		var e *Error
		require.ErrorAs(t, err, &e, "%q", text)
		require.Contains(t, err.Error(), "not a JSON object")
	}
}

func TestGeneration(t *testing.T) {
	eos, err := parseGeneration("g.json", []byte(`{"eos_token_id":[2,7],"do_sample":true,"top_p":1.5}`), 512)
	require.NoError(t, err)
	require.Equal(t, []int32{2, 7}, eos)
	eos, err = parseGeneration("g.json", []byte(`{"eos_token_id":null}`), 512)
	require.NoError(t, err)
	require.Nil(t, eos)
	_, err = parseGeneration("g.json", []byte(`{"eos_token_id":512}`), 512)
	require.EqualError(t, err,
		"checkpoint: g.json: eos_token_id: out of range: got 512, want a token id in [0, 512), or a list of them")
}
