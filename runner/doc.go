// Package runner is the fixture around the bundled engine, and, through package harness, around any
// other: it starts an inference engine for a test, drives it, tears it down, and proves that it is
// gone or names what keeps it.
//
//	r := runner.New(t, runner.Config{Model: fixtures.Bundled()})
//	got := r.GenerateGreedy("The lighthouse", 16)
//
// A suite with an engine of its own imports package harness instead, which links no engine:
// harness.Start takes anything with two methods. Both packages share their types and options.
package runner

import (
	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/harness"
)

var _ interface {
	harness.Engine
	harness.Streamer
	harness.PrefixCacheResetter
	harness.Holder
	harness.FaultReporter
	harness.PartLister
	harness.ProcessLister
	harness.Sleeper
	harness.ShutdownReporter
	harness.ActivityReporter
	harness.EOSTokenLister
	harness.Chatter
} = (*engine.Engine)(nil)
