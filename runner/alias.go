package runner

import (
	"time"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/harness"
)

// These are the names here of package harness, which has the fixture and links no engine.
type (
	// TB is the part of testing.TB that a fixture uses.
	TB      = harness.TB
	Runner  = harness.Runner
	Fixture = harness.Fixture
	Engine  = harness.Engine
	Option  = harness.Option
	Report  = harness.Report
	Step    = harness.Step
	Error   = harness.Error
	Beam    = harness.Beam
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
