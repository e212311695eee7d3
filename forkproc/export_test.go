package forkproc

import "time"

// Grace replaces the grace between the limits, which is 5 s in an ordinary go test.
func Grace(d time.Duration) Option { return func(c *config) { c.grace = d } }

// Report leaves it to the test to judge leftovers.
func Report(c *config) { c.keepQuiet = true }

// What the tests of this package compare with.
const (
	LeftoverTempFile = leftoverTempFile

	PhaseStart   = phaseStart
	PhaseBody    = phaseBody
	PhaseCleanup = phaseCleanup
	PhaseExit    = phaseExit
	PhaseInline  = phaseInline
)
