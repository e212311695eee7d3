package sample

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/enginetest/enginetest/llm"
)

// applied makes edits in a device's order.
func applied(p *Params, row []float32, edits []Edit) []float32 {
	out := slices.Clone(row)
	if p.Allowed != nil {
		for i := range out {
			out[i] = negInf
		}
	}
	repetition, frequency, presence := p.Penalties()
	for _, kind := range []uint32{EditAllow, EditBias, EditPenalize, EditMask} {
		for _, e := range edits {
			id := e.What & (1<<28 - 1)
			if e.What>>28 != kind || int(id) >= len(row) {
				continue
			}
			switch x := &out[id]; kind {
			case EditAllow:
				*x = row[id]
			case EditBias:
				*x += math.Float32frombits(e.Value)
			case EditMask:
				*x = negInf
			default:
				penalize(out, []tokenCount{{int32(id), int32(e.Value)}}, repetition, frequency, presence)
			}
		}
	}
	return out
}

// TestPropertyEdits: a device that makes the edits has the row that Draw has; greedy shows it.
func TestPropertyEdits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const vocab = 12
		id := rapid.Int32Range(-1, vocab)
		p := Params{
			RepetitionPenalty: rapid.SampledFrom([]float64{0, 1, 0.5, 2}).Draw(t, "repetition"),
			FrequencyPenalty:  rapid.SampledFrom([]float64{0, -1, 0.5}).Draw(t, "frequency"),
			PresencePenalty:   rapid.SampledFrom([]float64{0, -1, 0.5}).Draw(t, "presence"),
			NoRepeatNGram:     rapid.IntRange(0, 3).Draw(t, "n-gram"),
			LogitBias:         rapid.MapOf(id, rapid.Float32Range(-200, 200)).Draw(t, "bias"),
			BadWords:          rapid.SliceOfN(rapid.SliceOfN(id, 0, 2), 0, 3).Draw(t, "bad words"),
			MinTokens:         rapid.IntRange(0, 20).Draw(t, "min tokens"),
			StopIDs:           rapid.SliceOfN(id, 0, 2).Draw(t, "stop"),
		}
		if rapid.Bool().Draw(t, "some allowed") {
			p.Allowed = rapid.SliceOf(id).Draw(t, "allowed")
		}
		token := rapid.SliceOf(rapid.Int32Range(0, vocab-1))
		st := &State{Params: p, Prompt: token.Draw(t, "prompt"), Output: token.Draw(t, "output")}
		row := normal(vocab, rapid.Uint64().Draw(t, "row"), 2)
		want := slices.Clone(row)
		var s Sampler
		s.edit(st, want)
		again := &State{Params: p, Prompt: st.Prompt, Output: st.Output}
		require.Equal(t, want, applied(&p, row, again.AppendEdits(nil)))
	})
}

// TestHostOnly is the whole list of what a device leaves to the host.
func TestHostOnly(t *testing.T) {
	for _, c := range []struct {
		p    Params
		want string
	}{
		{Params{Temperature: 1, TopK: 5, TopP: 0.5, MinP: 0.1, RepetitionPenalty: 2, Logprobs: 20}, ""},
		{Params{Temperature: 1, TypicalP: 1, Logprobs: MostLikely}, ""},
		{Params{Temperature: 1, TypicalP: 0.9}, "typical_p"},
		{Params{Temperature: 1, EpsilonCutoff: 0.1}, "epsilon_cutoff"},
		{Params{TypicalP: 0.9, EpsilonCutoff: 0.1}, ""}, // greedy: they change nothing
		{Params{Logprobs: MostLikely + 1}, "logprobs"},
		{Params{Processors: make([]llm.LogitsProcessor, 1), Logprobs: -1}, "logits_processors"},
		{Params{LogprobsMode: Mode{Logits: true}}, "logprobs_mode"},
		{Params{LogprobsMode: Mode{Processed: true}, Logprobs: 3}, "logprobs_mode"},
		{Params{LogprobsMode: Mode{Processed: true}, Logprobs: -1}, ""}, // none are asked for
	} {
		require.Equal(t, c.want, c.p.HostOnly(1000), "%+v", c.p)
	}
	require.Empty(t, (&Params{Logprobs: 1000}).HostOnly(MostLikely), "the whole of a small vocabulary")
}
