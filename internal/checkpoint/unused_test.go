package checkpoint

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnused(t *testing.T) {
	for _, row := range []struct {
		tied bool
		want []string
		why  string
	}{
		{
			false,
			[]string{"lm_head.weight", "model.layers.9.mlp.up_proj.weight", "visual.patch.weight"},
			"an output layer that nobody took",
		},
		{
			true,
			[]string{"model.layers.9.mlp.up_proj.weight", "visual.patch.weight"},
			"a tied model's output layer is its embedding",
		},
	} {
		dir := folder(t, map[string]any{
			"config.json": string(config(map[string]string{"tie_word_embeddings": fmt.Sprint(row.tied)})),
			"model.safetensors": []Tensor{
				f32("model.norm.weight", 64), f32("lm_head.weight",
					64), f32("model.layers.0.self_attn.rotary_emb.inv_freq", 8),
				f32("visual.patch.weight", 8), f32("model.layers.9.mlp.up_proj.weight", 8),
			},
		})
		c, err := Open(dir)
		require.NoError(t, err)
		_, err = c.Weight("model.norm.weight", 64)
		require.NoError(t, err)
		_, err = c.Weight("visual.patch.weight", 9)
		require.Error(t, err, "what does not fit is not used")
		require.Equal(t, row.want, c.Unused(), row.why)
		require.NoError(t, c.Close())
		require.Equal(t, row.want, c.Unused(), "after Close")
	}
}
