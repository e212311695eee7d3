package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/enginetest/enginetest/internal/engines"
	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/ledger"
)

// Fixture is a started engine with a record of what was there before it: what [Fixture.Close]
// compares with. It needs no test; [Runner] is a Fixture bound to one.
type Fixture struct {
	opts  options
	scope *leakcheck.Scope
	host  hostBaseline
	gpu   *deviceMemory

	evidence *evidence
	sole     func() bool // reports whether no other test ran in this process since the start

	mu        sync.Mutex
	engine    Engine // nil once closed
	refs      []*leakcheck.Ref
	processes []process
	devices   []string // on which the engine had memory

	opening
	entry *engines.Handle // among the open engines of this process

	once   sync.Once
	report Report
}

// Open starts an engine with open, under the start timeout. When open fails, or panics, what it
// left behind is looked for in the same way as by Close, and is part of the error. An open that
// returns an engine and an error has that engine shut down. An open that ends its goroutine
// (t.FailNow, t.Skip) is looked after in the same way; of what it left only a [Runner] can tell,
// through its test.
func Open[E Engine](ctx context.Context, open func(context.Context) (E, error), opts ...Option) (*Fixture, error) {
	if ctx == nil {
		return nil, errors.New("harness: Open with a nil context")
	}
	f := &Fixture{opts: defaults(), opening: here()}
	for _, o := range opts {
		o(&f.opts)
	}
	f.scope = leakcheck.NewScope(f.opts.name, f.opts.allow...)
	f.host = enterHost()
	f.sole, f.evidence = f.opts.sole(), gather(&f.opts)
	var err error
	// before the host's: opening NVML opens device files
	if f.gpu, err = watchDeviceMemory(ctx, &f.opts, f.host.alone); err != nil {
		f.host.leave()
		f.evidence.makers.Close()
		return nil, fmt.Errorf("%s did not start: %w", f.opts.name, err)
	}
	f.host.snapshot(f.opts.dirs)
	returned := false
	defer func() {
		if returned {
			return
		}
		if report := f.Close(context.WithoutCancel(ctx)); f.opts.exited != nil {
			f.opts.exited(report)
		}
	}()
	err = f.start(ctx, func(ctx context.Context) (Engine, error) {
		e, err := open(ctx)
		if v := reflect.ValueOf(&e).Elem(); isNil(v) {
			if err == nil {
				err = fmt.Errorf("open returned a nil %s and no error", v.Type())
			}
			return nil, err
		}
		return e, err
	})
	returned = true
	if err == nil {
		return f, nil
	}
	err = fmt.Errorf("%s did not start: %w", f.opts.name, err)
	report := f.Close(context.WithoutCancel(ctx))
	if left := report.Err(); left != nil {
		err = fmt.Errorf("%w\nand what was started of it is still there: %w", err, left)
	}
	return nil, err
}

// isNil reports whether an engine is a nil pointer, or a nil interface: those are none. A struct
// without fields is one.
func isNil(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Func, reflect.Map, reflect.Slice, reflect.Chan:
		return v.IsNil()
	}
	return false
}

// watch remembers what must be gone in the end: the engine and its parts, held weakly, and its
// processes.
func (f *Fixture) watch(e Engine) {
	track := func(name string, v any) {
		if reflect.ValueOf(v).Kind() != reflect.Pointer {
			return // a value has no identity that could outlive it
		}
		opts := slices.Clone(f.opts.allow)
		if h, ok := e.(Holder); ok {
			opts = append(opts, leakcheck.DeviceMemory(h))
		}
		ref := leakcheck.Track(name, v, opts...)
		if ref.Err() != nil && reflect.TypeOf(v).Elem().Size() < 16 {
			return // it shares its place with strangers, and has no pointer to keep anything by
		}
		f.refs = append(f.refs, ref)
	}
	track("engine", e)
	if p, ok := e.(PartLister); ok {
		for name, part := range p.Parts() {
			track(name, part)
		}
	}
	if p, ok := e.(ProcessLister); ok {
		f.processes = processes(p.PIDs())
	}
	f.gpu.read(f.processes)
	f.evidence.sample(f.processes)
	var held []ledger.Holding
	if h, ok := e.(Holder); ok {
		held = h.Holdings()
		f.gpu.own(f.opts.name, held)
		f.devices = slices.Sorted(maps.Keys(ledger.ByDevice(held)))
	}
	f.register(e, held)
}

// Engine is the engine, for what has no method here; nil once the fixture is closed. Do not keep
// it: the teardown proves that no one does.
func (f *Fixture) Engine() Engine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.engine
}

// Do runs call on behalf of the fixture: Close also looks for the goroutines that it starts.
func (f *Fixture) Do(call func()) { f.scope.Do(call) }

// Close shuts the engine down and checks that nothing of it is left, under the teardown timeout.
// The first call does the work; every call returns its report.
func (f *Fixture) Close(ctx context.Context) Report {
	if ctx == nil {
		ctx = context.Background() // the proof is not lost to that
	}
	f.once.Do(func() { f.report = f.teardown(ctx) })
	return f.report
}

// take hands the engine over to the teardown and forgets it.
func (f *Fixture) take() Engine {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.engine
	f.engine = nil
	if p, ok := e.(ProcessLister); ok {
		for _, q := range processes(p.PIDs()) { // it may have started more since
			if !slices.Contains(f.processes, q) {
				f.processes = append(f.processes, q)
			}
		}
	}
	f.evidence.sample(f.processes)
	return e
}

// recovered turns a panic of an engine's method into an error with its stack.
func recovered(what string, err *error) {
	v := recover()
	if v == nil {
		return
	}
	stack := debug.Stack()
	if p, ok := v.(*Panic); ok { // of a goroutine of its own
		v, stack = p.Value, p.Stack
	}
	*err = errors.Join(*err, fmt.Errorf("%s %w: %v\n%s", what, errPanicked, v, stack))
}

// live counts the fixtures of this process, for checks of what belongs to the whole process: with
// two fixtures alive, no one can say whose a new file descriptor is. It holds flags, no engine.
var live struct {
	sync.Mutex
	flags map[*bool]struct{}
}

// hostBaseline is what the process held before the engine, and whether other fixtures live.
type hostBaseline struct {
	state  *leakcheck.HostState
	err    error
	shared *bool // another fixture was alive at some time since enterHost
}

// enterHost registers a fixture.
func enterHost() hostBaseline {
	live.Lock()
	defer live.Unlock()
	shared := len(live.flags) > 0
	for f := range live.flags {
		*f = true
	}
	if live.flags == nil {
		live.flags = map[*bool]struct{}{}
	}
	live.flags[&shared] = struct{}{}
	return hostBaseline{shared: &shared}
}

// alone reports whether no other fixture has been alive since enterHost.
func (h *hostBaseline) alone() bool {
	live.Lock()
	defer live.Unlock()
	return !*h.shared
}

// leave ends the registration and reports whether no other fixture was alive in between. It may be
// called again.
func (h *hostBaseline) leave() (alone bool) {
	live.Lock()
	defer live.Unlock()
	delete(live.flags, h.shared)
	return !*h.shared
}

func (h *hostBaseline) snapshot(dirs []string) { h.state, h.err = leakcheck.Snapshot(dirs...) }
