// Command quickstart starts the bundled engine on the bundled model, generates, tears it down and
// prints the proof that it is gone.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/ledger"
	"github.com/enginetest/enginetest/runner"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	cfg := engine.Config{Model: fixtures.Bundled()}
	fixture, err := runner.Open(ctx, func(ctx context.Context) (*engine.Engine, error) { return engine.Open(ctx, cfg) }, runner.Name("quickstart"))
	if err != nil {
		return err
	}
	err = generate(ctx, fixture.Engine().(*engine.Engine))

	report := fixture.Close(ctx) // whatever came before
	fmt.Print("\n", report)
	if err == nil {
		err = report.Err()
	}
	return err
}

func generate(ctx context.Context, e *engine.Engine) error {
	cfg := e.Config()
	fmt.Printf("started %s on %s: %d KV blocks of %d tokens, context %d\n", cfg.Model, cfg.Device, e.Stats().KVBlocks, cfg.BlockSize, cfg.MaxModelLen)
	for _, h := range e.Holdings() {
		fmt.Println("  holds", h)
	}
	prompts := []string{"The lighthouse", "Once upon a time", "2+3="}
	var reqs []engine.Request
	for _, p := range prompts {
		reqs = append(reqs, engine.Request{Prompt: p, Sampling: engine.SamplingParams{MaxTokens: 40}})
	}
	outs, err := e.Generate(ctx, reqs...)
	if err != nil {
		return err
	}
	for i, out := range outs {
		c := out.Completions[0]
		fmt.Printf("\n%s|%s  (%d tokens, %s)\n", prompts[i], c.Text, len(c.TokenIDs), c.FinishReason)
	}
	s := e.Stats()
	var bytes int64
	for _, h := range e.Holdings() {
		bytes += h.Bytes
	}
	fmt.Printf("\n%d requests, %d tokens in %d steps, %s of device memory\n", s.Finished, s.OutputTokens, s.Steps, ledger.FormatBytes(bytes))
	return nil
}
