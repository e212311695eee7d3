package checkpoint

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// unused are the names of the tensors that no one has asked Weight for.
type unused struct {
	mu    sync.Mutex
	names map[string]bool
}

func (u *unused) fill(tensors map[string]Tensor) {
	u.names = make(map[string]bool, len(tensors))
	for name := range tensors {
		u.names[name] = true
	}
}

func (u *unused) drop(name string) {
	u.mu.Lock()
	delete(u.names, name)
	u.mu.Unlock()
}

// computed are endings of tensors that older versions of transformers saved and that follow from
// the configuration: transformers leaves the first out silently
// (_keys_to_ignore_on_load_unexpected), vLLM's load_weights all of them.
var computed = []string{
	".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached", "embeddings.position_ids",
}

// Unused lists the tensors that [Checkpoint.Weight] was never asked for, sorted: after a model has
// taken its weights, what it ignores. What is known to do no harm is left out: tables that are
// computed, the output layer of a model that uses the embedding for it or none, and the pooler of an
// encoder whose hidden states are wanted. It works after Close, too.
func (c *Checkpoint) Unused() []string {
	c.unused.mu.Lock()
	defer c.unused.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(c.unused.names)), func(name string) bool {
		switch unprefixed(name) {
		case "lm_head.weight":
			return c.Config.TieEmbeddings || c.Config.Head != OutputHead
		case "pooler.dense.weight", "pooler.dense.bias":
			return c.Config.Encoder
		}
		return slices.ContainsFunc(computed, func(ending string) bool { return strings.HasSuffix(name, ending) })
	})
}
