package modelrunner

import (
	"fmt"
	"testing"

	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/stretchr/testify/require"
)

func config(heads, kv, width, vocab int) checkpoint.Config {
	return checkpoint.Config{
		NumHeads: heads, NumKVHeads: kv, IntermediateSize: width, VocabSize: vocab, HeadDim: 8,
		HiddenSize: 64, NumLayers: 2,
	}
}

// TestSplitCovers: the shares are the whole, once each; a rank's KV heads are those that its query
// heads attend with.
func TestSplitCovers(t *testing.T) {
	for _, c := range []checkpoint.Config{
		config(8, 8, 96, 100), config(8, 4, 96, 101), config(8, 2, 64, 9), config(8, 1, 64, 103), config(12, 6, 48,
			100), config(6, 3, 36, 7), config(1, 1, 7, 5),
	} {
		for n := 1; n <= c.NumHeads; n++ {
			if name, _ := undivided(&c, n); name != "" {
				continue
			}
			t.Run(fmt.Sprintf("%d of %d/%d heads", n, c.NumHeads, c.NumKVHeads), func(t *testing.T) {
				heads, width, vocab, group := 0, 0, 0, c.NumHeads/c.NumKVHeads
				kv := map[int]bool{}
				for rank := range n {
					s, err := Split(c, Shard{Rank: rank, Size: n})
					require.NoError(t, err)
					require.Equal(t, []int{heads, width, vocab}, []int{s.Heads.Lo, s.Intermediate.Lo, s.Vocab.Lo})
					heads, width, vocab = s.Heads.Hi, s.Intermediate.Hi, s.Vocab.Hi
					require.Positive(t, s.Vocab.Len())
					require.Equal(t, []int{s.Heads.Len(), s.KVHeads.Len(), s.Intermediate.Len(), c.VocabSize},
						[]int{s.Config.NumHeads, s.Config.NumKVHeads, s.Config.IntermediateSize, s.Config.VocabSize})
					require.Zero(t, s.Config.NumHeads%s.Config.NumKVHeads)
					for h := range s.Heads.Len() {
						own := s.KVHeads.Lo + h/(s.Config.NumHeads/s.Config.NumKVHeads)
						require.Equal(t, (s.Heads.Lo+h)/group, own, "rank %d, its head %d", rank, h)
						kv[own] = true
					}
				}
				require.Equal(t, []int{c.NumHeads, c.IntermediateSize, c.VocabSize, c.NumKVHeads},
					[]int{heads, width, vocab, len(kv)})
			})
		}
	}
}

func TestSplitRefuses(t *testing.T) {
	for _, tc := range []struct {
		c    checkpoint.Config
		s    Shard
		want string
	}{
		{
			config(8, 4, 96, 100),
			Shard{0, 3},
			"3 devices cannot share the model: num_attention_heads is 8 (possible: 1, 2, 4 or 8)",
		},
		{
			config(12, 3, 96, 100),
			Shard{0, 2},
			"2 devices cannot share the model: num_key_value_heads is 3 (possible: 1, 3, 6 or 12)",
		},
		{
			config(4, 4, 6, 100),
			Shard{0, 4},
			"4 devices cannot share the model: intermediate_size is 6 (possible: 1 or 2)",
		},
		{config(4, 4, 8, 3), Shard{0, 4}, "4 devices cannot share the model: vocab_size is 3 (possible: 1 or 2)"},
		{
			func() checkpoint.Config { c := config(4, 4, 8, 8); c.ExpertSize = 6; return c }(),
			Shard{0, 4},
			"4 devices cannot share the model: moe_intermediate_size is 6 (possible: 1 or 2)",
		},
		{config(4, 1, 9, 3), Shard{0, 2}, "2 devices cannot share the model: intermediate_size is 9 (possible: 1)"},
		{config(8, 4, 96, 100), Shard{2, 2}, "2 devices cannot share the model: there is no rank 2 of 2"},
		{config(8, 4, 96, 100), Shard{0, -1}, "-1 devices cannot share the model: there is no rank 0 of -1"},
		{config(8, 4, 96, 100), Shard{1, 0}, "0 devices cannot share the model: there is no rank 1 of 0"},
	} {
		_, err := Split(tc.c, tc.s)
		var e *SplitError
		require.ErrorAs(t, err, &e)
		require.EqualError(t, err, "modelrunner: "+tc.want)
	}
	s, err := Split(config(8, 4, 96, 100), Shard{})
	require.NoError(t, err)
	require.Equal(t, Shard{0, 1}, s.Shard)
	require.Equal(t, config(8, 4, 96, 100), s.Config)
}
