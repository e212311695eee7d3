package leakcheck

import (
	"fmt"

	"github.com/enginetest/enginetest/verdict"
)

// Verdicts returns a leak for each finding.
func (e *Error) Verdicts() (list []verdict.Verdict) {
	for _, f := range e.Findings {
		v := verdict.Verdict{
			Class: verdict.ClassLeak, Signature: "leak: " +
				f.Signature, Source: "leakcheck", Message: f.Text, Resource: string(f.Kind),
		}
		if accept := f.pattern(); accept != "" {
			v.Accept = fmt.Sprintf("leakcheck.Allow(%q, \"reason\")", accept)
		}
		list = append(list, v)
	}
	return list
}
