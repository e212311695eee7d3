package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/leakcheck"
	"github.com/enginetest/enginetest/runner"
)

// fewestLives is how many it takes to tell growth from noise.
const fewestLives = 8

// lives is the cost of a whole life, and whether lives add up: each is opened, generates one token,
// and is shut down and proved gone (its ledger, goroutines, descriptors, references). What is left
// of all of them together shows as growth from one to the next.
func lives(ctx context.Context, n int, life func(context.Context) error) ([]Result, error) {
	took := make([]float64, 0, n)
	var failed error
	round := func(int) {
		if failed != nil {
			return
		}
		start := time.Now()
		failed = life(ctx)
		took = append(took, 1000*time.Since(start).Seconds())
	}
	if n < fewestLives {
		for i := range n {
			round(i)
		}
		return []Result{summarize(lifeName, "ms", took)}, failed
	}
	report, err := leakcheck.MeasureGrowth(ctx, n, round, leakcheck.Warmup(n/2))
	if failed != nil {
		return nil, fmt.Errorf("life %d of %d: %w", len(took), n, failed)
	}
	if report == nil || ctx.Err() != nil {
		return nil, err
	}
	results := []Result{summarize(lifeName, "ms", took)}
	for _, t := range report.Trends {
		if t.Measure == "device memory" { // the proof of every life looked at the ledger
			continue
		}
		unit, scale := "a life", 1.0
		if t.Measure == "Go heap" || t.Measure == "memory outside the Go heap" {
			unit, scale = "KiB/life", 1024
		}
		v := t.PerRound / scale
		results = append(results, Result{
			Name: "+ " + t.Measure, Unit: unit, Median: v, Min: v, Max: v, Runs: len(report.Samples),
			Note: slopeNote(t),
		})
	}
	return results, err
}

// slopeNote reports whether a slope counts as growth: a measure may move surely, and by next to
// nothing.
func slopeNote(t leakcheck.Trend) string {
	if t.Grows() {
		return "slope of the second half: it grows"
	}
	return "slope of the second half: within what is accepted"
}

const lifeName = "open+1 token+shutdown+proof"

// life is one: what a test costs that starts an engine for itself.
func (o Options) life(ctx context.Context) error {
	f, err := runner.Open(ctx, func(ctx context.Context) (*engine.Engine, error) { return engine.Open(ctx, o.Config) })
	if err != nil {
		return err
	}
	_, err = f.Engine().Generate(ctx, o.requests(1, 1, 1, 0)...)
	report := f.Close(ctx)
	return errors.Join(err, report.Err())
}
