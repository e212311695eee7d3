package grammar

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

const schemaKind = "JSON schema"

// JSONSchema matches JSON texts that are valid for a schema: those with the properties in the order
// of the schema, none besides, and numbers of at most 15 digits before the point. A keyword that
// cannot be followed exactly is refused.
func JSONSchema(schema string, v *Vocabulary, limit int64) (*Grammar, error) {
	r, err := schemaRules(schema)
	if err != nil {
		return nil, err
	}
	return newGrammar(schemaKind, r, v, limit)
}

// JSONObject matches any JSON object.
func JSONObject(v *Vocabulary, limit int64) (*Grammar, error) {
	return JSONSchema(`{"type":"object"}`, v, limit)
}

func schemaRules(schema string) (rules, error) {
	doc, err := parseJSON(schema)
	if err != nil {
		return nil, &Error{Kind: schemaKind, What: "not JSON: " + err.Error()}
	}
	w := &schemaWriter{doc: doc, refs: map[string]ref{}}
	w.parts = jsonParts{rules: &w.rules, made: map[string]ref{}}
	if _, err := w.refer("#", "#"); err != nil {
		return nil, err
	}
	return w.rules, nil
}

type schemaWriter struct {
	doc   any
	rules rules
	parts jsonParts
	refs  map[string]ref // by pointer
}

func invalidSchema(where, format string, args ...any) error {
	return &Error{Kind: schemaKind, Where: where, What: fmt.Sprintf(format, args...)}
}

func unsupported(where, format string, args ...any) error {
	return &Error{Kind: schemaKind, Where: where, What: fmt.Sprintf(format, args...), Unsupported: true}
}

// annotations say nothing about what is valid. "default" and "examples" may be anything.
var annotations = []string{
	"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "example",
	"deprecated", "readOnly", "writeOnly",
}

