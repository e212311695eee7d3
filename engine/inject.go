package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/llm"
)

// faults are the injected ones of an engine. Each fires at most once on a rank, so that what comes
// after a failure can be tested too.
type faults struct {
	profiling atomic.Bool             // a forward pass is Open's
	announce  func([]llm.FaultReport) // when one is about to strike; nil: no one needs it

	mu      sync.Mutex
	reports []llm.FaultReport
	passes  map[place]int // of each fault's point
	struck  map[place]bool
	ctx     context.Context // ends a hang
	release context.Context // ends one at FaultShutdown
}

// place is a fault on a rank.
type place struct{ fault, rank int }

func newFaults(life context.Context, list []llm.Fault) *faults {
	f := &faults{ctx: life, release: life, passes: map[place]int{}, struck: map[place]bool{}}
	for _, x := range list {
		f.reports = append(f.reports, llm.FaultReport{Fault: x})
	}
	return f
}

// report copies the counters.
func (f *faults) report() []llm.FaultReport {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]llm.FaultReport(nil), f.reports...)
}

// hangUntil changes what ends a hang in the shutdown. What strikes elsewhere ends with the engine's
// life: it may do so after the shutdown was ordered.
func (f *faults) hangUntil(ctx context.Context) {
	f.mu.Lock()
	f.release = ctx
	f.mu.Unlock()
}

// hooks are the points that lie in the runner of a rank.
func (f *faults) hooks(rank int) modelrunner.Hooks {
	if len(f.reports) == 0 {
		return modelrunner.Hooks{}
	}
	return modelrunner.Hooks{
		Load: func() error { return f.pass(llm.FaultLoad, rank) },
		Allocate: func(owner string, bytes int64) error {
			if err := f.pass(llm.FaultAllocate, rank); err != nil {
				return fmt.Errorf("allocation of %s for %s: %w", ledger.FormatBytes(bytes), owner, err)
			}
			return nil
		},
		Forward: func() error {
			if f.profiling.Load() {
				return f.pass(llm.FaultProfile, rank)
			}
			return f.pass(llm.FaultForward, rank)
		},
		Sample: func() error {
			if f.profiling.Load() {
				return nil
			}
			return f.pass(llm.FaultSample, rank)
		},
		Release: func(owner string, _ int64) error {
			if err := f.pass(llm.FaultShutdown, rank); err != nil {
				return fmt.Errorf("release of %s: %w", owner, err)
			}
			return nil
		},
	}
}

// drafting is passed before each forward pass of a draft model, and before n-grams are looked up.
func (f *faults) drafting(rank int) error {
	if f.profiling.Load() {
		return nil
	}
	return f.pass(llm.FaultDraft, rank)
}

// pass counts a pass of the point on a rank, and does what a fault says that is due.
func (f *faults) pass(p llm.FaultPoint, rank int) error {
	if len(f.reports) == 0 {
		return nil
	}
	due, ctx, ok := f.due(p, rank)
	if !ok {
		return nil
	}
	if f.announce != nil {
		f.announce(f.report())
	}
	err := fmt.Errorf("%w at %s", llm.ErrInjected, p)
	if due.Text != "" {
		err = fmt.Errorf("%w: %s", err, due.Text)
	}
	switch due.Action {
	case llm.ActPanic:
		panic(err)
	case llm.ActHang:
		<-ctx.Done()
		return fmt.Errorf("%w: hung until %w", err, context.Cause(ctx))
	case llm.ActOOM:
		return fmt.Errorf("%w: %w", llm.ErrOutOfMemory, err)
	case llm.ActExit:
		os.Exit(1)
	case llm.ActKill:
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Kill()
		select {}
	}
	return err
}

// due counts the pass and returns the fault that strikes now.
func (f *faults) due(p llm.FaultPoint, rank int) (llm.Fault, context.Context, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := -1
	for i := range f.reports {
		r := &f.reports[i]
		if r.Fault.Point != p || r.Fault.Rank >= 0 && r.Fault.Rank != rank {
			continue
		}
		here := place{i, rank}
		r.Passes++
		f.passes[here]++
		if found < 0 && !f.struck[here] && f.passes[here] > r.Fault.After {
			r.Fired++
			f.struck[here] = true
			found = i
		}
	}
	if found < 0 {
		return llm.Fault{}, nil, false
	}
	ends := f.ctx
	if p == llm.FaultShutdown {
		ends = f.release
	}
	return f.reports[found].Fault, ends, true
}

// check refuses a fault that could never fire.
func checkFault(f llm.Fault, i, ranks int) error {
	field := fmt.Sprintf("Faults[%d]", i)
	switch f.Point {
	case llm.FaultLoad, llm.FaultAllocate, llm.FaultProfile, llm.FaultForward, llm.FaultSample,
		llm.FaultDraft, llm.FaultOutput, llm.FaultShutdown:
	default:
		return paramError(field+".Point", fmt.Sprintf("%q", f.Point),
			"load, allocate, profile, forward, sample, draft, output or shutdown")
	}
	switch f.Action {
	case llm.ActError, llm.ActPanic, llm.ActHang, llm.ActOOM, llm.ActExit, llm.ActKill:
	default:
		return paramError(field+".Action", fmt.Sprintf("%q", f.Action),
			"error, panic, hang, out_of_memory, exit or kill")
	}
	if f.Rank < -1 || f.Rank >= ranks {
		return paramError(field+".Rank", f.Rank, fmt.Sprintf("a rank below %d (TensorParallel), or -1 for every one",
			ranks))
	}
	if f.Rank > 0 && (f.Point == llm.FaultSample || f.Point == llm.FaultOutput) {
		return paramError(field+".Rank", f.Rank, fmt.Sprintf("0 or -1 for point %q, which the others do not pass",
			f.Point))
	}
	if f.After < 0 {
		return paramError(field+".After", f.After, "≥ 0")
	}
	return nil
}

// panicError turns a recovered value into an error. Only errors are kept as they are: anything else
// could keep the engine reachable.
func panicError(phase string, v any, stack []byte) *PanicError {
	e := &PanicError{Phase: phase, Value: fmt.Sprint(v), Stack: string(stack)}
	if err, ok := v.(error); ok {
		e.err = err
	}
	if inner, ok := errors.AsType[*PanicError](e.err); ok {
		return inner
	}
	return e
}
