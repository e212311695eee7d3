package grammar

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// validator compiles a schema with a library that follows the specification.
func validator(t *testing.T, schema string) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	require.NoError(t, err, schema)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource("schema.json", doc), schema)
	s, err := c.Compile("schema.json")
	require.NoError(t, err, schema)
	return s
}

func valid(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	return s.Validate(v)
}

// Whatever is drawn from a grammar is valid for its schema.
func TestSchemas(t *testing.T) {
	v, _ := bundled(t)
	random := rand.New(rand.NewPCG(7, 8))
	for _, schema := range []string{
		`{}`, `true`, `{"type": "object"}`, `{"type": ["string", "null"], "minLength": 2, "maxLength": 3}`,
		`{"type": "integer", "minimum": -17, "maximum": 1234}`, `{"type": "integer", "exclusiveMinimum": 99}`,
		`{"type": "integer", "maximum": -5}`, `{"type": "number", "minimum": -1.5, "exclusiveMaximum": 3}`,
		`{"type": "number", "exclusiveMinimum": 0, "maximum": 1}`, `{"type": "number", "maximum": -3}`,
		`{"type": "string", "pattern": "^[a-z\"\\\\]{2,5}$"}`, `{"type": "string", "pattern": "x|^y"}`,
		`{"type": "string", "pattern": "^.\\s?$"}`,
		`{"type": "string", "format": "date"}`, `{"type": "string", "format": "date-time"}`, `{"type": "string", "format": "time"}`,
		`{"type": "string", "format": "uuid"}`, `{"type": "string", "format": "ipv4"}`, `{"type": "string", "format": "email"}`,
		`{"type": "string", "format": "hostname"}`,
		`{"enum": [1, "a\n<é", null, {"b": [true, 1.5]}]}`, `{"type": "integer", "enum": [1, 2.0, "x", 1.5]}`, `{"const": "\""}`,
		`{"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}`,
		`{"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}`,
		`{"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": false}`, `{"type": "array", "maxItems": 0}`,
		`{"type": "array", "uniqueItems": true, "maxItems": 1}`,
		`{"properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 3}, "c": false}, "required": ["b", "z"]}`,
		`{"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2}`,
		`{"type": "object", "additionalProperties": false}`, `{"type": "object", "properties": {}, "required": ["q"]}`,
		`{"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v", "next"]}}, "$ref": "#/$defs/node"}`,
		`{"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]}`,
		`{"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "integer"}}, "required": ["k"]}, {"type": "object", "properties": {"k": {"enum": ["b", "c"]}}, "required": ["k"]}]}`,
		`{"allOf": [{"type": "boolean"}]}`, `{"$ref": "#/properties/a~1b", "properties": {"a/b": {"type": "null"}}}`,
	} {
		g, err := JSONSchema(schema, v, testLimit)
		if strings.HasPrefix(schema, `{"$ref": "#/properties`) {
			assert.ErrorContains(t, err, "properties beside $ref")
			continue
		}
		require.NoError(t, err, schema)
		check := validator(t, schema)
		for range 30 {
			text := draw(t, g, random, 60)
			assert.NoError(t, valid(t, check, text), "%s: %s", schema, text)
		}
	}
}

// Texts that people write are in the language, not only those that are drawn.
func TestSchemaTakes(t *testing.T) {
	g, err := JSONSchema(`{"type": "object", "properties": {"n": {"type": "integer", "minimum": 5, "maximum": 1200}, "s": {"type": "string"}, "l": {"type": "array", "items": {"type": "number"}}}, "required": ["n"]}`, bytesOnly(), testLimit)
	require.NoError(t, err)
	for _, s := range []string{
		`{"n":5}`, `{"n": 1200}`, "{\n  \"n\": 999,\n  \"s\": \"a \\\"é\\u00e9\\n\"\n}", `{"n":10,"l":[1,-2.5, 3e+10,0]}`, `{ "n":11, "l": [] }`,
	} {
		assert.True(t, matches(t, g, s), s)
	}
	for _, s := range []string{`{}`, `{"n":4}`, `{"n":1201}`, `{"n":05}`, `{"s":"a","n":5}`, `{"n":5,}`, `{"n":5}x`, "{\"n\":5,\"s\":\"\n\"}"} {
		assert.False(t, matches(t, g, s), s)
	}
}

