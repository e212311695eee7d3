package harness

import (
	"fmt"
	"time"

	"github.com/enginetest/enginetest/gpuwait"
	"github.com/enginetest/enginetest/leakcheck"
)

// Option changes how a fixture starts, or what its teardown accepts.
type Option func(*options)

type options struct {
	name     string
	pkg      string // that messages name
	start    time.Duration
	teardown time.Duration
	allow    []leakcheck.Option
	source   gpuwait.Source // nil: the machine's own
	noDevice string         // why device memory is not checked
	slack    int64
	needs    []need
	dirs     []string     // that the host check looks at
	noHost   string       // why the host is not checked
	say      func(string) // told how a long wait goes
	startBy  time.Time    // so that a teardown can follow; zero: no limit
	end      time.Time    // before the test's own deadline; zero: none
	exited   func(Report) // told what is left when open does not return

	sole func() func() bool // reports, from now on, whether no other test runs in this process
	temp func() string      // the test's own folder for temporary files
}

// need is room that must be free before the engine starts.
type need struct {
	name      string // as in the test's source
	condition gpuwait.Condition
}

// The defaults: generous, because a passing start and a passing teardown take what they need and no
// more.
const (
	defaultStart    = 5 * time.Minute // vLLM's handshake limit
	defaultTeardown = 2 * time.Minute // a driver that reclaims 100 GiB needs a second; a drain needs what it needs
	// defaultSlack is device memory that may stay after an in-process engine: the driver's own
	// share of cuInit, 3.25 MiB measured on an H200 with driver 580, flat over 200 engines.
	defaultSlack = gpuwait.DefaultSlack
)

// Name is what messages call the engine; the test's name otherwise.
func Name(name string) Option { return func(o *options) { o.name = name } }

// Package is the package that messages name for options and findings, "harness" by default. A
// package that wraps this one and offers its options passes its own name.
func Package(name string) Option { return func(o *options) { o.pkg = name } }

func packageName(opts []Option) string {
	o := defaults()
	for _, opt := range opts {
		opt(&o)
	}
	return o.pkg
}

func defaults() options {
	return options{
		name: "engine", pkg: "harness", start: defaultStart, teardown: defaultTeardown, slack: defaultSlack,
		say: func(string) {}, sole: soleByStacks, temp: func() string { return "" },
	}
}

// StartTimeout bounds the start of the engine (default 5 minutes, and always the test's own
// deadline).
func StartTimeout(d time.Duration) Option { return func(o *options) { o.start = d } }

// TeardownTimeout is the budget of the whole teardown (default 2 minutes, and always the test's own
// deadline). Each step gets a share, so that an inner wait ends, with its better message, before an
// outer one.
func TeardownTimeout(d time.Duration) Option { return func(o *options) { o.teardown = d } }

// Allow accepts a finding, for a reason: it is [leakcheck.Allow]. The failure message contains the
// pattern.
func Allow(pattern, reason string) Option {
	accept := leakcheck.Allow(pattern, reason)
	return func(o *options) { o.allow = append(o.allow, accept) }
}

// DeviceSource reads device memory from src instead of the machine's own NVML or sysfs.
func DeviceSource(src gpuwait.Source) Option { return func(o *options) { o.source = src } }

// DeviceSlack is how much device memory may stay above the baseline (default 8 MiB: what the driver
// itself keeps in a process that used it).
func DeviceSlack(bytes int64) Option { return func(o *options) { o.slack = bytes } }

// WithoutDeviceMemory leaves device memory unchecked; the report gives the reason.
func WithoutDeviceMemory(reason string) Option { return func(o *options) { o.noDevice = reason } }

// NeedFree waits, before anything is started, until every visible GPU has this many bytes free, at
// most for the start timeout. A failure names who holds them.
func NeedFree(bytes int64) Option {
	n := need{fmt.Sprintf("NeedFree(%d)", bytes), gpuwait.NeedFree(bytes)}
	return func(o *options) { o.needs = append(o.needs, n) }
}

// NeedUtilization is NeedFree for an engine that is configured by its share of a GPU: vLLM's
// gpu_memory_utilization.
func NeedUtilization(share float64) Option {
	n := need{fmt.Sprintf("NeedUtilization(%v)", share), gpuwait.NeedUtilization(share)}
	return func(o *options) { o.needs = append(o.needs, n) }
}

// WithoutHost leaves the host unchecked: descriptors, sockets, mappings, shared memory, files and
// children. The report gives the reason.
func WithoutHost(reason string) Option { return func(o *options) { o.noHost = reason } }

// WatchDirs adds folders to what the host check looks at: a file that appears in one while the
// engine is there, and stays, is a finding, whoever made it. The folders should be the test's own.
// In the folder for temporary files and in /dev/shm, what the engine made is found by default.
func WatchDirs(dirs ...string) Option {
	return func(o *options) { o.dirs = append(o.dirs, dirs...) }
}
