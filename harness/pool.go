package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/ledger"
)

// Pool keeps engines warm between the tests of a package, so that each configuration is loaded once, not once a test. A test leases an engine for
// itself alone; when it ends, the engine is reset, and the test fails when it left something behind: a request, a KV block, memory that was not
// there before. Such an engine, or one that died, is not leased again. The zero Pool is ready; its engines end with Main or Close.
//
//	var pool runner.Pool
//
//	func TestMain(m *testing.M) { os.Exit(pool.Main(m)) }
//
//	func TestGreedy(t *testing.T) { r := pool.New(t, runner.Config{Model: fixtures.Bundled()}); … }
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

// resetTimeout bounds the reset between two tests: waiting for requests that the test has abandoned.
const resetTimeout = 30 * time.Second

// New leases an engine of this configuration for the length of the test, and starts one when none is idle. Options count for an engine that is
// started. Faults are refused: an engine that is to fail cannot be shared.
func (p *Pool) New(t TB, cfg Config, opts ...Option) *Runner {
	t.Helper()
	if len(cfg.Faults) > 0 {
		t.Fatalf("runner: Pool.New: a Config with %d Faults cannot be shared: use runner.New", len(cfg.Faults))
	}
	key, err := poolKey(cfg)
	if err != nil {
		t.Fatalf("runner: Pool.New: %v", err)
	}
	e := p.take(key)
	if e == nil {
		e, err = p.start(t, key, cfg, opts)
	}
	if err != nil {
		t.Fatalf("runner: %v\nto reproduce: %s", err, reproduce(t.Name()))
	}
	e.leases++
	r := &Runner{t: t, repro: reproduce(t.Name()), fixture: e.fixture}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	t.Cleanup(func() {
		t.Helper()
		r.cancel()
		if err := p.giveBack(e); err != nil {
			t.Errorf("runner: the pooled engine cannot be leased again after lease %d: %v\nto reproduce: %s", e.leases, err, r.repro)
		}
	})
	return r
}

// poolKey tells configurations apart; a Logger makes no difference.
func poolKey(cfg Config) (string, error) {
	cfg.Logger = nil
	key, err := json.Marshal(cfg)
	return string(key), err
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

func (p *Pool) start(t TB, key string, cfg Config, opts []Option) (*pooled, error) {
	opts = append([]Option{Name("pooled engine, started by " + t.Name()), deviceOption(cfg)}, opts...)
	f, err := Open(context.Background(), func(ctx context.Context) (*engine.Engine, error) { return engine.Open(ctx, cfg) }, opts...)
	if err != nil {
		return nil, err
	}
	e := &pooled{fixture: f, key: key, held: ledger.ByOwner(f.Engine().(Holder).Holdings())}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, e)
	return e, nil
}

// giveBack resets an engine and makes it idle; when that fails the engine is ended, and what it left is part of the error.
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

// reset waits until no request runs, forgets the prefix cache, which refuses while blocks are in use, and compares the memory.
func (e *pooled) reset() error {
	eng, ok := e.fixture.Engine().(*engine.Engine)
	if !ok {
		return errors.New("it has been stopped")
	}
	ctx, cancel := context.WithTimeout(context.Background(), resetTimeout)
	defer cancel()
	for wait := time.Millisecond; eng.Err() == nil; wait = min(2*wait, 50*time.Millisecond) {
		s := eng.Stats()
		if s.Running+s.Waiting == 0 {
			break
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("%d requests run and %d wait %s after the test", s.Running, s.Waiting, resetTimeout)
		}
	}
	if err := eng.ResetPrefixCache(ctx); err != nil {
		return err
	}
	for owner, bytes := range ledger.ByOwner(eng.Holdings()) {
		if was := e.held[owner]; bytes > was {
			return fmt.Errorf("owner %s holds %s, %s when the engine was started", owner, ledger.FormatBytes(bytes), ledger.FormatBytes(was))
		}
	}
	return nil
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

// Main runs the tests and ends the pool; the exit code is 1 when an engine left something behind. It is for TestMain.
func (p *Pool) Main(m interface{ Run() int }) int { return p.main(m, os.Stderr) }

func (p *Pool) main(m interface{ Run() int }, w io.Writer) int {
	code := m.Run()
	if err := p.Close(context.Background()); err != nil {
		fmt.Fprintf(w, "runner: pool: %v\n", err)
		return max(code, 1)
	}
	return code
}