// A refused keyword lists those that work, and a schema with any of these is taken.
func TestSupportedKeywords(t *testing.T) {
	_, err := schemaRules(`{"properties": {"a": {"if": true}}}`)
	var refused *Error
	require.ErrorAs(t, err, &refused)
	require.True(t, refused.Unsupported)
	listed, ok := strings.CutPrefix(refused.What, `keyword "if" is not supported; supported: `)
	require.True(t, ok, refused.What)
	schemas := map[string]string{
		"$ref": `"#/$defs/a"`, "type": `"object"`, "enum": `[1]`, "const": `1`, "anyOf": `[true]`, "oneOf": `[true]`,
		"allOf": `[true]`, "properties": `{}`, "required": `["a"]`, "additionalProperties": `false`, "minProperties": `1`,
		"maxProperties": `2`, "items": `true`, "prefixItems": `[true]`, "minItems": `1`, "maxItems": `2`,
		"uniqueItems": `false`, "minLength": `1`, "maxLength": `2`, "pattern": `"a"`, "format": `"date"`, "minimum": `1`,
		"maximum": `2`, "exclusiveMinimum": `1`, "exclusiveMaximum": `9`, "multipleOf": `1, "type": "integer"`,
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(schemas)), strings.Split(listed, ", "))
	for k, value := range schemas {
		_, err := schemaRules(`{"$defs": {"a": true}, "` + k + `": ` + value + `}`)
		assert.NoError(t, err, k)
	}
}

// TestRandomSchemas: of random schemas, each is refused by a typed error, or what is drawn is valid.
func TestRandomSchemas(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 200
	}
	if os.Getenv("ENGINETEST_LONG") != "" {
		n = 10_000
	}
	v, _ := bundled(t)
	refused, drawn := 0, 0
	for i := range n {
		random := rand.New(rand.NewPCG(uint64(i), 42))
		data, err := json.Marshal((&schemas{random}).any(3))
		require.NoError(t, err)
		schema := string(data)
		g, err := JSONSchema(schema, v, testLimit)
		if err != nil {
			e, ok := errors.AsType[*Error](err)
			require.True(t, ok, "%v", err)
			assert.True(t, e.Unsupported, "seed %d: %s: %v", i, schema, err)
			refused++
			continue
		}
		check := validator(t, schema)
		for range 3 {
			text := draw(t, g, random, 60)
			require.NoError(t, valid(t, check, text), "seed %d: %s: %s", i, schema, text)
			drawn++
		}
	}
	t.Logf("%d schemas: %d refused, %d texts drawn, all valid", n, refused, drawn)
	assert.Greater(t, drawn, n, "most are supported")
	assert.Positive(t, refused)
}

// schemas draws schemas, now and then with what is not supported.
type schemas struct{ *rand.Rand }

type schemaNode = map[string]any

func (r *schemas) oneIn(n int) bool { return r.IntN(n) == 0 }

