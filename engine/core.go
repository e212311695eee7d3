package engine

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/internal/engines"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// core is an engine without its handle: what its parts own, and the goroutine that runs the steps.
// It never refers to the Engine, so that a handle that was dropped can be noticed.
type core struct {
	cfg      Config
	openedAt string
	entry    *engines.Handle
	log      *slog.Logger
	ledger   *ledger.Ledger
	faults   *faults
	unused   []string // tensors of the checkpoint

	ctx    context.Context // ends when the engine is to stop; a hang ends with it
	cancel context.CancelFunc

	*lifecycle      // where it stands
	*inputProcessor // what a caller may send
	*intake         // requests that have not finished
	*drainer
	*sleeper
	loop    *stepLoop
	offload *kvOffload
}

func newCore(cfg Config) *core {
	c := &core{
		cfg: cfg, log: cfg.Logger, ledger: ledger.New(cfg.RecordStacks),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.faults = newFaults(c.ctx, cfg.Faults)
	life, box, reqs, now := newLifecycle(), newMailbox(), newRequestTable(&c.cfg), new(phase)
	c.lifecycle = life
	c.inputProcessor = &inputProcessor{cfg: &c.cfg, life: life, grammars: &grammars{ledger: c.ledger}}
	c.offload = &kvOffload{ctx: c.ctx, cfg: &c.cfg, log: c.log, ledger: c.ledger, faults: c.faults, phase: now}
	c.loop = &stepLoop{
		ctx: c.ctx, cfg: &c.cfg, log: c.log, faults: c.faults, life: life, phase: now, box: box, reqs: reqs,
		offload: c.offload,
	}
	out := &outputProcessor{faults: c.faults, counts: &c.loop.counts}
	c.drainer = &drainer{life: life, box: box, reqs: reqs, out: out}
	c.loop.out, c.loop.drains = out, c.drainer
	c.loop.watchdog = watchdog{cfg: &c.cfg, log: c.log, life: life, phase: now, drains: c.drainer}
	c.intake = &intake{
		cfg: &c.cfg, ledger: c.ledger, life: life, box: box, inputs: c.inputProcessor, reqs: reqs, out: out,
		admit: c.loop.admit,
	}
	c.sleeper = &sleeper{
		cfg: &c.cfg, log: c.log, ledger: c.ledger, life: life, reqs: reqs, loop: c.loop, grammars: c.inputProcessor.grammars,
	}
	now.enter("start")
	return c
}

// run is the engine's goroutine.
func (c *core) run() {
	c.loop.run()
	c.release()
}

func (c *core) config() Config                  { return c.cfg }
func (c *core) holdings() []ledger.Holding      { return c.ledger.Holdings() }
func (c *core) faultReports() []llm.FaultReport { return c.faults.report() }
func (c *core) pids() []int                     { return nil }

func (c *core) counters() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.loop.stats
	s.State, s.Devices = c.state, c.cfg.TensorParallel
	return s
}

func (c *core) parts() map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	parts := map[string]any{}
	if c.loop.runner != nil {
		parts["scheduler"] = c.loop.sched
		parts["kv cache"] = c.loop.cache
		addRunner(parts, "model runner", c.loop.runner)
		if c.offload.tier != nil {
			parts[strings.ToLower(c.offload.name())] = c.offload.tier
		}
	}
	if cache := c.inputProcessor.grammars.part(); cache != nil {
		parts["grammars"] = cache
	}
	return parts
}

func (c *core) resetPrefixCache(ctx context.Context) error {
	return c.loop.ask(ctx, "prefix cache reset", c.refusal, c.loop.forget)
}

// addRunner adds a runner, and the runners and the pooler that it has.
func addRunner(parts map[string]any, name string, r modelrunner.Runner) {
	parts[name] = r
	if s, ok := r.(interface{ Target() modelrunner.Runner }); ok {
		parts["speculator"] = r
		addRunner(parts, name, s.Target())
	}
	if s, ok := r.(interface{ Draft() modelrunner.Runner }); ok {
		addRunner(parts, "draft "+name, s.Draft())
	}
	if g, ok := r.(interface{ Ranks() []modelrunner.Rank }); ok {
		for i, rank := range g.Ranks() {
			addRunner(parts, fmt.Sprintf("%s of rank %d (%s)", name, i, rank.Device()), rank)
		}
	}
	addPooler(parts, r)
}

// addPooler adds the pooler of a runner that has one: of several ranks, the first.
func addPooler(parts map[string]any, r modelrunner.Runner) {
	if p, ok := r.(interface{ Pooler() any }); ok && p.Pooler() != nil {
		parts["pooler"] = p.Pooler()
	}
}
