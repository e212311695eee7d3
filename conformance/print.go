package conformance

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/enginetest/enginetest/llm"
)

// requests prints requests as Go, one per line, without fields that are zero.
func requests(reqs []llm.Request) string {
	var b strings.Builder
	for i, q := range reqs {
		if i == 8 {
			fmt.Fprintf(&b, "    and %d more\n", len(reqs)-i)
			break
		}
		b.WriteString("    " + literal(reflect.ValueOf(q)) + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}

// literal prints a value as a Go expression.
func literal(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Struct:
		var fields []string
		for i := range v.NumField() {
			if f := v.Field(i); !f.IsZero() {
				fields = append(fields, v.Type().Field(i).Name+": "+literal(f))
			}
		}
		return v.Type().String() + "{" + strings.Join(fields, ", ") + "}"
	case reflect.Pointer:
		if v.IsNil() {
			return "nil"
		}
		e := v.Elem()
		if e.Kind() == reflect.Int64 {
			return fmt.Sprintf("new(int64(%d))", e.Int())
		}
		return "new(" + literal(e) + ")"
	case reflect.String:
		return fmt.Sprintf("%q", v.String())
	}
	return fmt.Sprintf("%#v", v.Interface())
}

// answer prints a completion in a line.
func answer(c llm.Completion) string {
	s := fmt.Sprintf("%q", c.Text)
	if c.Text == "" || len(c.TokenIDs) > 0 {
		s = fmt.Sprintf("%v %q", c.TokenIDs, c.Text)
	}
	if c.StopReason != "" {
		return fmt.Sprintf("%s (%s: %q)", s, c.FinishReason, c.StopReason)
	}
	return fmt.Sprintf("%s (%s)", s, c.FinishReason)
}

// answers prints outputs in a line.
func answers(outs []llm.Output) string {
	var all []string
	for _, o := range outs {
		for _, c := range o.Completions {
			all = append(all, answer(c))
		}
	}
	return strings.Join(all, ", ")
}