func (r *schemas) any(depth int) schemaNode {
	if r.oneIn(60) {
		return []schemaNode{
			{"not": schemaNode{"type": "null"}},
			{"type": "array", "uniqueItems": true},
			{"type": "number", "multipleOf": 3},
			{"type": "object", "patternProperties": schemaNode{"^x": schemaNode{}}},
			{"if": schemaNode{}, "then": schemaNode{}},
			{"type": "string", "format": "regex"},
			{"contains": schemaNode{}},
			{"allOf": []schemaNode{{}, {"type": "null"}}},
		}[r.IntN(8)]
	}
	kinds := 6
	if depth > 0 {
		kinds = 9
	}
	switch r.IntN(kinds) {
	case 0:
		return schemaNode{"type": "boolean"}
	case 1:
		return schemaNode{"type": []string{"null", "integer"}[:1+r.IntN(2)]}
	case 2:
		return r.number()
	case 3, 4:
		return r.text()
	case 5:
		return schemaNode{"enum": []any{r.IntN(10), "v\"" + fmt.Sprint(r.IntN(9)), nil, []int{1, 2}}[r.IntN(3):]}
	case 6:
		return r.array(depth - 1)
	case 7:
		return r.object(depth - 1)
	}
	switch r.IntN(3) {
	case 0:
		return schemaNode{"anyOf": []schemaNode{r.any(depth - 1), r.any(depth - 1)}}
	case 1:
		return schemaNode{"oneOf": []schemaNode{r.any(depth - 1), r.any(depth - 1)}, "title": "one"}
	}
	return schemaNode{
		"type": "object", "required": []string{"item"}, "properties": schemaNode{"item": r.any(depth - 1)},
		"additionalProperties": r.any(depth - 1), "description": "d",
	}
}

func (r *schemas) number() schemaNode {
	s := schemaNode{"type": []string{"integer", "number"}[r.IntN(2)]}
	lo := float64(r.IntN(4000)-2000) / float64(1+r.IntN(4))
	for k, v := range map[string]float64{
		"minimum": lo, "maximum": lo + float64(1+r.IntN(3000)), "exclusiveMinimum": lo - 1, "exclusiveMaximum": lo + 3001,
	} {
		if r.oneIn(3) {
			s[k] = v
		}
	}
	return s
}

func (r *schemas) text() schemaNode {
	switch r.IntN(5) {
	case 0:
		names := []string{"date", "date-time", "time", "uuid", "ipv4", "email", "hostname"}
		return schemaNode{"type": "string", "format": names[r.IntN(len(names))]}
	case 1:
		patterns := []string{`^[A-Z]{2}-\d+$`, `a.c`, `^(foo|bar"){1,3}$`, `\\|/`, `^\p{L}+$`, `[^a]$`}
		return schemaNode{"type": "string", "pattern": patterns[r.IntN(len(patterns))]}
	case 2:
		lo := r.IntN(5)
		return schemaNode{"type": "string", "minLength": lo, "maxLength": lo + r.IntN(10)}
	case 3:
		return schemaNode{"type": "string", "minLength": r.IntN(4)}
	}
	return schemaNode{"type": "string"}
}

func (r *schemas) array(depth int) schemaNode {
	s := schemaNode{"type": "array", "items": r.any(depth)}
	lo := r.IntN(3)
	if r.oneIn(2) {
		s["minItems"] = lo
	}
	if r.oneIn(2) {
		s["maxItems"] = lo + r.IntN(3)
	}
	if r.oneIn(3) {
		s["prefixItems"] = []schemaNode{r.any(depth), r.any(depth)}[:1+r.IntN(2)]
	}
	return s
}

func (r *schemas) object(depth int) schemaNode {
	props, required := schemaNode{}, []string{}
	for _, name := range []string{"id", "name \"x\"", "größe", "tags", "o"}[:r.IntN(6)] {
		props[name] = r.any(depth)
		if r.oneIn(2) {
			required = append(required, name)
		}
	}
	s := schemaNode{"type": "object", "properties": props, "required": required}
	switch r.IntN(4) {
	case 0:
		s["additionalProperties"] = false
	case 1:
		s["additionalProperties"] = r.any(depth)
	case 2:
		s["minProperties"] = r.IntN(2)
	}
	return s
}

func BenchmarkMask(b *testing.B) {
	v, _ := bundled(b)
	g, err := JSONSchema(`{"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}}`, v, testLimit)
	require.NoError(b, err)
	m := g.Matcher()
	var output []int32
	for _, c := range `{"name": "a` {
		for id, s := range v.texts {
			if s == string(c) {
				output = append(output, int32(id))
			}
		}
	}
	for b.Loop() {
		if _, err := m.Mask(output); err != nil {
			b.Fatal(err)
		}
	}
}
