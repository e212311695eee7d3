// Package faketb is a test double for testing.TB: it records what a fixture or a check says of a test.
package faketb

import (
	"errors"
	"fmt"
)

// T records failures and runs cleanups. Use [Run] to run a test body on one.
type T struct {
	TestName string
	Failures []string
	cleanups []func()
}

// errFatal is what Fatalf panics with, in place of runtime.Goexit.
var errFatal = errors.New("fatal")

// Helper does nothing.
func (t *T) Helper() {}

// Name returns TestName.
func (t *T) Name() string { return t.TestName }

// Cleanup registers f for the end of the body.
func (t *T) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

// Errorf records a failure.
func (t *T) Errorf(format string, args ...any) {
	t.Failures = append(t.Failures, fmt.Sprintf(format, args...))
}

// Fatalf records a failure and ends the body.
func (t *T) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	panic(errFatal)
}

// Run runs one test, TestPlanted, from start to its last cleanup, and returns its failures.
func Run(body func(t *T)) []string {
	t := &T{TestName: "TestPlanted"}
	func() {
		defer func() {
			switch v := recover(); v {
			case nil, errFatal:
			default:
				panic(v)
			}
		}()
		body(t)
	}()
	t.RunCleanups()
	return t.Failures
}

// RunCleanups runs the cleanups, last registered first.
func (t *T) RunCleanups() {
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.cleanups[i]()
	}
}
