package cudarunner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
)

// TestPasses cuts a batch into passes of every size: each row and each target is in one of them,
// every pass is a good batch, and the results come back to where they belong.
func TestPasses(t *testing.T) {
	b := &modelrunner.Batch{}
	for i, s := range []struct{ context, rows, targets int }{
		{10, 7, 3},
		{1, 1, 0},
		{25, 25, 25},
		{4, 1, 1},
		{9, 9, 4},
	} {
		q := modelrunner.Seq{
			Start: len(b.Tokens), Len: s.rows, Context: s.context,
			Blocks: []int32{int32(2 * i), int32(2*i + 1)}, Sampler: &sample.State{}, PromptLogprobs: 2,
		}
		for j := range s.targets {
			q.Targets = append(q.Targets, int32(100*i+j))
		}
		for j := range s.rows {
			b.Tokens = append(b.Tokens, int32(len(b.Tokens)))
			b.Positions = append(b.Positions, int32(s.context-s.rows+j))
			b.Slots = append(b.Slots, int32(len(b.Slots)))
		}
		b.Seqs = append(b.Seqs, q)
	}
	limits := modelrunner.Limits{Tokens: 100, Vocab: 100, Positions: 100, Blocks: 10, BlockSize: 16}
	require.NoError(t, b.Check(limits))
	for most := 1; most <= len(b.Tokens)+1; most++ {
		var tokens []int32
		out := resultsOf(b)
		limits.Tokens = most
		for _, p := range passesOf(b, most) {
			require.NoError(t, p.Check(limits), "passes of %d", most)
			tokens = append(tokens, p.Tokens...)
			results := resultsOf(&p.Batch)
			for i, s := range p.Seqs {
				for j, target := range s.Targets { // a result says what it was asked for
					results[i].PromptLogprobs[j] = []sample.Logprob{{Token: target}}
				}
				if s.Sampler != nil {
					results[i].Token = p.Tokens[s.Start+s.Len-1]
				}
			}
			p.into(out, results)
		}
		require.Equal(t, b.Tokens, tokens)
		for i, s := range b.Seqs {
			require.Equal(t, b.Tokens[s.Start+s.Len-1], out[i].Token, "passes of %d: sequence %d", most, i)
			for j, target := range s.Targets {
				require.Equal(t, []sample.Logprob{{Token: target}}, out[i].PromptLogprobs[j],
					"passes of %d: target %d of sequence %d", most, j, i)
			}
		}
	}
}
