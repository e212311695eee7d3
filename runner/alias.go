package runner

import (
	"time"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/harness"
)

// These are the names here of package harness, which has the fixture and links no engine.
type (
	// TB is [harness.TB]: the part of testing.TB that a fixture uses.
	TB = harness.TB
	// Runner is [harness.Runner]: an engine that a test owns.
	Runner = harness.Runner
	// Fixture is [harness.Fixture]: a started engine with a record of what was there before it.
	Fixture = harness.Fixture
	// Engine is [harness.Engine]: what a fixture needs of an engine.
	Engine = harness.Engine
	// Option is [harness.Option]: changes how a fixture starts, or what its teardown accepts.
	Option = harness.Option
	// Report is [harness.Report]: what a teardown did and found, step by step.
	Report = harness.Report
	// Step is [harness.Step]: one check of a teardown.
	Step = harness.Step
	// Error is [harness.Error]: what an engine left behind.
	Error = harness.Error
	// Beam is [harness.Beam]: one result of a beam search.
	Beam = harness.Beam
)

// Name is [harness.Name]: what messages call the engine.
func Name(name string) Option { return harness.Name(name) }

// StartTimeout is [harness.StartTimeout]: it bounds the start of the engine.
func StartTimeout(d time.Duration) Option { return harness.StartTimeout(d) }

// TeardownTimeout is [harness.TeardownTimeout]: the budget of the whole teardown.
func TeardownTimeout(d time.Duration) Option { return harness.TeardownTimeout(d) }

// Allow is [harness.Allow]: it accepts a finding, for a reason.
func Allow(pattern, reason string) Option { return harness.Allow(pattern, reason) }

// DeviceSource is [harness.DeviceSource]: where device memory is read from.
func DeviceSource(src gpuwait.Source) Option { return harness.DeviceSource(src) }

// DeviceSlack is [harness.DeviceSlack]: the device memory that may stay above the baseline.
func DeviceSlack(bytes int64) Option { return harness.DeviceSlack(bytes) }

// WithoutDeviceMemory is [harness.WithoutDeviceMemory]: it leaves device memory unchecked, for a
// reason.
func WithoutDeviceMemory(reason string) Option { return harness.WithoutDeviceMemory(reason) }

// NeedFree is [harness.NeedFree]: the device memory that must be free before the engine starts.
func NeedFree(bytes int64) Option { return harness.NeedFree(bytes) }

// NeedUtilization is [harness.NeedUtilization]: the share of each GPU that must be free before the
// engine starts.
func NeedUtilization(share float64) Option { return harness.NeedUtilization(share) }

// WithoutHost is [harness.WithoutHost]: it leaves the host unchecked, for a reason.
func WithoutHost(reason string) Option { return harness.WithoutHost(reason) }

// WatchDirs is [harness.WatchDirs]: folders in which nothing new may stay.
func WatchDirs(dirs ...string) Option { return harness.WatchDirs(dirs...) }
