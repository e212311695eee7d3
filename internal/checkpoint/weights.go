package checkpoint

import (
	"fmt"
	"iter"
)

// Role is what a weight does in the model.
type Role int

// The roles, in the order of the computation. A layer has at most one weight of a role, and a layer
// with experts one of each per expert.
const (
	Embedding Role = iota
	AttentionNorm
	Query
	Key
	Value
	QueryNorm
	KeyNorm
	AttentionOut
	AttentionPostNorm // of the result of attention, before it is added
	MLPNorm
	Gate
	Up
	Down
	Router // chooses experts
	ExpertGate
	ExpertUp
	ExpertDown
	MLPPostNorm // of the result of the MLP, before it is added
	FinalNorm
	Output
	PositionEmbedding // from here on, of an encoder
	TypeEmbedding
	EmbeddingNorm
	Pooler
	Score // of both kinds
	Roles // how many there are
)

// Dim is a dimension of a weight. The ranks of tensor parallelism share out some of them.
type Dim int

// The dimensions.
const (
	NoDim     Dim = iota // the second one of a vector
	DimVocab             // rows of the embedding
	DimLogits            // rows of the output layer: as many, but shared out
	DimHidden
	DimQuery // all query heads
	DimKV    // all KV heads
	DimHead  // one head
	DimInner // of the MLP
	DimPositions
	DimTypes
	DimLabels
	DimExperts
	DimExpertInner // of an expert's MLP
)

// Weight describes a weight of the model: a matrix or the vector of a norm, perhaps with a bias over
// its rows.
type Weight struct {
	Role       Role
	Layer      int    // 0 outside the layers
	Expert     int    // 0 for the weights that are no expert's
	Name       string // of the tensor
	Bias       string // of the bias's tensor; "" for none
	Rows, Cols Dim    // Cols is NoDim for a norm
}

// IsNorm reports whether the weight is the vector of a norm.
func (w Weight) IsNorm() bool { return w.Cols == NoDim }

// Size is the size of a dimension.
func (c *Config) Size(d Dim) int {
	switch d {
	case DimVocab, DimLogits:
		return c.VocabSize
	case DimHidden:
		return c.HiddenSize
	case DimQuery:
		return c.NumHeads * c.HeadDim
	case DimKV:
		return c.NumKVHeads * c.HeadDim
	case DimHead:
		return c.HeadDim
	case DimInner:
		return c.IntermediateSize
	case DimPositions:
		return c.MaxPositions
	case DimTypes:
		return c.TypeVocab
	case DimLabels:
		return len(c.Labels)
	case DimExperts:
		return c.NumExperts
	case DimExpertInner:
		return c.ExpertSize
	}
	return 1
}

// Shape is the shape of a weight's tensor.
func (c *Config) Shape(w Weight) []int {
	if w.IsNorm() {
		return []int{c.Size(w.Rows)}
	}
	return []int{c.Size(w.Rows), c.Size(w.Cols)}
}

// Weights yields the weights of the model in the order of the computation. Everything that reads or
// writes a checkpoint's tensors goes by this list. With TieEmbeddings there is no Output.
func (c *Config) Weights() iter.Seq[Weight] {
	return func(yield func(Weight) bool) {
		l := &lister{yield: yield, bare: c.bare}
		if c.Encoder {
			c.encoderWeights(l)
		} else {
			c.decoderWeights(l)
		}
	}
}

func (c *Config) decoderWeights(l *lister) {
	l.add(Weight{Role: Embedding, Name: "model.embed_tokens.weight", Rows: DimVocab, Cols: DimHidden})
	for l.layer = 0; l.layer < c.NumLayers && !l.stopped; l.layer++ {
		l.prefix = fmt.Sprintf("model.layers.%d.", l.layer)
		c.attentionWeights(l)
		c.mlpWeights(l)
	}
	l.layer = 0
	l.add(Weight{Role: FinalNorm, Name: "model.norm.weight", Rows: DimHidden})
	switch {
	case c.Head == OutputHead && !c.TieEmbeddings:
		l.add(Weight{Role: Output, Name: "lm_head.weight", Rows: DimLogits, Cols: DimHidden})
	case c.Head == ScoreHead:
		l.add(Weight{Role: Score, Name: "score.weight", Rows: DimLabels, Cols: DimHidden})
	}
}

func (c *Config) attentionWeights(l *lister) {
	l.norm(AttentionNorm, "input_layernorm", DimHidden)
	l.matrix(Query, "self_attn.q_proj", DimQuery, DimHidden, c.QKVBias)
	l.matrix(Key, "self_attn.k_proj", DimKV, DimHidden, c.QKVBias)
	l.matrix(Value, "self_attn.v_proj", DimKV, DimHidden, c.QKVBias)
	if c.QKNorm {
		l.norm(QueryNorm, "self_attn.q_norm", DimHead)
		l.norm(KeyNorm, "self_attn.k_norm", DimHead)
	}
	l.matrix(AttentionOut, "self_attn.o_proj", DimHidden, DimQuery, c.OBias)
	if c.PostNorms {
		l.norm(AttentionPostNorm, "post_attention_layernorm", DimHidden)
	}
}

func (c *Config) mlpWeights(l *lister) {
	if c.PostNorms {
		l.norm(MLPNorm, "pre_feedforward_layernorm", DimHidden)
	} else {
		l.norm(MLPNorm, "post_attention_layernorm", DimHidden)
	}
	if c.HasExperts(l.layer) {
		l.matrix(Router, "mlp.gate", DimExperts, DimHidden, false)
		for l.expert = 0; l.expert < c.NumExperts && !l.stopped; l.expert++ {
			at := fmt.Sprintf("mlp.experts.%d.", l.expert)
			l.matrix(ExpertGate, at+"gate_proj", DimExpertInner, DimHidden, false)
			l.matrix(ExpertUp, at+"up_proj", DimExpertInner, DimHidden, false)
			l.matrix(ExpertDown, at+"down_proj", DimHidden, DimExpertInner, false)
		}
		l.expert = 0
	} else {
		l.matrix(Gate, "mlp.gate_proj", DimInner, DimHidden, c.MLPBias)
		l.matrix(Up, "mlp.up_proj", DimInner, DimHidden, c.MLPBias)
		l.matrix(Down, "mlp.down_proj", DimHidden, DimInner, c.MLPBias)
	}
	if c.PostNorms {
		l.norm(MLPPostNorm, "post_feedforward_layernorm", DimHidden)
	}
}

// lister yields weights until it is stopped.
type lister struct {
	yield         func(Weight) bool
	stopped       bool
	bare          bool // names without the prefix of the decoder or encoder
	layer, expert int
	prefix        string // of the names of norm and matrix
}

func (l *lister) add(w Weight) {
	if l.bare {
		w.Name, w.Bias = unprefixed(w.Name), unprefixed(w.Bias)
	}
	l.stopped = l.stopped || !l.yield(w)
}

func (l *lister) norm(role Role, name string, size Dim) { l.matrix(role, name, size, NoDim, false) }

func (l *lister) matrix(role Role, name string, rows, cols Dim, bias bool) {
	name = l.prefix + name
	w := Weight{Role: role, Layer: l.layer, Expert: l.expert, Name: name + ".weight", Rows: rows, Cols: cols}
	if bias {
		w.Bias = name + ".bias"
	}
	l.add(w)
}
