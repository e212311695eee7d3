package gpuwait

import (
	"fmt"
	"time"
)

// Each verb takes options of its own type: an option that a verb would ignore does not compile.
type (
	// ForClearOption is an option of [ForClear].
	ForClearOption interface{ forClear(*options) }
	// ClearOption is an option of [Clear], and so of ForClear.
	ClearOption interface {
		ForClearOption
		clear(*options)
	}
	// AcquireOption is an option of [Acquire].
	AcquireOption interface{ acquire(*options) }
	// LeaseOption is an option of [AcquireContext], and so of Acquire.
	LeaseOption interface {
		AcquireOption
		lease(*options)
	}
	// SnapshotOption is an option of [Snapshot].
	SnapshotOption interface{ snapshot(*options) }
	// InspectOption is an option of [Inspect].
	InspectOption interface{ inspect(*options) }
	// AccountOption is an option of [NewAccount].
	AccountOption interface{ account(*options) }
	// ReturnedOption is an option of [Account.Returned].
	ReturnedOption interface{ returned(*options) }
)

// What several verbs take.
type (
	// SelectOption chooses devices, for every verb that reads or leases them.
	SelectOption interface {
		ClearOption
		LeaseOption
		SnapshotOption
		InspectOption
		AccountOption
	}
	// WaitOption is an option of every verb that waits.
	WaitOption interface {
		ClearOption
		LeaseOption
		ReturnedOption
	}
	// PatienceOption is an option of every verb that can give up early.
	PatienceOption interface {
		ClearOption
		ReturnedOption
	}
	// ownersOption is an option of every verb that counts what live fixtures own.
	ownersOption interface {
		ClearOption
		SnapshotOption
		AccountOption
	}
	// FolderOption is an option of every verb that looks at leases.
	FolderOption interface {
		ClearOption
		LeaseOption
		InspectOption
	}
	// SourceOption is an option of every verb that opens a source by itself.
	SourceOption interface {
		ForClearOption
		LeaseOption
	}
	// TestOption is an option of the verbs that are bound to a test.
	TestOption interface {
		ForClearOption
		AcquireOption
	}
)

type option func(*options)

func (f option) forClear(o *options) { f(o) }
func (f option) clear(o *options)    { f(o) }
func (f option) acquire(o *options)  { f(o) }
func (f option) lease(o *options)    { f(o) }
func (f option) snapshot(o *options) { f(o) }
func (f option) inspect(o *options)  { f(o) }
func (f option) account(o *options)  { f(o) }
func (f option) returned(o *options) { f(o) }

type options struct {
	names     []string
	getenv    func(string) (string, bool)
	timeout   time.Duration // negative: the verb's default
	patience  time.Duration
	owners    *owners
	reproduce string
	leaseDir  string
	grace     time.Duration
	skip      bool
	skipBusy  bool
	minFree   int64
	slack     int64
	name      string
	src       Source
	progress  func(string)
	hidden    func([]Device) string // tests replace it
}

// newOptions applies a verb's options; apply is the method of their type.
func newOptions[O any](opts []O, apply func(O, *options)) *options {
	o := &options{timeout: -1, patience: defaultPatience, slack: DefaultSlack, owners: &processOwners}
	for _, opt := range opts {
		apply(opt, o)
	}
	return o
}

func (o *options) devices(src Source) ([]Device, error) {
	all, err := src.Devices()
	if err != nil {
		return nil, err
	}
	if len(o.names) > 0 {
		return Select(all, o.names...)
	}
	list, err := Visible(all, o.getenv)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("gpuwait: %w: the source lists no device", ErrNoSource)
	}
	return list, err
}

// Defaults of the options.
const (
	defaultTimeout  = 2 * time.Minute
	defaultPatience = 30 * time.Second
	// DefaultSlack is what a process that used CUDA may keep: the driver's own share of cuInit is
	// 3.25 MiB on an H200 with driver 580, the same after 200 engines.
	DefaultSlack = 8 << 20
)

// Devices chooses devices as [Select] does. Without it, a verb takes what the environment makes
// visible, as [Visible] does.
func Devices(names ...string) SelectOption { return option(func(o *options) { o.names = names }) }

// Env replaces os.LookupEnv when a verb looks for the visible devices: a child's environment, for
// one.
func Env(getenv func(string) (string, bool)) SelectOption {
	return option(func(o *options) { o.getenv = getenv })
}

// Timeout bounds a wait. The default is two minutes, and no bound for Acquire. The context's
// deadline and, in the verbs that take a test, the test's deadline bound it too.
func Timeout(d time.Duration) WaitOption { return option(func(o *options) { o.timeout = d }) }

// Reproduce is the command that failure messages name. The verbs that take a test fill it in.
func Reproduce(command string) WaitOption { return option(func(o *options) { o.reproduce = command }) }

// Progress is called with one line when a wait has lasted two seconds and every five seconds from
// then on. It runs in the goroutine that waits. The verbs that take a test log the line.
func Progress(report func(line string)) WaitOption {
	return option(func(o *options) { o.progress = report })
}

// Patience is how long readings may stay identical, with the same live holders, before a wait gives
// up early; the default is 30 s. A holder that does nothing for that long is not about
// to let go.
func Patience(d time.Duration) PatienceOption { return option(func(o *options) { o.patience = d }) }

// KeepWaiting turns giving up early off.
func KeepWaiting() PatienceOption { return Patience(0) }

// ownedBy replaces the process's own list of owners.
func ownedBy(w *owners) ownersOption { return option(func(o *options) { o.owners = w }) }

// LeaseDir is the folder of the lock files; see [Lease] for the default.
func LeaseDir(dir string) FolderOption { return option(func(o *options) { o.leaseDir = dir }) }

// From makes a verb use this source instead of the one that [Open] returns.
func From(src Source) SourceOption { return option(func(o *options) { o.src = src }) }

// Grace is how long before the test's own deadline a wait ends, so that its message comes before
// the panic of go test's alarm. The default is a tenth of the time left, at least 1 s and at most
// 10 s.
func Grace(d time.Duration) TestOption { return option(func(o *options) { o.grace = d }) }

// SkipUnmeasurable skips the test, with the reason, where nothing can be measured or the
// environment hides every device. Without it the test fails: a check that did not happen must not
// look like one that passed.
func SkipUnmeasurable() TestOption { return option(func(o *options) { o.skip = true }) }

// MinFree makes Acquire take only devices with at least n free bytes, measured when it takes them.
func MinFree(n int64) LeaseOption { return option(func(o *options) { o.minFree = n }) }

// As is the name under which a lease is held: by default the test's, or the program's.
func As(name string) LeaseOption { return option(func(o *options) { o.name = name }) }

// SkipIfBusy makes Acquire skip the test, naming the holder, instead of failing it.
func SkipIfBusy() AcquireOption { return option(func(o *options) { o.skipBusy = true }) }

// Slack is how much device memory a family may keep; the default is DefaultSlack.
func Slack(n int64) ReturnedOption { return option(func(o *options) { o.slack = n }) }
