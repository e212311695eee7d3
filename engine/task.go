package engine

import (
	"fmt"
	"strings"

	"github.com/enginetest/enginetest/engine/internal/pooling"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/llm"
)

// Poolings of Config.Pooling. PoolingPooler is [PoolingCLS] through the dense layer and tanh that
// encoders of BERT's kind have for it.
const (
	PoolingLast   = string(pooling.Last)
	PoolingMean   = string(pooling.Mean)
	PoolingCLS    = string(pooling.CLS)
	PoolingPooler = "pooler"
)

// resolveTask fills in what the engine does with a checkpoint, and readies the checkpoint for it.
//
// A model with a layer of scores classifies. A model without an output layer embeds, and so does
// one with the files of sentence-transformers. Any other generates, unless Config.Task says
// otherwise.
func (c Config) resolveTask(ckpt *checkpoint.Checkpoint) (Config, llm.PoolingInfo, error) {
	st, err := checkpoint.ReadPooling(ckpt.Dir, ckpt.Config.HiddenSize)
	if err != nil {
		return c, llm.PoolingInfo{}, err
	}
	def, others := llm.TaskGenerate, []llm.Task{llm.TaskEmbed}
	switch {
	case ckpt.Config.Head == checkpoint.ScoreHead:
		def, others = llm.TaskClassify, nil
	case ckpt.Config.Head == checkpoint.NoHead:
		def, others = llm.TaskEmbed, nil
	case st.Type != "":
		def, others = llm.TaskEmbed, []llm.Task{llm.TaskGenerate}
	}
	if c.Task == "" {
		c.Task = def
	}
	if c.Task != def && (len(others) == 0 || c.Task != others[0]) {
		want := fmt.Sprintf("%q", def)
		for _, t := range others {
			want += fmt.Sprintf(" or %q", t)
		}
		return c, llm.PoolingInfo{}, paramError("Task", fmt.Sprintf("%q", c.Task), want+" for "+ckpt.Config.Architecture)
	}
	switch c.Task {
	case llm.TaskGenerate:
		if c.Pooling != "" {
			return c, llm.PoolingInfo{}, paramError("Pooling", fmt.Sprintf("%q", c.Pooling), `"" for Task "generate"`)
		}
		return c, llm.PoolingInfo{}, nil
	case llm.TaskClassify:
		return c.resolveClasses(ckpt)
	}
	return c.resolveEmbedding(ckpt, st)
}

func (c Config) resolveClasses(ckpt *checkpoint.Checkpoint) (Config, llm.PoolingInfo, error) {
	m := &ckpt.Config
	if c.Pooling != "" && c.Pooling != m.Pooling {
		return c, llm.PoolingInfo{}, paramError("Pooling", fmt.Sprintf("%q", c.Pooling),
			fmt.Sprintf("%q, which %s was trained with", m.Pooling, m.Architecture))
	}
	c.Pooling = m.Pooling
	info := llm.PoolingInfo{
		Task: llm.TaskClassify, Pooling: c.Pooling, Dimensions: len(m.Labels), Labels: m.Labels,
		Activation: string(activationOf(m)),
	}
	c, err := c.wholePrompts(m)
	return c, info, err
}

// activationOf is what turns logits of classes into probabilities, as in transformers' pipelines
// and vLLM: a single class, or several that do not exclude each other, have one each.
func activationOf(m *checkpoint.Config) pooling.Activation {
	switch {
	case m.Problem == "regression":
		return pooling.None
	case m.Problem == "multi_label_classification" || len(m.Labels) == 1:
		return pooling.Sigmoid
	}
	return pooling.Softmax
}

func (c Config) resolveEmbedding(ckpt *checkpoint.Checkpoint, st checkpoint.Pooling) (Config, llm.PoolingInfo, error) {
	m := &ckpt.Config
	if c.Pooling == "" {
		c.Pooling = st.Type
	}
	if c.Pooling == "" {
		c.Pooling = m.Pooling
	}
	typ := pooling.Type(c.Pooling)
	usePooler := c.Pooling == PoolingPooler
	if usePooler {
		typ = pooling.CLS
	}
	if !typ.Valid() || usePooler && !m.Encoder {
		want := `"last", "mean" or "cls"`
		if m.Encoder {
			want = `"last", "mean", "cls" or "pooler"`
		}
		return c, llm.PoolingInfo{}, paramError("Pooling", fmt.Sprintf("%q", c.Pooling), want+" for "+m.Architecture)
	}
	ckpt.UsePooling(string(typ), usePooler)
	if st.MaxTokens > 0 && c.MaxModelLen == 0 {
		c.MaxModelLen = min(st.MaxTokens, m.MaxPositions)
	}
	info := llm.PoolingInfo{
		Task: llm.TaskEmbed, Pooling: c.Pooling, Dimensions: m.HiddenSize,
		Normalized: st.Type == "" || st.Normalize, // as in vLLM
	}
	c, err := c.wholePrompts(m)
	return c, info, err
}

// wholePrompts turns off what would compute a part of a prompt where all of it is needed at once.
func (c Config) wholePrompts(m *checkpoint.Config) (Config, error) {
	if !m.Encoder && !pooling.Type(m.Pooling).Whole() {
		return c, nil
	}
	if c.OffloadBytes > 0 {
		return c, paramError("OffloadBytes", c.OffloadBytes,
			fmt.Sprintf("0 with Pooling %q of %s: each prompt is computed as a whole", c.Pooling, m.Architecture))
	}
	if c.Connector.Path != "" {
		return c, paramError("Connector.Path", fmt.Sprintf("%q", c.Connector.Path),
			fmt.Sprintf(`"" with Pooling %q of %s: each prompt is computed as a whole`, c.Pooling, m.Architecture))
	}
	c.DisablePrefixCache, c.DisableChunkedPrefill = true, true
	return c, nil
}

// checkTask refuses what no checkpoint allows.
func (c Config) checkTask() error {
	switch c.Task {
	case "", llm.TaskGenerate, llm.TaskEmbed, llm.TaskClassify:
		return nil
	}
	return paramError("Task", fmt.Sprintf("%q", c.Task), `"generate", "embed" or "classify", or "" for the checkpoint's`)
}

// taskError refuses a verb that the engine's task does not have.
func (c *Config) taskError(verb string, wanted llm.Task) error {
	var advice string
	switch {
	case wanted == llm.TaskGenerate:
		advice = `a checkpoint with an output layer can be opened with Config.Task "generate"`
	case wanted == llm.TaskClassify:
		advice = "classes need a checkpoint whose architecture is …ForSequenceClassification"
	case c.Task == llm.TaskGenerate:
		advice = `open it with Config.Task "embed"`
	default:
		advice = "embeddings need a checkpoint without a layer of scores"
	}
	return &llm.TaskError{Verb: verb, Task: c.Task, Model: strings.TrimRight(c.Model, "/"), Advice: advice}
}
