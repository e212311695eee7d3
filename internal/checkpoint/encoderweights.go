package checkpoint

import (
	"fmt"
	"strings"
)

// encoderWeights lists the weights of a model of BERT's kind.
func (c *Config) encoderWeights() weightList {
	l := weightList{
		{Role: Embedding, Name: "bert.embeddings.word_embeddings.weight", Rows: DimVocab, Cols: DimHidden},
		{Role: PositionEmbedding, Name: "bert.embeddings.position_embeddings.weight", Rows: DimPositions, Cols: DimHidden},
		{Role: TypeEmbedding, Name: "bert.embeddings.token_type_embeddings.weight", Rows: DimTypes, Cols: DimHidden},
	}
	l.layerNorm(EmbeddingNorm, 0, "bert.embeddings.LayerNorm")
	for i := range c.NumLayers {
		at := fmt.Sprintf("bert.encoder.layer.%d.", i)
		l.dense(Query, i, at+"attention.self.query", DimQuery, DimHidden)
		l.dense(Key, i, at+"attention.self.key", DimKV, DimHidden)
		l.dense(Value, i, at+"attention.self.value", DimKV, DimHidden)
		l.dense(AttentionOut, i, at+"attention.output.dense", DimHidden, DimQuery)
		l.layerNorm(AttentionPostNorm, i, at+"attention.output.LayerNorm")
		l.dense(Up, i, at+"intermediate.dense", DimInner, DimHidden)
		l.dense(Down, i, at+"output.dense", DimHidden, DimInner)
		l.layerNorm(MLPPostNorm, i, at+"output.LayerNorm")
	}
	if c.UsePooler {
		l.dense(Pooler, 0, "bert.pooler.dense", DimHidden, DimHidden)
	}
	if c.Head == ScoreHead {
		l.dense(Score, 0, "classifier", DimLabels, DimHidden)
	}
	return l
}

// dense adds a matrix with a bias.
func (l *weightList) dense(role Role, layer int, name string, rows, cols Dim) {
	*l = append(*l, Weight{
		Role: role, Layer: layer, Name: name + ".weight", Bias: name + ".bias", Rows: rows, Cols: cols,
	})
}

// layerNorm adds a norm with a bias.
func (l *weightList) layerNorm(role Role, layer int, name string) {
	*l = append(*l, Weight{Role: role, Layer: layer, Name: name + ".weight", Bias: name + ".bias", Rows: DimHidden})
}

// prefixes are those of the decoder or encoder in a model with a head. A checkpoint without a head
// may leave them out: both kinds are published.
var prefixes = []string{"model.", "bert."}

// unprefixed is a tensor's name in a checkpoint that leaves the prefix out.
func unprefixed(name string) string {
	for _, p := range prefixes {
		name = strings.TrimPrefix(name, p)
	}
	return name
}

// detectPrefix finds out whether the tensors' names have the prefix.
func (c *Checkpoint) detectPrefix() {
	name := c.Config.Weights()[0].Name
	c.Config.bare = !c.Has(name) && c.Has(unprefixed(name))
}
