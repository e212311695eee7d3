// Package bench measures the bundled engine end to end: opening, prefill, decoding, and the cost of
// a whole life, each beside its floor.
//
// Absolute times say little on a shared machine: a result is the median of several runs, with the
// extremes beside it, and the floor is measured in the same run.
package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/enginetest/enginetest/engine"
)

// Options say what to measure. Every count is at least 1.
type Options struct {
	Config  engine.Config
	Prompt  int   // tokens of a prompt
	Output  int   // tokens of an output
	Batches []int // requests at a time
	Repeat  int   // runs of each measurement
	Cycles  int   // lives of an engine
}

// Run measures. say tells what is being measured now. An error comes with what has been measured so
// far; a *[leakcheck.Error] says that lives leave something behind.
func Run(ctx context.Context, o Options, say func(string)) (Report, error) {
	o.Config.DisablePrefixCache = true // every prompt is computed
	r := Report{Model: o.Config.Model}
	say(fmt.Sprintf("%d lives of an engine", o.Cycles))
	var err error
	if r.Results, err = lives(ctx, o.Cycles, o.life); err != nil {
		return r, err
	}
	e, opened, err := o.open(ctx)
	if err != nil {
		return r, err
	}
	cfg := e.Config()
	r.Device, r.Devices, r.Threads = cfg.Device, cfg.TensorParallel, cfg.Threads
	r.Results = append(r.Results, opened)
	err = o.speeds(ctx, e, &r, say)
	return r, errors.Join(err, e.Shutdown(ctx))
}

// open opens the engine several times, and keeps the last.
func (o Options) open(ctx context.Context) (e *engine.Engine, took Result, err error) {
	var ms []float64
	for range o.Repeat {
		if e != nil {
			if err := e.Shutdown(ctx); err != nil {
				return nil, Result{}, err
			}
		}
		start := time.Now()
		if e, err = engine.Open(ctx, o.Config); err != nil {
			return nil, Result{}, err
		}
		ms = append(ms, 1000*time.Since(start).Seconds())
	}
	return e, summarize("open", "ms", ms), nil
}

// speeds measures prefill and decoding at every batch size.
func (o Options) speeds(ctx context.Context, e *engine.Engine, r *Report, say func(string)) (err error) {
	var memory *Bandwidth
	if strings.HasPrefix(r.Device, "cpu") {
		memory = NewBandwidth(r.Threads)
		if r.StepBytes, err = StepBytes(o.Config.Model); err != nil {
			return err
		}
	}
	for _, batch := range o.Batches {
		say(fmt.Sprintf("%d × prompts of %d, outputs of %d tokens", batch, o.Prompt, o.Output))
		results, err := o.speed(ctx, e, batch, memory, r.StepBytes)
		if err != nil {
			return err
		}
		r.Results = append(r.Results, results...)
	}
	return nil
}
