package forkproc

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// Result is Run for a body that returns a value. The value crosses from the child in JSON; a type
// that would lose something on the way is refused before the child starts. A child that does not
// pass ends t, unless Expect names its end: then Result returns the zero value.
//
// The value is all that comes back. A variable that the body captures is the child's own: what the
// body assigns to it, the parent does not see.
func Result[T any](t *testing.T, body func(t *testing.T) T, opts ...Option) T {
	t.Helper()
	var value T
	if err := crosses(reflect.TypeFor[T]()); err != nil {
		t.Fatalf("forkproc: Result: %v", err)
	}
	r := run(t, func(t *testing.T) {
		value = body(t)
		if s, last := self.place(t.Name()); s != nil && last {
			if err := leaveValue(answer{Value: value}); err != nil {
				t.Fatalf("forkproc: Result: %v", err)
			}
		}
	}, opts)
	if r.Value != nil {
		if err := json.Unmarshal(r.Value, &value); err != nil {
			t.Fatalf("forkproc: Result: %v", err)
		}
	}
	return value
}

// A result is an outcome with the value that the child returned.
type result struct {
	Outcome Outcome
	Value   json.RawMessage
}

// An answer is what a child leaves for its parent.
type answer struct {
	Value any
	Error string `json:",omitempty"`
}

func leaveValue(a answer) error {
	b, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("the value does not encode: %w", err)
	}
	return os.WriteFile(filepath.Join(self.dir, valueName), b, 0o600)
}

// takeValue reads the answer of a child that came to the end of its body.
func (c *child) takeValue() {
	b, err := os.ReadFile(filepath.Join(c.tmp, valueName))
	var a struct {
		Value json.RawMessage
		Error string
	}
	if err != nil || !c.facts.ended || json.Unmarshal(b, &a) != nil {
		return
	}
	c.value, c.facts.returned = a.Value, a.Error
	if c.facts.call && a.Error == "" {
		c.facts.verdict = "pass"
	}
}
