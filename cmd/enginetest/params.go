package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/enginetest/enginetest/llm"
	"github.com/spf13/pflag"
)

// request is one prompt with its sampling parameters, as a line of --batch has it and as the flags
// set it.
type request struct {
	Prompt    *string
	PromptIDs *tokenIDs

	sampling llm.SamplingParams
	given    map[string]bool // parameters by name: an explicit zero is not a default, and is checked against its range
}

// UnmarshalJSON reads one object. null is "not given".
func (r *request) UnmarshalJSON(data []byte) error {
	var fields map[string]json.RawMessage
	if err := strictUnmarshal(data, &fields); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if err := r.unmarshalField(name, fields[name]); err != nil {
			return err
		}
	}
	return nil
}

func (r *request) unmarshalField(name string, data json.RawMessage) error {
	if string(data) == "null" {
		return nil
	}
	switch name {
	case "prompt":
		return unmarshalNamed(name, data, &r.Prompt)
	case "prompt_ids":
		return unmarshalNamed(name, data, &r.PromptIDs)
	}
	for _, p := range llm.Params() {
		if p.Name != name {
			continue
		}
		field := p.Value(&r.sampling).Addr().Interface()
		switch f := field.(type) {
		case *[]int32:
			field = (*tokenIDs)(f)
		case *[]string:
			if name == "stop" {
				field = (*stopWords)(f)
			}
		}
		r.set(name)
		return unmarshalNamed(name, data, field)
	}
	return fmt.Errorf("json: unknown field %q", name)
}

// unmarshalNamed is strictUnmarshal for a value whose errors name a field.
func unmarshalNamed(name string, data []byte, v any) error {
	err := strictUnmarshal(data, v)
	var kind *kindError
	if errors.As(err, &kind) {
		return &kindError{cmp.Or(kind.field, name), kind.got, kind.want}
	}
	return err
}

func (r *request) set(name string) {
	if r.given == nil {
		r.given = map[string]bool{}
	}
	r.given[name] = true
}

// flags makes a flag of every sampling parameter.
func (r *request) flags(f *pflag.FlagSet) {
	for _, p := range llm.Params() {
		name, usage := strings.ReplaceAll(p.Name, "_", "-"), p.Usage
		v := &paramFlag{request: r, param: p}
		switch p.Value(&r.sampling).Interface().(type) {
		case []string:
			usage += " (repeat the flag for more)"
		case []int32:
			usage += ": 1,2,3"
		}
		f.Var(v, name, usage)
		if v.Type() == "bool" {
			f.Lookup(name).NoOptDefVal = "true"
		}
	}
}

// fill takes what r was not given from the defaults.
func (r *request) fill(defaults request) {
	if r.Prompt == nil {
		r.Prompt = defaults.Prompt
	}
	if r.PromptIDs == nil {
		r.PromptIDs = defaults.PromptIDs
	}
	for _, p := range llm.Params() {
		if defaults.given[p.Name] && !r.given[p.Name] {
			p.Value(&r.sampling).Set(p.Value(&defaults.sampling))
			r.set(p.Name)
		}
	}
}

// engineRequest checks explicit zeros, which llm.SamplingParams cannot tell from "not given", and
// converts.
func (r *request) engineRequest() (llm.Request, error) {
	out := llm.Request{Sampling: r.sampling}
	for _, p := range llm.Params() {
		if p.Unset != "" && r.given[p.Name] && p.Value(&r.sampling).IsZero() {
			return out, &llm.ParamError{Field: p.Name, Value: 0, Bound: p.Bound()}
		}
	}
	switch {
	case r.Prompt != nil && r.PromptIDs != nil:
		return out, usagef("prompt and prompt_ids are both given; give one")
	case r.Prompt != nil:
		out.Prompt = *r.Prompt
	case r.PromptIDs != nil:
		out.PromptTokenIDs = *r.PromptIDs
	default:
		return out, usagef("no prompt: give prompt or prompt_ids")
	}
	return out, nil
}

// stopWords is one text or a list of them, as in OpenAI's API.
type stopWords []string

// UnmarshalJSON takes a string or a list of strings.
func (s *stopWords) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		*s = make(stopWords, 1)
		return strictUnmarshal(data, &(*s)[0])
	}
	return strictUnmarshal(data, (*[]string)(s))
}

// tokenIDs is a list of token ids; null among them is no id.
type tokenIDs []int32

// UnmarshalJSON refuses null, which encoding/json would read as token 0.
func (ids *tokenIDs) UnmarshalJSON(data []byte) error {
	var list []*int32
	if err := strictUnmarshal(data, &list); err != nil {
		return err
	}
	*ids = make(tokenIDs, len(list))
	for i, id := range list {
		if id == nil {
			return fmt.Errorf("token id %d is null", i)
		}
		(*ids)[i] = *id
	}
	return nil
}

// paramFlag sets a sampling parameter of a request.
type paramFlag struct {
	request *request
	param   llm.Param
}

// Set parses a value. A flag of texts adds one.
func (f *paramFlag) Set(s string) (err error) {
	switch v := f.param.Value(&f.request.sampling).Addr().Interface().(type) {
	case *int:
		*v, err = strconv.Atoi(s)
	case **int:
		*v, err = pointer(strconv.Atoi(s))
	case **int64:
		*v, err = pointer(strconv.ParseInt(s, 10, 64))
	case *float64:
		*v, err = strconv.ParseFloat(s, 64)
	case *llm.LogprobsMode:
		*v = llm.LogprobsMode(s)
	case *bool:
		*v, err = strconv.ParseBool(s)
	case **bool:
		*v, err = pointer(strconv.ParseBool(s))
	case *[]string:
		*v = append(*v, s)
	case *[]int32:
		*v, err = parseIDs(s)
	case *map[int32]float64:
		*v, err = parseBias(s)
	case **llm.StructuredOutputs:
		*v = new(llm.StructuredOutputs)
		err = strictUnmarshal([]byte(s), *v)
	}
	f.request.set(f.param.Name)
	return err
}

func pointer[T any](v T, err error) (*T, error) { return &v, err }

// Type is what usage prints of the value.
func (f *paramFlag) Type() string {
	switch f.param.Value(&f.request.sampling).Interface().(type) {
	case int, *int, *int64:
		return "int"
	case float64:
		return "float"
	case bool, *bool:
		return "bool"
	case llm.LogprobsMode:
		return "string"
	case []int32:
		return "ids"
	case map[int32]float64:
		return "id=bias"
	case *llm.StructuredOutputs:
		return "json"
	}
	return "stringArray"
}

// String is the default that usage prints: none.
func (f *paramFlag) String() string { return "" }

// parseBias reads id=bias pairs.
func parseBias(s string) (map[int32]float64, error) {
	m := map[int32]float64{}
	for pair := range strings.SplitSeq(s, ",") {
		id, bias, ok := strings.Cut(pair, "=")
		n, err := strconv.ParseInt(strings.TrimSpace(id), 10, 32)
		f, err2 := strconv.ParseFloat(strings.TrimSpace(bias), 64)
		if !ok || err != nil || err2 != nil {
			return nil, fmt.Errorf("%q is not id=bias", pair)
		}
		m[int32(n)] = f
	}
	return m, nil
}

// parseIDs reads "1,2,3"; an empty string is no ids.
func parseIDs(s string) (tokenIDs, error) {
	ids := tokenIDs{}
	if strings.TrimSpace(s) == "" {
		return ids, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(part), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is not a token id", part)
		}
		ids = append(ids, int32(n))
	}
	return ids, nil
}
