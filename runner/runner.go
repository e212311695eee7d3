package runner

import (
	"context"

	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/harness"
)

// Config is the bundled engine's configuration. Only Model is required.
type Config = engine.Config

// New starts the bundled engine for the length of the test. In t.Cleanup it is shut down, and the
// test fails when anything of it is left.
func New(t TB, cfg Config, opts ...Option) *Runner {
	t.Helper()
	cfg.RecordStacks = true
	return harness.Start(t, open(cfg), append(defaults(cfg), opts...)...)
}

func open(cfg Config) func(context.Context) (*engine.Engine, error) {
	return func(ctx context.Context) (*engine.Engine, error) { return engine.Open(ctx, cfg) }
}

// defaults are the options of every bundled engine. The GPUs are not checked when it runs on the
// CPU.
func defaults(cfg Config) []Option {
	opts := []Option{harness.Package("runner")}
	if cfg.Device == "cpu" {
		opts = append(opts, WithoutDeviceMemory("the engine ran on the CPU: its memory is in its ledger"))
	}
	return opts
}

// Start is [harness.Start]: it starts any engine for the length of the test.
func Start[E Engine](t TB, open func(context.Context) (E, error), opts ...Option) *Runner {
	t.Helper()
	return harness.Start(t, open, append([]Option{harness.Package("runner")}, opts...)...)
}

// Open is [harness.Open]: it starts any engine without a test.
func Open[E Engine](ctx context.Context, open func(context.Context) (E, error), opts ...Option) (*Fixture, error) {
	return harness.Open(ctx, open, append([]Option{harness.Package("runner")}, opts...)...)
}
