package openai

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/enginetest/enginetest/llm"
)

// structured are the fields that restrict an answer to a language besides structured_outputs, which
// is a sampling parameter: OpenAI's response_format, and the names that vLLM had before.
type structured struct {
	ResponseFormat *responseFormat `json:"response_format"`
	GuidedJSON     json.RawMessage `json:"guided_json"`
	GuidedRegex    string          `json:"guided_regex"`
	GuidedChoice   []string        `json:"guided_choice"`
	GuidedGrammar  string          `json:"guided_grammar"`
}

type responseFormat struct {
	Type       string `json:"type"`
	JSONSchema *struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Strict      *bool           `json:"strict"`
		Schema      json.RawMessage `json:"schema"`
	} `json:"json_schema"`
}

// outputs joins the fields and structured_outputs into one; nil when none says anything.
func (s *structured) outputs(param *llm.StructuredOutputs) (*llm.StructuredOutputs, error) {
	var given []*llm.StructuredOutputs
	var names []string
	add := func(name string, o llm.StructuredOutputs) {
		given, names = append(given, &o), append(names, name)
	}
	if f := s.ResponseFormat; f != nil {
		switch {
		case f.Type == "text":
		case f.Type == "json_object":
			add("response_format", llm.StructuredOutputs{JSONObject: true})
		case f.Type == "json_schema" && f.JSONSchema != nil && f.JSONSchema.Schema != nil:
			add("response_format", llm.StructuredOutputs{JSON: string(f.JSONSchema.Schema)})
		case f.Type == "json_schema":
			return nil, invalid("response_format", "invalid_value", "json_schema.schema is missing")
		default:
			return nil, invalid("response_format", "unsupported_parameter",
				"type is %q, must be text, json_object or json_schema", f.Type)
		}
	}
	if param != nil {
		add("structured_outputs", *param)
	}
	if s.GuidedJSON != nil {
		var o llm.StructuredOutputs
		if err := json.Unmarshal([]byte(`{"json":`+string(s.GuidedJSON)+`}`), &o); err != nil {
			return nil, invalid("guided_json", "invalid_type", "%v", jsonError(err))
		}
		add("guided_json", o)
	}
	if s.GuidedRegex != "" {
		add("guided_regex", llm.StructuredOutputs{Regex: s.GuidedRegex})
	}
	if s.GuidedChoice != nil {
		add("guided_choice", llm.StructuredOutputs{Choice: s.GuidedChoice})
	}
	if s.GuidedGrammar != "" {
		add("guided_grammar", llm.StructuredOutputs{Grammar: s.GuidedGrammar})
	}
	switch len(given) {
	case 0:
		return nil, nil
	case 1:
		return given[0], nil
	}
	return nil, invalid(names[1], "invalid_value", "only one of %s may be given", strings.Join(names, " and "))
}

// grammarError is the refusal of structured outputs.
func grammarError(err error) *apiError {
	e, ok := errors.AsType[*llm.GrammarError](err)
	if !ok {
		return nil
	}
	code := "invalid_value"
	if e.Unsupported {
		code = "unsupported_grammar"
	}
	return invalid("structured_outputs", code, "%v", err)
}
