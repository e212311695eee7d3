package runner

import (
	"encoding/json"

	"github.com/enginetest/enginetest/harness"
)

// Pool keeps bundled engines warm between the tests of a package, so that each configuration is
// loaded once, not once per test; see [harness.Pool]. The zero Pool is ready; its engines end with
// Main or Close.
//
//	var pool runner.Pool
//
//	func TestMain(m *testing.M) { os.Exit(pool.Main(m)) }
//
//	func TestGreedy(t *testing.T) { r := pool.New(t, runner.Config{Model: fixtures.Bundled()}); … }
type Pool struct{ harness.Pool }

// New leases an engine of this configuration for the length of the test, and starts one when none
// is idle. Options count for an engine that is started. Faults are refused: an engine that is to
// fail cannot be shared.
func (p *Pool) New(t TB, cfg Config, opts ...Option) *Runner {
	t.Helper()
	if len(cfg.Faults) > 0 {
		t.Fatalf("runner: Pool.New: a Config with %d Faults cannot be shared: use runner.New", len(cfg.Faults))
	}
	key, err := poolKey(cfg)
	if err != nil {
		t.Fatalf("runner: Pool.New: %v", err)
	}
	return harness.Lease(t, &p.Pool, key, open(cfg), append(defaults(cfg), opts...)...)
}

// poolKey tells configurations apart; a Logger makes no difference.
func poolKey(cfg Config) (string, error) {
	cfg.Logger = nil
	key, err := json.Marshal(cfg)
	return string(key), err
}
