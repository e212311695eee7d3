package verdict

import (
	"encoding/json"
	"strings"
)

// Of returns the verdicts of err and of the errors that it wraps, each signature once. An error
// takes part by a method Verdicts() []Verdict, or Class() Class when the class is all it knows;
// what such an error wraps is its own business. An error without a class has no verdict.
func Of(err error) []Verdict {
	var list []Verdict
	seen := map[string]bool{}
	for _, v := range collect(err) {
		if v = v.complete(); !seen[v.Signature] {
			seen[v.Signature] = true
			list = append(list, v)
		}
	}
	return list
}

// ClassOf returns the most serious class of the verdicts of err, "" when it has none.
func ClassOf(err error) Class { return Worst(Of(err)...) }

func collect(err error) []Verdict {
	switch e := err.(type) { //nolint:errorlint // each level of the tree is asked for itself
	case nil:
		return nil
	case interface{ Verdicts() []Verdict }:
		return e.Verdicts()
	case interface{ Class() Class }:
		if c := e.Class(); c != "" {
			return []Verdict{{Class: c, Message: firstLine(err.Error())}}
		}
	}
	switch e := err.(type) { //nolint:errorlint // see above
	case interface{ Unwrap() []error }:
		var list []Verdict
		for _, inner := range e.Unwrap() {
			list = append(list, collect(inner)...)
		}
		return list
	case interface{ Unwrap() error }:
		return collect(e.Unwrap())
	}
	return nil
}

// With returns err with a class.
func With(class Class, err error) error { return &withClass{class, err} }

type withClass struct {
	class Class
	err   error
}

func (e *withClass) Error() string { return e.err.Error() }
func (e *withClass) Class() Class  { return e.class }
func (e *withClass) Unwrap() error { return e.err }

// JSON returns an error as a JSON object with its message and verdicts, null for nil. encoding/json
// by itself makes {} of most errors.
func JSON(err error) json.RawMessage {
	if err == nil {
		return json.RawMessage("null")
	}
	out, failed := json.Marshal(struct {
		Message  string    `json:"message"`
		Verdicts []Verdict `json:"verdicts,omitempty"`
	}{err.Error(), Of(err)})
	if failed != nil { // someone's Details are not JSON
		out, _ = json.Marshal(map[string]string{"message": err.Error()})
	}
	return out
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
