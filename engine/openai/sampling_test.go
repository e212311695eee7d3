package openai

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/llm"
)

// Each sampling parameter is read from a body under its name; a body has no way to say "not given"
// but to leave it out.
func TestEverySamplingParameter(t *testing.T) {
	examples := map[reflect.Type]string{
		reflect.TypeFor[int](): "3", reflect.TypeFor[float64](): "0.5", reflect.TypeFor[bool](): "true",
		reflect.TypeFor[*bool](): "false", reflect.TypeFor[*int64](): "0", reflect.TypeFor[*int](): "1",
		reflect.TypeFor[[]int32](): "[7]", reflect.TypeFor[[]string](): `["a"]`,
		reflect.TypeFor[map[int32]float64](): `{"7": 1.5}`,
		reflect.TypeFor[llm.LogprobsMode]():  `"raw_logits"`,
	}
	for _, p := range llm.Params() {
		kind := p.Value(new(llm.SamplingParams)).Type()
		value, known := examples[kind]
		if p.Name == "logprobs" || !known { // of a form of its own in each kind of request
			continue
		}
		body := func(value string) (*chatRequest, error) {
			q := new(chatRequest)
			if err := read(fmt.Sprintf(`{%q: %s}`, p.Name, value), q); err != nil {
				return q, err
			}
			_, err := q.params(16)
			return q, err
		}
		if _, not := refused[p.Name]; not {
			_, err := body(value)
			assert.ErrorContains(t, err, "not supported", p.Name)
			continue
		}
		q, err := body(value)
		require.NoError(t, err, p.Name)
		want := q.Sampling.SamplingParams
		assert.False(t, p.Value(&want).IsZero(), p.Name)

		_, err = body(`{"no": "such"}`)
		assert.ErrorContains(t, err, p.Name, "a value of another type")
		q, err = body("null")
		require.NoError(t, err, p.Name)
		assert.Empty(t, q.Sampling.given, p.Name)

		_, err = body("0")
		if p.Unset != "" {
			assert.EqualError(t, err, fmt.Sprintf("%s: is 0, must be %s", p.Name, p.Bound()))
		}
	}
	q := new(chatRequest)
	require.NoError(t, read(`{}`, q))
	got, err := q.params(99)
	require.NoError(t, err)
	assert.Equal(t, llm.SamplingParams{MaxTokens: 99, Temperature: 1}, got)
	require.NoError(t, read(`{"stop": "a", "temperature": 0}`, q))
	got, err = q.params(99)
	require.NoError(t, err)
	assert.Equal(t, []string{"a"}, got.Stop)
	assert.Zero(t, math.Float64bits(got.Temperature))
}
