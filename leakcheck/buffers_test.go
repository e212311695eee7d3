package leakcheck

import (
	"fmt"
	"testing"

	"github.com/enginetest/enginetest/ledger"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// recorded is a test that only notes what it is told.
type recorded struct {
	testing.TB
	errors, logs []string
	cleanups     []func()
}

func (r *recorded) Helper()          {}
func (r *recorded) Name() string     { return "TestIt" }
func (r *recorded) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorded) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func (r *recorded) Logf(format string, args ...any) {
	r.logs = append(r.logs, fmt.Sprintf(format, args...))
}

func (r *recorded) end() {
	for _, f := range r.cleanups {
		f()
	}
}

// withLedger has its ledger by embedding; withBooks also reports more than that.
type withLedger struct {
	*ledger.Ledger
	weights []byte
}

type onlyHoldings struct{ l ledger.Ledger }

func (o *onlyHoldings) Holdings() []ledger.Holding { return o.l.Holdings() }

//go:noinline
func hold(g *Guarded, l *ledger.Ledger, free bool) {
	id := l.Add(ledger.Holding{Owner: "weights", Device: "GPU-0", Kind: "plain", Bytes: 7 << 30})
	if free {
		_ = l.Remove(id)
	}
}

// TestCollectedLedger: a ledger that is collected with bytes in it was dropped by its owner.
func TestCollectedLedger(t *testing.T) {
	for _, free := range []bool{true, false} {
		for name, plant := range map[string]func(*Guarded){
			"ledger": func(g *Guarded) {
				l := ledger.New(true)
				g.Buffers(l)
				hold(g, l, free)
			},
			"engine with a ledger": func(g *Guarded) {
				e := &withLedger{Ledger: ledger.New(false), weights: make([]byte, 100)}
				g.Buffers(e)
				g.Track("engine", e) // it is not kept
				hold(g, e.Ledger, free)
			},
		} {
			t.Run(fmt.Sprintf("%s, freed %v", name, free), func(t *testing.T) {
				r := &recorded{}
				plant(Guard(r, brief))
				collectGarbage()
				r.end()
				if free {
					assert.Empty(t, r.errors)
					return
				}
				require.Len(t, r.errors, 1)
				assert.Contains(t, r.errors[0], "7.0 GiB of device memory not given back by owner weights (1 allocations), whose ledger was collected")
			})
		}
	}
	r := &recorded{}
	g := Guard(r, brief)
	o := &onlyHoldings{}
	g.Buffers(o)
	hold(g, &o.l, false)
	collectGarbage()
	r.end()
	assert.Empty(t, r.errors)
	require.Len(t, r.logs, 1, "it says that it cannot tell")
	assert.Contains(t, r.logs[0], "onlyHoldings was collected before it could be asked")
}
