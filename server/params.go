package server

import (
	"maps"
	"reflect"

	"github.com/enginetest/enginetest/llm"
)

// names are the sampling parameters that a protocol has, by their fields, with its name for each.
type names map[string]string

// wire lists parameters that a protocol calls as llm does, which is as vLLM does.
func wire(fields ...string) names {
	m := names{}
	for _, f := range fields {
		m[f] = ""
	}
	return m
}

func (n names) with(more names) names {
	m := maps.Clone(n)
	maps.Copy(m, more)
	return m
}

func (n names) without(fields ...string) names {
	m := maps.Clone(n)
	for _, f := range fields {
		delete(m, f)
	}
	return m
}

// body writes the parameters that say something. One that the protocol lacks is an error, never
// left out.
func (n names) body(protocol Protocol, sp llm.SamplingParams) (map[string]any, error) {
	if err := sp.Check(); err != nil {
		return nil, err
	}
	if sp.LogitsProcessors != nil { // functions, which no protocol has
		return nil, &UnsupportedError{Protocol: protocol, Verb: "parameter LogitsProcessors"}
	}
	body := map[string]any{}
	for _, p := range llm.Params() {
		value, set := setting(p, &sp)
		if !set {
			continue
		}
		name, ok := n[p.Field]
		if !ok {
			return nil, &UnsupportedError{Protocol: protocol, Verb: "parameter " + p.Field}
		}
		if name == "" {
			name = p.Name
		}
		body[name] = value
	}
	return body, nil
}

// setting returns a parameter's value, and whether it says something. MaxTokens and Temperature
// always do: servers' own defaults differ.
func setting(p llm.Param, sp *llm.SamplingParams) (value any, set bool) {
	v := p.Value(sp)
	switch p.Field {
	case "MaxTokens":
		if sp.MaxTokens == 0 {
			return defaultMaxTokens, true
		}
		return sp.MaxTokens, true
	case "Temperature":
		return sp.Temperature, true
	case "N":
		return sp.N, sp.N > 1
	case "TopK":
		return sp.TopK, sp.TopK > 0
	}
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		return v.Elem().Interface(), true
	}
	return v.Interface(), !v.IsZero()
}

// defaultMaxTokens is llm.SamplingParams' own.
const defaultMaxTokens = 16

// prompt is the request's prompt as JSON has it: a text, or ids.
func prompt(r llm.Request) any {
	if r.PromptTokenIDs != nil {
		return r.PromptTokenIDs
	}
	return r.Prompt
}
