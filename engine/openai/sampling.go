package openai

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/llm"
)

// sampling are the sampling parameters of a body, by the names that llm.Params lists.
type sampling struct {
	engine.SamplingParams
	given map[string]bool // by the Go field's name
}

// hasSampling is a body with sampling parameters.
type hasSampling interface{ parameters() *sampling }

func (c *common) parameters() *sampling { return &c.Sampling }

// param finds a parameter by its name in bodies.
func param(name string) (llm.Param, bool) {
	all := llm.Params()
	i := slices.IndexFunc(all, func(p llm.Param) bool { return p.Name == name })
	if i < 0 {
		return llm.Param{}, false
	}
	return all[i], true
}

// giving notes that a parameter was given.
func (s *sampling) giving(field string) {
	if s.given == nil {
		s.given = map[string]bool{}
	}
	s.given[field] = true
}

// set reads a parameter's value.
func (s *sampling) set(p llm.Param, value []byte) error {
	s.giving(p.Field)
	switch to := p.Value(&s.SamplingParams).Addr().Interface().(type) {
	case *[]int32:
		return json.Unmarshal(value, (*tokenIDs)(to))
	case *map[int32]float64:
		return unmarshalBias(value, to)
	case *[]string:
		if to == &s.Stop { // a text alone is a list of one
			return json.Unmarshal(value, (*texts)(to))
		}
		return json.Unmarshal(value, to)
	default:
		return json.Unmarshal(value, to)
	}
}

func unmarshalBias(value []byte, to *map[int32]float64) error {
	var byText map[string]float64
	if err := json.Unmarshal(value, &byText); err != nil || len(byText) == 0 {
		return err
	}
	*to = map[int32]float64{}
	for k, bias := range byText {
		id, err := strconv.ParseInt(k, 10, 32)
		if err != nil {
			return invalid("logit_bias", "invalid_value", "%q is not a token id", k)
		}
		(*to)[int32(id)] = bias
	}
	return nil
}

// params returns the sampling parameters; maxTokens is the default of max_tokens.
func (c *common) params(maxTokens int) (engine.SamplingParams, error) {
	s := c.Sampling
	for _, p := range llm.Params() {
		if p.Unset == "" || !s.given[p.Field] {
			continue // the engine checks it
		}
		// In Go, 0 is "not given"; in a body, it is out of the range.
		field := p.Value(&s.SamplingParams)
		if field.IsZero() || p.Check(&s.SamplingParams) != nil {
			return s.SamplingParams, invalid(p.Name, "invalid_value", "is %v, must be %s", field.Interface(), p.Bound())
		}
	}
	if c.StreamOptions != nil && !c.Stream {
		return s.SamplingParams, invalid("stream_options", "invalid_value", "only with stream")
	}
	if !s.given["MaxTokens"] {
		s.MaxTokens = maxTokens
	}
	if !s.given["Temperature"] {
		s.Temperature = 1 // OpenAI's default
	}
	outputs, err := c.outputs(s.StructuredOutputs)
	s.StructuredOutputs = outputs
	return s.SamplingParams, err
}
