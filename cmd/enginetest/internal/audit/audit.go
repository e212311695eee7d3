// Package audit finds tests that prove less than they seem to: in their source, and in what ran.
package audit

import (
	"fmt"

	"github.com/enginetest/enginetest/internal/lint"
)

// Finding is one weakness of a test.
type Finding struct {
	Check   string `json:"check"`
	File    string `json:"file"`
	Line    int    `json:"line"`
	Package string `json:"package"`
	Test    string `json:"test,omitempty"`
	Message string `json:"message"`
}

// String formats the finding like a compiler's error.
func (f Finding) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Check, f.Message)
}

// The checks of what ran; those of the source are in internal/lint. A comment
// "audit:ignore CHECK reason" at the test, or on the line above it, accepts a finding.
const (
	CheckNeverRan   = "never-ran"   // no result has the test
	CheckOnlySkips  = "only-skips"  // every result skips it
	CheckLooseBound = "loose-bound" // a bound that no measured value comes near
	CheckNeverFired = "never-fired" // a fault that was injected and never struck
)

// Source runs the static checks on units.
func Source(units []lint.Unit) (findings []Finding, tests []lint.Test) {
	for _, u := range units {
		for _, c := range lint.Checks() {
			for _, f := range c.Run(u) {
				at := u.Fset.Position(f.Pos)
				findings = append(findings, Finding{f.Check, at.Filename, at.Line, u.Path, f.Test, f.Message})
			}
		}
		tests = append(tests, u.Tests()...)
	}
	return findings, tests
}
