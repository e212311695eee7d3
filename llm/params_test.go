package llm_test

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/llm"
)

func ExampleSamplingParams_Check() {
	p := llm.SamplingParams{Temperature: 3}
	fmt.Println(p.Check())
	// Output: engine: Temperature is 3, must be in [0, 2]
}

// Every field has a name for the wire and a line for a flag; every number is bounded, or its bound
// depends on the model or on another field.
func TestEveryParameterIsStated(t *testing.T) {
	names := map[string]bool{}
	for _, p := range llm.Params() {
		assert.NotEmpty(t, p.Name, p.Field)
		assert.NotEmpty(t, p.Usage, p.Field)
		assert.False(t, names[p.Name], p.Name)
		names[p.Name] = true
		var s llm.SamplingParams
		if k := p.Value(&s).Kind(); k == reflect.Float64 || k == reflect.Int && p.Field != "MinTokens" {
			assert.NotEmpty(t, p.Bound(), p.Field)
		}
	}
}

func TestCheck(t *testing.T) {
	var s llm.SamplingParams
	require.NoError(t, s.Check(), "the zero value")
	for _, row := range []struct {
		field string
		value any
		want  string // "": accepted
	}{
		{"MaxTokens", -1, "engine: MaxTokens is -1, must be at least 1 (0 is 16)"},
		{"N", 16385, "engine: N is 16385, must be in [1, 16384] (0 is 1)"},
		{"Temperature", 2.0, ""},
		{"Temperature", math.NaN(), "engine: Temperature is NaN, must be in [0, 2]"},
		{"TopK", -1, ""},
		{"TopK", -2, "engine: TopK is -2, must be at least -1 (0 and -1 are off)"},
		{"TopP", 1.5, "engine: TopP is 1.5, must be in (0, 1] (0 is off)"},
		{"EpsilonCutoff", 1.0, "engine: EpsilonCutoff is 1, must be in [0, 1)"},
		{"RepetitionPenalty", math.Inf(1), "engine: RepetitionPenalty is +Inf, must be finite and > 0 (0 is off)"},
		{"RepetitionPenalty", -0.5, "engine: RepetitionPenalty is -0.5, must be finite and > 0 (0 is off)"},
		{"NoRepeatNGramSize", 3, ""},
		{"LogprobsMode", llm.ProcessedLogits, ""},
		{
			"LogprobsMode",
			llm.LogprobsMode("raw"),
			"engine: LogprobsMode is raw, must be one of raw_logprobs, processed_logprobs, raw_logits, processed_logits",
		},
		{
			"LogitBias",
			map[int32]float64{7: math.Inf(-1)},
			"engine: LogitBias[7] is -Inf, must be finite (it is clamped to ±100)",
		},
	} {
		s := llm.SamplingParams{}
		reflect.ValueOf(&s).Elem().FieldByName(row.field).Set(reflect.ValueOf(row.value))
		if row.want == "" {
			assert.NoError(t, s.Check(), "%s %v", row.field, row.value)
		} else {
			assert.EqualError(t, s.Check(), row.want)
		}
	}
}
