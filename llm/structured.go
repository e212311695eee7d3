package llm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// StructuredOutputs restricts an output to a language. Exactly one field is set; they are vLLM's. An
// output that ends by itself is in the language; one that is cut, by MaxTokens or a stop text, is
// the begin of one that is.
type StructuredOutputs struct {
	JSON       string   `json:"json,omitempty"`        // a JSON schema; in JSON, the schema itself will do
	Regex      string   `json:"regex,omitempty"`       // of the whole output
	Choice     []string `json:"choice,omitempty"`      // one of these texts
	Grammar    string   `json:"grammar,omitempty"`     // in EBNF, with the rule root
	JSONObject bool     `json:"json_object,omitempty"` // any JSON object
}

// Kinds lists the fields that are set.
func (s *StructuredOutputs) Kinds() (kinds []string) {
	for _, k := range []struct {
		name string
		set  bool
	}{
		{"JSON", s.JSON != ""},
		{"Regex", s.Regex != ""},
		{"Choice", s.Choice != nil},
		{"Grammar", s.Grammar != ""},
		{"JSONObject", s.JSONObject},
	} {
		if k.set {
			kinds = append(kinds, k.name)
		}
	}
	return kinds
}

// check returns a [*ParamError] unless exactly one field is set.
func (s *StructuredOutputs) check() error {
	if s == nil || len(s.Kinds()) == 1 {
		return nil
	}
	value := strings.Join(s.Kinds(), " and ")
	if value == "" {
		value = "empty"
	}
	return &ParamError{
		Field: "StructuredOutputs", Value: value,
		Bound: "exactly one of JSON, Regex, Choice, Grammar and JSONObject",
	}
}

// UnmarshalJSON takes a schema as a text or as itself, as vLLM does, and refuses unknown fields.
func (s *StructuredOutputs) UnmarshalJSON(data []byte) error {
	type fields StructuredOutputs
	in := struct {
		*fields
		JSON json.RawMessage `json:"json"`
	}{fields: (*fields)(s)}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return err
	}
	switch text := string(in.JSON); {
	case text == "", text == "null":
	case text[0] == '"':
		return json.Unmarshal(in.JSON, &s.JSON)
	default:
		s.JSON = text
	}
	return nil
}

// GrammarError reports structured outputs that an engine cannot follow.
type GrammarError struct {
	Kind        string // "JSON schema", "regular expression", "choice", "EBNF"
	Where       string // a JSON pointer, or a line; "" when it is the whole
	What        string
	Unsupported bool // valid, but not supported by this engine
}

func (e *GrammarError) Error() string {
	if e.Where == "" {
		return fmt.Sprintf("engine: StructuredOutputs: %s: %s", e.Kind, e.What)
	}
	return fmt.Sprintf("engine: StructuredOutputs: %s: %s: %s", e.Kind, e.Where, e.What)
}
