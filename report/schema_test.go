package report

import (
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/enginetest/enginetest/verdict"
)

var update = flag.Bool("update", false, "write report.schema.json")

// TestSchema compares the committed schema with the types: a field cannot change without it.
func TestSchema(t *testing.T) {
	s := schemaOf(reflect.TypeFor[Report]())
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = SchemaVersion
	want, err := json.MarshalIndent(s, "", " ")
	require.NoError(t, err)
	want = append(want, '\n')
	if *update {
		require.NoError(t, os.WriteFile("report.schema.json", want, 0o644))
	}
	got, err := os.ReadFile("report.schema.json")
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got), "go test ./report -run TestSchema -update")
}

// enums are the values of the types that have few.
var enums = map[reflect.Type][]any{
	reflect.TypeFor[Status]():        {StatusPass, StatusFail, StatusSkip, StatusUnfinished},
	reflect.TypeFor[Result]():        {ResultPass, ResultFail, ResultIncomplete},
	reflect.TypeFor[Triage]():        {TriageNew, TriageKnown, TriageFlaky, TriageFixed},
	reflect.TypeFor[Format]():        {FormatJSON, FormatText, FormatJUnit, FormatReport},
	reflect.TypeFor[verdict.Class](): {"leak", "engine", "test", "timeout", "capacity", "infra"},
}

func schemaOf(typ reflect.Type) map[string]any {
	switch {
	case enums[typ] != nil:
		return map[string]any{"enum": enums[typ]}
	case typ == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case typ == reflect.TypeFor[json.RawMessage]():
		return map[string]any{}
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return schemaOf(typ.Elem())
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(typ.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(typ.Elem())}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	}
	properties, required := map[string]any{}, []string{}
	for f := range typ.Fields() {
		if !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		properties[name] = schemaOf(f.Type)
		if options == "" {
			required = append(required, name)
		}
	}
	return map[string]any{"type": "object", "properties": properties, "required": required}
}
