package checkpoint

import (
	"fmt"
	"math"
	"strconv"
)

// Head is what stands on the hidden states of a model.
type Head int

// The heads.
const (
	OutputHead Head = iota // the output layer: logits of the next token
	NoHead                 // nothing: the hidden states are the result
	ScoreHead              // a number per class, from one hidden state
)

// UsePooling makes a model of the checkpoint that returns hidden states, whatever head it has: those
// that pooling names, through the pooler of an encoder or as they are.
func (c *Checkpoint) UsePooling(pooling string, pooler bool) {
	c.Config.Head, c.Config.Pooling, c.Config.UsePooler = NoHead, pooling, pooler
}

const maxLabels = 1 << 16

// head reads what a class's head needs.
func (f *fields) head(c *Config, a architecture) {
	c.Head, c.Pooling, c.PadTokenID = a.head, "last", -1
	if a.encoder {
		c.Pooling = "cls"
	}
	if ids := f.ids("pad_token_id", c.VocabSize); len(ids) == 1 {
		c.PadTokenID = ids[0]
	}
	if a.head != ScoreHead {
		return
	}
	c.UsePooler = a.encoder
	c.Problem = f.string("problem_type", "")
	switch c.Problem {
	case "", "regression", "single_label_classification", "multi_label_classification":
	default:
		f.fail("problem_type", "unknown", strconv.Quote(c.Problem),
			"regression, single_label_classification or multi_label_classification")
	}
	var names map[string]string
	f.decode("id2label", &names, "an object of names by class")
	n := len(names)
	if n == 0 {
		n = f.integer("num_labels", 2, 1, maxLabels)
	}
	if n > maxLabels {
		f.fail("id2label", "too many classes", strconv.Itoa(n), fmt.Sprintf("at most %d", maxLabels))
		return
	}
	c.Labels = make([]string, n)
	for i := range c.Labels {
		name, ok := names[strconv.Itoa(i)]
		if !ok && len(names) > 0 {
			f.fail("id2label", "classes are not numbered from 0", fmt.Sprintf("%d classes, none is %d", n, i),
				fmt.Sprintf("0 to %d", n-1))
		}
		if !ok {
			name = "LABEL_" + strconv.Itoa(i)
		}
		c.Labels[i] = name
	}
}

// encoderConfig reads the config.json of a class of BERT's kind.
func (f *fields) encoderConfig(name string, a architecture) Config {
	c := Config{
		Architecture:     name,
		VocabSize:        f.required("vocab_size", maxVocab),
		HiddenSize:       f.required("hidden_size", maxWidth),
		IntermediateSize: f.required("intermediate_size", maxWidth),
		NumLayers:        f.required("num_hidden_layers", maxLayers),
		NumHeads:         f.required("num_attention_heads", maxHeads),
		MaxPositions:     f.integer("max_position_embeddings", a.maxPositions, 1, maxPositions),
		TypeVocab:        f.integer("type_vocab_size", 2, 1, maxWidth),
		RMSNormEps:       f.number("layer_norm_eps", 1e-12, 0, 1),
		Encoder:          true,
		Activation:       GELU,
		QKVBias:          true,
		OBias:            true,
		MLPBias:          true,
	}
	if c.HiddenSize%c.NumHeads != 0 {
		f.fail("hidden_size", "not a multiple of num_attention_heads", strconv.Itoa(c.HiddenSize),
			fmt.Sprintf("a multiple of %d", c.NumHeads))
		return c
	}
	c.NumKVHeads, c.HeadDim = c.NumHeads, c.HiddenSize/c.NumHeads
	if c.HeadDim > maxHeadDim {
		f.fail("hidden_size", "heads are too large", strconv.Itoa(c.HeadDim), fmt.Sprintf("at most %d", maxHeadDim))
	}
	c.AttentionScale = 1 / math.Sqrt(float64(c.HeadDim))
	if act := f.string("hidden_act", "gelu"); act != "gelu" {
		f.fail("hidden_act", "unknown activation", strconv.Quote(act), `"gelu"`)
	}
	if kind := f.string("position_embedding_type", "absolute"); kind != "absolute" {
		f.fail("position_embedding_type", "not supported", strconv.Quote(kind), `"absolute"`)
	}
	for _, key := range []string{"is_decoder", "add_cross_attention"} {
		if f.bool(key) {
			f.fail(key, "not supported", "true", "false")
		}
	}
	c.EOS = f.eos(a, c.VocabSize)
	f.checkDType()
	return c
}