// keywords of each type.
var keywords = map[string][]string{
	"object":  {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
	"array":   {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"},
	"string":  {"minLength", "maxLength", "pattern", "format"},
	"number":  {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
	"boolean": nil,
	"null":    nil,
}

// supportedKeywords lists the keywords that decide what is valid, for a message.
func supportedKeywords() string {
	list := []string{"$ref", "type", "enum", "const", "anyOf", "oneOf", "allOf"}
	for _, of := range keywords {
		list = append(list, of...)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// refer returns the rule of what a pointer points to.
func (w *schemaWriter) refer(pointer, where string) (ref, error) {
	if r, ok := w.refs[pointer]; ok {
		return r, nil
	}
	s, err := w.resolve(pointer, where)
	if err != nil {
		return 0, err
	}
	r := w.rules.reserve()
	w.refs[pointer] = r
	e, err := w.schema(s, pointer)
	if err != nil {
		return 0, err
	}
	w.rules[r] = e
	return r, nil
}

// resolve follows a pointer in the document.
func (w *schemaWriter) resolve(pointer, where string) (any, error) {
	if pointer == "#" {
		return w.doc, nil
	}
	path, ok := strings.CutPrefix(pointer, "#/")
	if !ok {
		return nil, unsupported(where, "%q: only references into the same document are supported", pointer)
	}
	v := w.doc
	for part := range strings.SplitSeq(path, "/") {
		part, err := url.PathUnescape(part)
		if err != nil {
			return nil, invalidSchema(where, "%q: %v", pointer, err)
		}
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		switch at := v.(type) {
		case *object:
			if v, ok = at.get(part); !ok {
				return nil, invalidSchema(where, "%q points to nothing", pointer)
			}
		case []any:
			var i int
			if _, err := fmt.Sscanf(part, "%d", &i); err != nil || i < 0 || i >= len(at) {
				return nil, invalidSchema(where, "%q points to nothing", pointer)
			}
			v = at[i]
		default:
			return nil, invalidSchema(where, "%q points to nothing", pointer)
		}
	}
	return v, nil
}

// schema writes what is valid for a schema.
func (w *schemaWriter) schema(s any, where string) (expr, error) {
	switch s := s.(type) {
	case bool:
		if s {
			return w.parts.any(), nil
		}
		return alt{}, nil
	case *object:
		return w.object(s, where)
	}
	return nil, invalidSchema(where, "must be an object or a boolean")
}

// object writes a schema that is an object.
func (w *schemaWriter) object(s *object, where string) (expr, error) {
	var asserted []string
	for _, k := range s.keys {
		if !slices.Contains(annotations, k) && !strings.HasPrefix(k, "x-") {
			asserted = append(asserted, k)
		}
	}
	alone := func(keyword string, beside ...string) error {
		for _, k := range asserted {
			if k != keyword && !slices.Contains(beside, k) {
				return unsupported(where, "%s beside %s", k, keyword)
			}
		}
		return nil
	}
	for _, keyword := range asserted {
		value, at := s.values[keyword], where+"/"+keyword
		switch keyword {
		case "$ref":
			pointer, ok := value.(string)
			if !ok {
				return nil, invalidSchema(at, "must be a text")
			}
			if err := alone(keyword); err != nil {
				return nil, err
			}
			return w.refer(pointer, at)
		case "enum", "const":
			if err := alone(keyword, "type"); err != nil {
				return nil, err
			}
			return w.values(s, keyword, where)
		case "anyOf", "oneOf", "allOf":
			if err := alone(keyword); err != nil {
				return nil, err
			}
			return w.combined(keyword, value, at)
		}
	}
	types, err := w.types(s, asserted, where)
	if err != nil {
		return nil, err
	}
	return w.ofTypes(s, types, where)
}

// types are those that a schema allows: as it says, or those that its keywords are about.
func (w *schemaWriter) types(s *object, asserted []string, where string) ([]string, error) {
	var implied []string
	for _, k := range asserted {
		of := ""
		for t, list := range keywords {
			if slices.Contains(list, k) {
				of = t
			}
		}
		switch {
		case k == "type":
		case of == "":
			return nil, unsupported(where+"/"+k, "keyword %q is not supported; supported: %s", k, supportedKeywords())
		case !slices.Contains(implied, of):
			implied = append(implied, of)
		}
	}
	given, ok := s.get("type")
	if !ok {
		if len(implied) == 0 {
			return []string{"any"}, nil
		}
		slices.Sort(implied)
		return implied, nil
	}
	list, ok := given.([]any)
	if !ok {
		list = []any{given}
	}
	var types []string
	for _, t := range list {
		name, ok := t.(string)
		if _, known := keywords[name]; !ok || !known && name != "integer" {
			return nil, invalidSchema(where+"/type", "unknown type %s", formatJSON(t))
		}
		types = append(types, name)
	}
	return types, nil
}

// ofTypes writes values of any of some types.
func (w *schemaWriter) ofTypes(s *object, types []string, where string) (expr, error) {
	all := alt{}
	for _, t := range types {
		var e expr
		var err error
		switch t {
		case "any":
			return w.parts.any(), nil
		case "null":
			e = literal("null")
		case "boolean":
			e = w.parts.boolean()
		case "integer", "number":
			e, err = w.number(s, t == "integer", where)
		case "string":
			e, err = w.text(s, where)
		case "array":
			e, err = w.array(s, where)
		case "object":
			e, err = w.properties(s, where)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return all, nil
}

// values writes enum and const.
func (w *schemaWriter) values(s *object, keyword, where string) (expr, error) {
	list := []any{s.values[keyword]}
	if keyword == "enum" {
		var ok bool
		if list, ok = s.values[keyword].([]any); !ok {
			return nil, invalidSchema(where+"/enum", "must be a list")
		}
	}
	types, err := w.types(s, []string{"type"}, where)
	if err != nil {
		return nil, err
	}
	all := alt{}
	for _, v := range list {
		if slices.ContainsFunc(types, func(t string) bool { return isOf(v, t) }) {
			all = append(all, literal(formatJSON(v)))
		}
	}
	return all, nil
}

// isOf reports whether a value is of a type.
func isOf(v any, t string) bool {
	switch v := v.(type) {
	case nil:
		return t == "null" || t == "any"
	case bool:
		return t == "boolean" || t == "any"
	case string:
		return t == "string" || t == "any"
	case json.Number:
		r, ok := rational(v)
		return t == "number" || t == "any" || t == "integer" && ok && r.IsInt()
	case []any:
		return t == "array" || t == "any"
	}
	return t == "object" || t == "any"
}

// combined writes anyOf, oneOf and allOf.
func (w *schemaWriter) combined(keyword string, value any, where string) (expr, error) {
	list, ok := value.([]any)
	if !ok || len(list) == 0 {
		return nil, invalidSchema(where, "must be a list of at least one schema")
	}
	if keyword == "allOf" && len(list) > 1 {
		return nil, unsupported(where, "more than one schema")
	}
	if keyword == "oneOf" {
		if err := w.disjoint(list, where); err != nil {
			return nil, err
		}
	}
	all := alt{}
	for i, s := range list {
		e, err := w.schema(s, fmt.Sprintf("%s/%d", where, i))
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}
