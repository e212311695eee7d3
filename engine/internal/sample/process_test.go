package sample

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/llm"
)

// A processor sees prompt, output and the logits that the parameters before it left; what it
// returns is drawn from, but what was ruled out stays so. Log-probabilities are the model's.
func TestProcessors(t *testing.T) {
	var saw [][3]any
	add := func(id int, x float32) llm.LogitsProcessor {
		return func(prompt, output []int32, logits []float32) ([]float32, error) {
			saw = append(saw, [3]any{slices.Clone(prompt), slices.Clone(output), logits[id]})
			logits = slices.Clone(logits) // another one of the same length
			logits[id] += x
			return logits, nil
		}
	}
	p := Params{
		Processors: []llm.LogitsProcessor{add(2, 10), add(3, 100), add(2, 1)}, LogitBias: map[int32]float32{2: 0.5},
		BadWords: [][]int32{{3}}, Logprobs: 4,
	}
	st, row := &State{Params: p, Prompt: []int32{7, 8}}, []float32{1, 2, 3, 4}
	var s Sampler
	for at := range 3 {
		saw = nil
		token, lps, err := s.Draw(st, slices.Clone(row))
		require.NoError(t, err)
		require.Equal(t, int32(2), token, "token 3 is banned, whatever a processor adds")
		output := make([]int32, at)
		for i := range output {
			output[i] = 2
		}
		require.Len(t, saw, 3)
		require.Equal(t, [3]any{[]int32{7, 8}, output, float32(3.5)}, saw[0])
		require.InDelta(t, 13.5, saw[2][2], 0)
		require.Equal(t, s.Logprobs(row, 2, 4, Mode{}), lps)
		st.Output = append(st.Output, token)
	}
}

// A processor that fails is a typed error of its row; the parameters' state is good for the next.
func TestProcessorsThatFail(t *testing.T) {
	cause := errors.New("of its own")
	good := func(_, _ []int32, logits []float32) ([]float32, error) { return logits, nil }
	for name, bad := range map[string]struct {
		f    llm.LogitsProcessor
		what string
		is   error
	}{
		"an error": {func(_, _ []int32, l []float32) ([]float32, error) {
			return l, cause
		}, "of its own", cause},
		"a panic": {func(_, _ []int32, l []float32) ([]float32, error) {
			panic("boom")
		}, "panic: boom", nil},
		"an error's panic": {func(_, _ []int32, l []float32) ([]float32, error) {
			panic(cause)
		}, "panic: of its own", cause},
		"a short row": {func(_, _ []int32, l []float32) ([]float32, error) {
			return l[1:], nil
		}, "returned 3 logits, must be 4", nil},
		"a long row": {func(_, _ []int32, l []float32) ([]float32, error) {
			return append(l, 1), nil
		}, "returned 5 logits, must be 4", nil},
		"no row": {func(_, _ []int32, l []float32) ([]float32, error) {
			return nil, nil
		}, "returned 0 logits, must be 4", nil},
		"an ended goroutine": {func(_, _ []int32, l []float32) ([]float32, error) {
			runtime.Goexit()
			return l, nil
		}, "runtime.Goexit", nil},
	} {
		t.Run(name, func(t *testing.T) {
			st := &State{
				Params: Params{Processors: []llm.LogitsProcessor{good, bad.f}, Logprobs: -1},
				Output: []int32{1, 2},
			}
			var s Sampler
			_, _, err := s.Draw(st, []float32{1, 2, 3, 4})
			var e *llm.ProcessorError
			require.ErrorAs(t, err, &e)
			require.Equal(t, 1, e.Index)
			require.Equal(t, 2, e.Token)
			require.Contains(t, e.What, bad.what)
			require.Equal(t, name == "a panic" || name == "an error's panic", e.Stack != "")
			if bad.is != nil {
				require.ErrorIs(t, err, bad.is)
			}
			st.Params.Processors = []llm.LogitsProcessor{good}
			token, _, err := s.Draw(st, []float32{1, 2, 3, 4})
			require.NoError(t, err)
			require.Equal(t, int32(3), token)
		})
	}
}

// A processor that keeps what it was given, and writes to it later, changes no other row.
func TestProcessorsKeepTheirOwn(t *testing.T) {
	var kept [][]float32
	spoil := func(prompt, output []int32, logits []float32) ([]float32, error) {
		kept = append(kept, logits)
		for i := range output {
			output[i] = -9
		}
		for i := range prompt {
			prompt[i] = -9
		}
		return logits, nil
	}
	row := []float32{1, 2, 3, 4}
	prompt, output := []int32{1, 2}, []int32{3, 0}
	st := &State{Params: Params{Processors: []llm.LogitsProcessor{spoil}, Logprobs: -1}, Prompt: prompt, Output: output}
	var s Sampler
	_, _, err := s.Draw(st, row)
	require.NoError(t, err)
	require.Equal(t, []int32{1, 2, 3, 0}, slices.Concat(prompt, output))
	kept[0][3] = -100
	require.Equal(t, []float32{1, 2, 3, 4}, row)
}

// Everything that a processor masks is named when no token is left.
func TestProcessorsThatMaskEverything(t *testing.T) {
	all := func(_, _ []int32, logits []float32) ([]float32, error) {
		fill(logits, negInf)
		return logits, nil
	}
	st := &State{Params: Params{Processors: []llm.LogitsProcessor{all}, Logprobs: -1, BadWords: [][]int32{{1}}}}
	var s Sampler
	_, _, err := s.Draw(st, []float32{1, 2, 3, 4})
	require.ErrorIs(t, err, ErrNoToken)
	require.EqualError(t, err, fmt.Sprintf("%v: of 4 tokens, bad_words masked 1, logits_processors masked 3",
		ErrNoToken))
}
