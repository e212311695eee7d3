// Package verdict says what kind of failure a failure is, in a form that programs read: a class, a
// signature that stays the same for the same cause, and typed fields. Any package can
// use it: it imports no other public one.
//
// An error that knows its class has a method Verdicts or Class; [Of] collects the verdicts of an
// error and of everything that it wraps. [Record] attaches them to a test, where "go test -json"
// carries them to [github.com/enginetest/enginetest/report].
package verdict

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"
)

// Class is the kind of a failure: it decides who looks at it and whether it may be retried.
type Class string

// The classes. The first four are about the code under test, the last two about the machine.
const (
	ClassTest     Class = "test"     // an expectation of the test was not met
	ClassLeak     Class = "leak"     // something outlived its owner
	ClassEngine   Class = "engine"   // the engine failed: it crashed, returned an error or broke its contract
	ClassTimeout  Class = "timeout"  // something did not end in its time, and it is not known why
	ClassCapacity Class = "capacity" // the machine is too small or is in use: too few devices, memory that others hold
	ClassInfra    Class = "infra"    // the machine or its services failed: a lost device, a full disk, a network error
)

// Classes returns all classes, the most serious first.
func Classes() []Class {
	return []Class{ClassLeak, ClassEngine, ClassTest, ClassTimeout, ClassCapacity, ClassInfra}
}

// Known reports whether c is one of the classes.
func (c Class) Known() bool { return slices.Contains(Classes(), c) }

// Retryable reports whether a second run of the same code may end differently because of the
// machine alone.
func (c Class) Retryable() bool { return c == ClassInfra || c == ClassCapacity }

// Verdict is one failure or finding. Empty fields are not known or do not apply.
type Verdict struct {
	Class     Class  `json:"class"`
	Signature string `json:"signature"`        // see [Signature]
	Source    string `json:"source,omitempty"` // the package that found it: "leakcheck"
	Message   string `json:"message,omitempty"`

	Resource string        `json:"resource,omitempty"`  // what it is about: "goroutine", a device's UUID, a path
	Holder   string        `json:"holder,omitempty"`    // the one who keeps it, with the evidence
	Value    int64         `json:"value,omitempty"`     // what was measured, in Unit
	Bound    int64         `json:"bound,omitempty"`     // what was allowed, in Unit
	Unit     string        `json:"unit,omitempty"`      // "bytes", "processes"
	Took     time.Duration `json:"took_ns,omitempty"`   // how long it was waited for
	Budget   time.Duration `json:"budget_ns,omitempty"` // how long it could have taken
	Accept   string        `json:"accept,omitempty"`    // the option that accepts it
	Repro    string        `json:"repro,omitempty"`     // the command that shows it again

	Details json.RawMessage `json:"details,omitempty"` // the source's own report
}

// Worst returns the most serious class among verdicts, "" when there are none: a product bug is
// never hidden behind a failure of the machine that came with it.
func Worst(verdicts ...Verdict) Class {
	order := Classes()
	var worst Class
	for _, v := range verdicts {
		if i := slices.Index(order, v.Class); i >= 0 && (worst == "" || i < slices.Index(order, worst)) {
			worst = v.Class
		}
	}
	return worst
}

// complete fills in what follows from the rest.
func (v Verdict) complete() Verdict {
	v.Class = cmp.Or(v.Class, ClassTest)
	v.Signature = cmp.Or(v.Signature, Signature(v.Class, v.Message))
	return v
}
