package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/enginetest/enginetest/cmd/enginetest/internal/bench"
	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/internal/gguf"
)

type options struct {
	llamaBench     string
	dir            string
	spec           fixtures.Spec
	rounds         int
	prompt, output int
	threads        []int
	types          []pair
}

// pair is the weight types of the two sides.
type pair struct{ ours, theirs string }

// compare writes the models, lets both sides run in turns, and removes the models again.
func compare(ctx context.Context, o options, say func(string)) (_ *report, err error) {
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "enginetest-llamacpp-"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	}
	m := &match{
		options: o, report: &report{Load: []string{load()}}, models: map[string]string{},
		memory: map[int]*bench.Bandwidth{},
	}
	for _, p := range o.types {
		if err := m.write(p, say); err != nil {
			return nil, err
		}
	}
	for _, threads := range o.threads {
		m.memory[threads] = bench.NewBandwidth(threads)
	}
	say("loading both sides' models from disk")
	if err := m.round(ctx, 0, o.threads[0]); err != nil {
		return nil, err
	}
	m.report.Rows = nil
	for round := range o.rounds {
		say(fmt.Sprintf("round %d of %d (load %s)", round+1, o.rounds, load()))
		for _, threads := range o.threads {
			if err := m.round(ctx, round, threads); err != nil {
				return nil, err
			}
		}
	}
	m.report.Load = append(m.report.Load, load())
	return m.report, nil
}

// load is the machine's load average of the last minute.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(text))[0]
}

type match struct {
	options
	report *report
	models map[string]string // by side and weight type
	memory map[int]*bench.Bandwidth
}

// write makes the two models of a pair, from the same numbers.
func (m *match) write(p pair, say func(string)) error {
	for _, t := range []string{p.ours, p.theirs} {
		dir := filepath.Join(m.dir, "checkpoint-"+t)
		if m.models["ours "+t] != "" {
			continue
		}
		say("writing " + dir)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		spec := m.spec
		spec.DType = t
		if err := fixtures.WriteCheckpoint(dir, spec); err != nil {
			return err
		}
		m.models["ours "+t] = dir
	}
	path := filepath.Join(m.dir, p.theirs+".gguf")
	m.models["theirs "+p.theirs] = path
	if err := errors.Join(gguf.Write(path, m.models["ours "+p.theirs]), cold(path)); err != nil {
		return err
	}
	return cold(filepath.Join(m.models["ours "+p.ours], "model.safetensors"))
}

// round lets both sides run once with each pair of types. Who goes first changes from round to
// round.
func (m *match) round(ctx context.Context, round, threads int) error {
	memory := m.memory[threads]
	for _, p := range m.types {
		bandwidth := memory.Measure()
		sides := []func() error{
			func() error { return m.ours(ctx, p, threads) },
			func() error { return m.theirs(ctx, p, threads) },
		}
		if round%2 == 1 {
			sides[0], sides[1] = sides[1], sides[0]
		}
		for _, side := range sides {
			if err := side(); err != nil {
				return err
			}
		}
		bytes, err := bench.StepBytes(m.models["ours "+p.ours])
		if err != nil {
			return err
		}
		row := m.report.row("decode", p, threads)
		row.Floor = append(row.Floor, max(bandwidth, memory.Measure())/float64(bytes))
	}
	return nil
}

// ours runs the engine: one prompt, then tokens from a context of one.
func (m *match) ours(ctx context.Context, p pair, threads int) error {
	e, err := engine.Open(ctx, engine.Config{
		Model: m.models["ours "+p.ours], Device: "cpu", Threads: threads, DisablePrefixCache: true, SkipTokenizer: true,
	})
	if err != nil {
		return err
	}
	prefill, err1 := generate(ctx, e, m.prompt, 1, m.prompt)
	decode, err2 := generate(ctx, e, 1, m.output, m.output)
	m.report.row("prefill", p, threads).Ours.add(prefill)
	m.report.row("decode", p, threads).Ours.add(decode)
	return errors.Join(err1, err2, e.Shutdown(ctx))
}

// generate returns the rate of some of the tokens of a request, after a warm-up as long as
// llama-bench's: the same prompt, or a token.
func generate(ctx context.Context, e *engine.Engine, prompt, output, count int) (float64, error) {
	req := engine.Request{
		PromptTokenIDs: make([]int32, prompt),
		Sampling:       engine.SamplingParams{MaxTokens: output, IgnoreEOS: true},
	}
	for i := range req.PromptTokenIDs {
		req.PromptTokenIDs[i] = int32(3 + i%100)
	}
	warm := req
	warm.Sampling.MaxTokens = 1
	if _, err := e.Generate(ctx, warm); err != nil {
		return 0, err
	}
	start := time.Now()
	outs, err := e.Generate(ctx, req)
	took := time.Since(start).Seconds()
	if err == nil && len(outs[0].Completions[0].TokenIDs) != output {
		err = fmt.Errorf("%d tokens came, want %d", len(outs[0].Completions[0].TokenIDs), output)
	}
	return float64(count) / took, err
}

// theirs runs llama-bench.
func (m *match) theirs(ctx context.Context, p pair, threads int) error {
	cmd := exec.CommandContext(ctx, m.llamaBench, "-m", m.models["theirs "+p.theirs], "-t", strconv.Itoa(threads),
		"-p", strconv.Itoa(m.prompt), "-n", strconv.Itoa(m.output), "-r", "1", "-o", "json")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, stderr.String())
	}
	var runs []struct {
		Prompt int     `json:"n_prompt"`
		Gen    int     `json:"n_gen"`
		Rate   float64 `json:"avg_ts"`
		Build  int     `json:"build_number"`
	}
	if err := json.Unmarshal(out, &runs); err != nil {
		return fmt.Errorf("%s: its JSON: %w\n%s", cmd, err, out)
	}
	if len(runs) != 2 || runs[0].Prompt != m.prompt || runs[1].Gen != m.output {
		return fmt.Errorf("%s: want a prompt's run and a decoding one, got\n%s", cmd, out)
	}
	m.report.Build = runs[0].Build
	m.report.row("prefill", p, threads).Theirs.add(runs[0].Rate)
	m.report.row("decode", p, threads).Theirs.add(runs[1].Rate)
	return nil
}
