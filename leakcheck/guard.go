package leakcheck

import (
	"context"
	"errors"
	"testing"

	"github.com/enginetest/enginetest/internal/popped"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/verdict"
)

// TB is the part of testing.TB that this package uses.
type TB interface {
	Helper()
	Name() string
	Cleanup(func())
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
}

var _ TB = testing.TB(nil)

// Guarded watches one test: see [Guard].
type Guarded struct {
	t       TB
	opts    []Option
	scope   *Scope
	refs    []*Ref
	buffers []watched
}

// Guard makes a test prove that it leaves nothing behind. Call it first: its check is then the last
// of the test's cleanups. It finds the goroutines that the test started, the objects given to
// [Guarded.Track] and the buffers of the ledgers given to [Guarded.Buffers]. It is right under
// t.Parallel. Descriptors, mappings, processes and files belong to the whole process; for those see
// [Snapshot].
func Guard(t TB, opts ...Option) *Guarded {
	t.Helper()
	g := &Guarded{t: t, opts: opts, scope: NewScope(t.Name(), opts...)}
	leave := g.scope.enter()
	t.Cleanup(func() {
		t.Helper()
		leave()
		popped.Clear(t)
		if err := g.check(context.Background()); err != nil {
			verdict.Record(t, verdict.Of(err)...)
			t.Errorf("%v", err)
		}
		for _, p := range Unmatched(opts...) {
			t.Logf("leakcheck: Allow(%q, …) matched nothing: remove it", p)
		}
	})
	return g
}

// Track watches an object as [Track] does; a value that cannot be tracked fails the test at once.
func (g *Guarded) Track(name string, v any, opts ...Option) {
	g.t.Helper()
	r := Track(name, v, append(g.opts[:len(g.opts):len(g.opts)], opts...)...)
	if r.err != nil {
		g.t.Errorf("%v", r.err)
		return
	}
	g.refs = append(g.refs, r)
}

// Buffers watches a ledger: it must be empty at the end of the test, and when it is collected
// before. It is held weakly. A reporter that is not a [ledger.Ledger], and has no method Books as
// that has, cannot be asked any more once it is collected: the log says so.
func (g *Guarded) Buffers(rep ledger.Reporter) { g.buffers = append(g.buffers, watch(rep)) }

// check reports what explains the rest first: a goroutine keeps a reference, a reference keeps a
// buffer. The goroutines are described last, though: asking the runtime's leak profile about them
// rules out heap dumps.
func (g *Guarded) check(ctx context.Context) error {
	gone, waited := g.scope.wait(ctx)
	var rest []error
	for _, b := range g.buffers {
		err, known := b.freed(ctx, g.opts)
		if !known {
			g.t.Logf("leakcheck: a %s was collected before it could be asked for its buffers: give Buffers its *ledger.Ledger", b.typ)
		}
		rest = append(rest, err)
	}
	rest = append(rest, Released(ctx, g.refs...))
	defer g.scope.kin.over(g.scope)
	if gone {
		return errors.Join(append([]error{g.scope.certainLeaks()}, rest...)...)
	}
	return errors.Join(append([]error{g.scope.leftovers(waited)}, rest...)...)
}
