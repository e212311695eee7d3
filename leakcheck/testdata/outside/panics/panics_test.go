package panics

import (
	"testing"

	"guard"

	"github.com/enginetest/enginetest/leakcheck"
)

// TestFail_panic ends the process, so it has a package of its own.
func TestFail_panic(t *testing.T) {
	leaks := leakcheck.Guard(t)
	e := guard.Open()
	defer e.Close()
	leaks.Track("engine", e)
	if e.Use() > 0 {
		panic("the engine exploded")
	}
	e.Use()
}
