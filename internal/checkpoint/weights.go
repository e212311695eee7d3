package checkpoint

import "fmt"

// Role is what a weight does in the model.
type Role int

// The roles, in the order of the computation. A layer has at most one weight of a role.
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
)

// Weight describes a weight of the model: a matrix or the vector of a norm, perhaps with a bias over
// its rows.
type Weight struct {
	Role       Role
	Layer      int    // 0 outside the layers
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

// Weights lists the weights of the model in the order of the computation. Everything that reads or
// writes a checkpoint's tensors goes by this list. With TieEmbeddings there is no Output.
func (c *Config) Weights() []Weight {
	l := c.decoderWeights
	if c.Encoder {
		l = c.encoderWeights
	}
	list := l()
	if c.bare {
		for i := range list {
			list[i].Name, list[i].Bias = unprefixed(list[i].Name), unprefixed(list[i].Bias)
		}
	}
	return list
}

func (c *Config) decoderWeights() weightList {
	l := weightList{{Role: Embedding, Name: "model.embed_tokens.weight", Rows: DimVocab, Cols: DimHidden}}
	for i := range c.NumLayers {
		c.layerWeights(&l, i)
	}
	l = append(l, Weight{Role: FinalNorm, Name: "model.norm.weight", Rows: DimHidden})
	switch {
	case c.Head == OutputHead && !c.TieEmbeddings:
		l = append(l, Weight{Role: Output, Name: "lm_head.weight", Rows: DimLogits, Cols: DimHidden})
	case c.Head == ScoreHead:
		l = append(l, Weight{Role: Score, Name: "score.weight", Rows: DimLabels, Cols: DimHidden})
	}
	return l
}

func (c *Config) layerWeights(l *weightList, i int) {
	mlpNorm := "post_attention_layernorm"
	if c.PostNorms {
		mlpNorm = "pre_feedforward_layernorm"
	}
	l.norm(AttentionNorm, i, "input_layernorm", DimHidden)
	l.matrix(Query, i, "self_attn.q_proj", DimQuery, DimHidden, c.QKVBias)
	l.matrix(Key, i, "self_attn.k_proj", DimKV, DimHidden, c.QKVBias)
	l.matrix(Value, i, "self_attn.v_proj", DimKV, DimHidden, c.QKVBias)
	if c.QKNorm {
		l.norm(QueryNorm, i, "self_attn.q_norm", DimHead)
		l.norm(KeyNorm, i, "self_attn.k_norm", DimHead)
	}
	l.matrix(AttentionOut, i, "self_attn.o_proj", DimHidden, DimQuery, c.OBias)
	if c.PostNorms {
		l.norm(AttentionPostNorm, i, "post_attention_layernorm", DimHidden)
	}
	l.norm(MLPNorm, i, mlpNorm, DimHidden)
	l.matrix(Gate, i, "mlp.gate_proj", DimInner, DimHidden, c.MLPBias)
	l.matrix(Up, i, "mlp.up_proj", DimInner, DimHidden, c.MLPBias)
	l.matrix(Down, i, "mlp.down_proj", DimHidden, DimInner, c.MLPBias)
	if c.PostNorms {
		l.norm(MLPPostNorm, i, "post_feedforward_layernorm", DimHidden)
	}
}

// weightList is a list of weights under construction.
type weightList []Weight

func (l *weightList) norm(role Role, layer int, name string, size Dim) {
	*l = append(*l, Weight{Role: role, Layer: layer, Name: inLayer(layer, name) + ".weight", Rows: size})
}

func (l *weightList) matrix(role Role, layer int, name string, rows, cols Dim, bias bool) {
	w := Weight{Role: role, Layer: layer, Name: inLayer(layer, name) + ".weight", Rows: rows, Cols: cols}
	if bias {
		w.Bias = inLayer(layer, name) + ".bias"
	}
	*l = append(*l, w)
}

func inLayer(layer int, name string) string { return fmt.Sprintf("model.layers.%d.%s", layer, name) }
