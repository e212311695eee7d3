package checkpoint

import (
	"fmt"
	"strings"
)

// encoderWeights lists the weights of a model of BERT's kind, in which every weight of a layer has a
// bias.
func (c *Config) encoderWeights(l *lister) {
	embedding := func(role Role, name string, rows Dim) {
		l.add(Weight{Role: role, Name: "bert.embeddings." + name + ".weight", Rows: rows, Cols: DimHidden})
	}
	embedding(Embedding, "word_embeddings", DimVocab)
	embedding(PositionEmbedding, "position_embeddings", DimPositions)
	embedding(TypeEmbedding, "token_type_embeddings", DimTypes)
	l.matrix(EmbeddingNorm, "bert.embeddings.LayerNorm", DimHidden, NoDim, true)
	for l.layer = 0; l.layer < c.NumLayers && !l.stopped; l.layer++ {
		l.prefix = fmt.Sprintf("bert.encoder.layer.%d.", l.layer)
		l.matrix(Query, "attention.self.query", DimQuery, DimHidden, true)
		l.matrix(Key, "attention.self.key", DimKV, DimHidden, true)
		l.matrix(Value, "attention.self.value", DimKV, DimHidden, true)
		l.matrix(AttentionOut, "attention.output.dense", DimHidden, DimQuery, true)
		l.matrix(AttentionPostNorm, "attention.output.LayerNorm", DimHidden, NoDim, true)
		l.matrix(Up, "intermediate.dense", DimInner, DimHidden, true)
		l.matrix(Down, "output.dense", DimHidden, DimInner, true)
		l.matrix(MLPPostNorm, "output.LayerNorm", DimHidden, NoDim, true)
	}
	l.layer, l.prefix = 0, ""
	if c.UsePooler {
		l.matrix(Pooler, "bert.pooler.dense", DimHidden, DimHidden, true)
	}
	if c.Head == ScoreHead {
		l.matrix(Score, "classifier", DimLabels, DimHidden, true)
	}
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
	for first := range c.Config.Weights() {
		c.Config.bare = !c.Has(first.Name) && c.Has(unprefixed(first.Name))
		return
	}
}
