package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/enginetest/enginetest/internal/backoff"
	"github.com/enginetest/enginetest/ledger"
)

// Pool keeps engines warm between the tests of a package, so that each configuration is loaded
// once, not once a test. A test leases an engine for itself alone; when it ends, the engine is
// reset, and the test fails when it left something behind: a request, a KV block, memory that was
// not there before. Such an engine, or one that died, is not leased again. The zero Pool is ready;
// its engines end with Main or Close.
//
//	var pool harness.Pool
//
//	func TestMain(m *testing.M) { os.Exit(pool.Main(m)) }
//
//	func TestGreedy(t *testing.T) { r := harness.Lease(t, &pool, "small", openMyEngine); … }
type Pool struct {
	mu   sync.Mutex
	idle map[string][]*pooled // by configuration
	all  []*pooled
}

// pooled is one engine of a Pool.
type pooled struct {
	fixture *Fixture
	key     string
	held    map[string]int64 // bytes by owner, when it was started
	leases  int
}

// resetTimeout bounds the reset between two tests: waiting for requests that the test has
// abandoned.
const resetTimeout = 30 * time.Second

// Lease leases an engine from the pool for the length of the test, and starts one with open when
// none is idle. key names the configuration: engines of the same key are interchangeable. Options
// count for an engine that is started. The engine must be a [Resetter] or a [PrefixCacheResetter].
func Lease[E Engine](t TB, p *Pool, key string, open func(context.Context) (E, error), opts ...Option) *Runner {
	t.Helper()
	r := newRunner(t, opts)
	e := p.take(key)
	if e == nil {
		var err error
		if e, err = startPooled(p, key, open, append([]Option{Name("pooled engine, started by " + t.Name())},
			opts...)); err != nil {
			r.cancel()
			t.Fatalf("%s: %v\nto reproduce: %s", r.pkg, err, r.repro)
		}
	}
	e.leases++
	r.fixture = e.fixture
	t.Cleanup(func() {
		t.Helper()
		r.cancel()
		if err := p.giveBack(e); err != nil {
			t.Errorf("%s: the pooled engine cannot be leased again after lease %d: %v\nto reproduce: %s", r.pkg,
				e.leases, err, r.repro)
		}
	})
	return r
}

func (p *Pool) take(key string) *pooled {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.idle[key]
	if len(list) == 0 {
		return nil
	}
	e := list[len(list)-1]
	p.idle[key] = list[:len(list)-1]
	return e
}

func startPooled[E Engine](p *Pool, key string, open func(context.Context) (E, error), opts []Option) (*pooled, error) {
	f, err := Open(context.Background(), open, opts...)
	if err != nil {
		return nil, err
	}
	e := &pooled{fixture: f, key: key}
	switch eng := f.Engine().(type) {
	case Resetter, PrefixCacheResetter:
	default:
		err := fmt.Errorf("%T cannot be pooled: it has neither Reset(context.Context) error nor ResetPrefixCache(context.Context) error", eng)
		return nil, errors.Join(err, f.Close(context.Background()).Err())
	}
	if h, ok := f.Engine().(Holder); ok {
		e.held = ledger.ByOwner(h.Holdings())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, e)
	return e, nil
}

// giveBack resets an engine and makes it idle; when that fails the engine is ended, and what it
// left is part of the error.
func (p *Pool) giveBack(e *pooled) error {
	err := e.reset()
	if err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.idle == nil {
			p.idle = map[string][]*pooled{}
		}
		p.idle[e.key] = append(p.idle[e.key], e)
		return nil
	}
	p.mu.Lock()
	p.all = slices.DeleteFunc(p.all, func(o *pooled) bool { return o == e })
	p.mu.Unlock()
	return errors.Join(err, e.fixture.Close(context.Background()).Err())
}

// reset waits until no request runs, returns the engine to its first state, and compares the
// memory.
func (e *pooled) reset() error {
	eng := e.fixture.Engine()
	if eng == nil {
		return errors.New("it has been stopped")
	}
	ctx, cancel := context.WithTimeout(context.Background(), resetTimeout)
	defer cancel()
	if err := idle(ctx, eng); err != nil {
		return err
	}
	if err := resetEngine(ctx, eng); err != nil {
		return err
	}
	h, ok := eng.(Holder)
	if !ok {
		return nil
	}
	for owner, bytes := range ledger.ByOwner(h.Holdings()) {
		if was := e.held[owner]; bytes > was {
			return fmt.Errorf("owner %s holds %s, %s when the engine was started", owner, ledger.FormatBytes(bytes),
				ledger.FormatBytes(was))
		}
	}
	return nil
}

// idle waits until the engine works on nothing, as far as it can tell. An engine that has failed is
// idle: its reset says so.
func idle(ctx context.Context, e Engine) error {
	reporter, ok := e.(ActivityReporter)
	if !ok {
		return nil
	}
	alive := func() bool { return true }
	if x, ok := e.(interface{ Err() error }); ok {
		alive = func() bool { return x.Err() == nil }
	}
	for looks := backoff.New(time.Millisecond, 50*time.Millisecond); alive(); {
		now, err := reporter.Activity(ctx)
		if err != nil || now.Idle() {
			return err
		}
		if looks.Wait(ctx) != nil {
			return fmt.Errorf("%d requests run and %d wait %s after the test", now.Running, now.Waiting, resetTimeout)
		}
	}
	return nil
}

// resetEngine uses the stronger of the two ways. Forgetting the prefix cache refuses while blocks
// are in use.
func resetEngine(ctx context.Context, e Engine) error {
	if r, ok := e.(Resetter); ok {
		return r.Reset(ctx)
	}
	return e.(PrefixCacheResetter).ResetPrefixCache(ctx) //nolint:forcetypeassert // startPooled has checked
}

// Close ends every engine of the pool, proves each gone, and returns what is left.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	all := p.all
	p.all, p.idle = nil, nil
	p.mu.Unlock()
	var errs []error
	for i, e := range all {
		all[i] = nil
		errs = append(errs, e.fixture.Close(ctx).Err())
	}
	return errors.Join(errs...)
}

// Main runs the tests and ends the pool; the exit code is 1 when an engine left something behind.
// It is for TestMain.
func (p *Pool) Main(m interface{ Run() int }) int { return p.main(m, os.Stderr) }

func (p *Pool) main(m interface{ Run() int }, w io.Writer) int {
	code := m.Run()
	if err := p.Close(context.Background()); err != nil {
		fmt.Fprintf(w, "harness: pool: %v\n", err)
		return max(code, 1)
	}
	return code
}
