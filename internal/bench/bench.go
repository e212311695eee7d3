// Package bench measures the bundled engine end to end: opening, prefill, decoding, and the cost of a whole life, each beside its floor.
//
// Absolute times say little on a shared machine: a result is the median of several runs, with the extremes beside it, and the floor is measured
// in the same run.
package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/runner"
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

// Report is what was measured.
type Report struct {
	Model   string   `json:"model"`
	Device  string   `json:"device"`
	Threads int      `json:"threads"`
	Weights int64    `json:"weight_bytes"`
	Results []Result `json:"results"`
}

// Result is one measurement.
type Result struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Runs   int     `json:"runs"`
	Floor  float64 `json:"floor,omitempty"` // what the machine allows, in the same unit; 0 when there is no such number
	Note   string  `json:"note,omitempty"`
}

func summarize(name, unit string, values []float64) Result {
	slices.Sort(values)
	n := len(values)
	median := values[n/2]
	if n%2 == 0 {
		median = (values[n/2-1] + values[n/2]) / 2
	}
	return Result{Name: name, Unit: unit, Median: median, Min: values[0], Max: values[n-1], Runs: n}
}

// String is a table.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s, %d threads, %s of weights\n", r.Model, r.Device, r.Threads, ledger.FormatBytes(r.Weights))
	fmt.Fprintf(&b, "%-28s %10s %10s %10s  %-6s %4s  %s\n", "", "median", "min", "max", "", "runs", "floor")
	for _, m := range r.Results {
		floor := ""
		if m.Floor > 0 {
			floor = fmt.Sprintf("%.4g (%.0f%%) ", m.Floor, 100*share(m))
		}
		fmt.Fprintf(&b, "%-28s %10.4g %10.4g %10.4g  %-6s %4d  %s%s\n", m.Name, m.Median, m.Min, m.Max, m.Unit, m.Runs, floor, m.Note)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// share is how near the median comes to the floor, whether more or less is better.
func share(m Result) float64 {
	if strings.HasSuffix(m.Unit, "/s") {
		return m.Median / m.Floor
	}
	return m.Floor / m.Median
}

// Run measures. say tells what is being measured now.
func Run(ctx context.Context, o Options, say func(string)) (Report, error) {
	o.Config.DisablePrefixCache = true // every prompt is computed
	say("life of an engine")
	cycle, err := o.cycles(ctx)
	if err != nil {
		return Report{}, err
	}
	var opened []float64
	var e *engine.Engine
	for range o.Repeat {
		start := time.Now()
		if e, err = engine.Open(ctx, o.Config); err != nil {
			return Report{}, err
		}
		opened = append(opened, 1000*time.Since(start).Seconds())
		if len(opened) < o.Repeat {
			if err := e.Shutdown(ctx); err != nil {
				return Report{}, err
			}
		}
	}
	r := Report{Model: o.Config.Model, Device: e.Config().Device, Threads: e.Config().Threads, Weights: ledger.ByOwner(e.Holdings())["weights"]}
	r.Results = append(cycle, summarize("open", "ms", opened))
	for _, batch := range o.Batches {
		say(fmt.Sprintf("%d × (%d + %d) tokens", batch, o.Prompt, o.Output))
		results, err := o.generate(ctx, e, batch, r)
		if err != nil {
			return r, errors.Join(err, e.Shutdown(ctx))
		}
		r.Results = append(r.Results, results...)
	}
	return r, e.Shutdown(ctx)
}

// cycles is the cost of a whole life: open, one token, shutdown, proof. The resident memory tells whether lives add up.
func (o Options) cycles(ctx context.Context) ([]Result, error) {
	var took, resident []float64
	for range o.Cycles {
		start := time.Now()
		f, err := runner.Open(ctx, func(ctx context.Context) (*engine.Engine, error) { return engine.Open(ctx, o.Config) })
		if err != nil {
			return nil, err
		}
		_, err = f.Engine().Generate(ctx, o.requests(1, 1, 1, 0)...)
		report := f.Close(ctx)
		if err = errors.Join(err, report.Err()); err != nil {
			return nil, err
		}
		took = append(took, 1000*time.Since(start).Seconds())
		resident = append(resident, residentMiB())
	}
	life := summarize("open+1 token+shutdown+proof", "ms", took)
	if resident[0] == 0 {
		return []Result{life}, nil
	}
	growth := Result{Name: "resident memory a life", Unit: "KiB", Median: 1024 * slope(resident[len(resident)/4:]), Runs: o.Cycles, Note: "slope after warm-up"}
	growth.Min, growth.Max = growth.Median, growth.Median
	return []Result{life, growth}, nil
}

// slope is Theil and Sen's: the median of the slopes of all pairs.
func slope(y []float64) float64 {
	var all []float64
	for i := range y {
		for j := range i {
			all = append(all, (y[i]-y[j])/float64(i-j))
		}
	}
	if len(all) == 0 {
		return 0
	}
	return summarize("", "", all).Median
}

// requests are n prompts of random token ids: reproducible, and different in every run.
func (o Options) requests(n, prompt, output, run int) []engine.Request {
	reqs := make([]engine.Request, n)
	state := uint64(run)*1e9 + 1
	for i := range reqs {
		ids := make([]int32, prompt)
		for j := range ids {
			state = state*6364136223846793005 + 1442695040888963407
			ids[j] = int32(state >> 33 % 200)
		}
		reqs[i] = engine.Request{PromptTokenIDs: ids, Sampling: engine.SamplingParams{MaxTokens: output, IgnoreEOS: true}}
	}
	return reqs
}

// generate measures prefill as a batch of prompts with one token each, and decoding as what more tokens take beyond that.
func (o Options) generate(ctx context.Context, e *engine.Engine, batch int, r Report) ([]Result, error) {
	timed := func(output, run int) (float64, error) {
		start := time.Now()
		_, err := e.Generate(ctx, o.requests(batch, o.Prompt, output, run)...)
		return time.Since(start).Seconds(), err
	}
	if _, err := timed(2, 0); err != nil { // pages are touched, caches warm
		return nil, err
	}
	var prefill, decode, floor []float64
	for run := range o.Repeat {
		short, err := timed(1, run+1)
		if err != nil {
			return nil, err
		}
		long, err := timed(o.Output+1, run+1)
		if err != nil {
			return nil, err
		}
		prefill = append(prefill, float64(batch*o.Prompt)/short)
		decode = append(decode, float64(batch*o.Output)/(long-short))
		if strings.HasPrefix(r.Device, "cpu") {
			floor = append(floor, float64(batch)*readBandwidth(r.Threads)/float64(r.Weights))
		}
	}
	p := summarize(fmt.Sprintf("prefill %d×%d", batch, o.Prompt), "tok/s", prefill)
	d := summarize(fmt.Sprintf("decode %d×%d", batch, o.Output), "tok/s", decode)
	if floor != nil {
		d.Floor, d.Note = summarize("", "", floor).Median, "all weights read once a step"
	}
	return []Result{p, d}, nil
}

// readBandwidth is the bytes a second that so many threads read from memory together.
func readBandwidth(threads int) float64 {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	memory := readable(threads)
	start := time.Now()
	var wg sync.WaitGroup
	for _, m := range memory {
		wg.Go(func() {
			if bytes.IndexByte(m, 0) >= 0 { // the standard library's fastest reader
				panic("unreachable")
			}
		})
	}
	wg.Wait()
	return float64(threads*len(memory[0])) / time.Since(start).Seconds()
}

// readable is memory beyond every cache, one part a thread, written once so that its pages are there.
func readable(threads int) [][]byte {
	out := make([][]byte, threads)
	for i := range out {
		out[i] = bytes.Repeat([]byte{1}, 128<<20)
	}
	return out
}
