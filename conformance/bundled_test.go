package conformance_test

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/enginetest/enginetest/conformance"
	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
)

// bundled is a configuration in which a step takes few tokens, so that prompts are computed in pieces.
func bundled(core engine.Core, devices int) engine.Config {
	return engine.Config{
		Model: fixtures.Bundled(), Device: "cpu", Core: core, TensorParallel: devices, MaxModelLen: 512,
		KVCacheBytes: 8 << 20 / int64(devices), MaxNumBatchedTokens: 96, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

func opener(cfg engine.Config) func(context.Context) (*engine.Engine, error) {
	return func(ctx context.Context) (*engine.Engine, error) { return engine.Open(ctx, cfg) }
}

func bundledOptions(t *testing.T, cfg engine.Config) []conformance.Option {
	t.Helper()
	var prompts []string
	for _, p := range fixtures.Prompts(10, 3) {
		prompts = append(prompts, p.Text)
	}
	tight, damaged, missing, hungry := cfg, cfg, cfg, cfg
	tight.MaxModelLen, tight.KVCacheBytes = 160, 12*96<<10/int64(max(cfg.TensorParallel, 1)) // 12 blocks
	damaged.Model = fixtures.Checkpoint(t, fixtures.Spec{Shards: 2})
	fixtures.Break(t, damaged.Model, fixtures.MissingShard)
	missing.Model = filepath.Join(t.TempDir(), "none")
	hungry.Faults = []engine.Fault{{Point: engine.FaultAllocate, Rank: -1, After: 2, Action: engine.ActOOM}}
	return []conformance.Option{
		conformance.Prompts(prompts...),
		conformance.Fixture(harness.WithoutDeviceMemory("the engine runs on the CPU: its memory is in its ledger")),
		conformance.Tight(opener(tight)),
		conformance.Faulty(func(ctx context.Context, f llm.Fault) (*engine.Engine, error) {
			faulty := cfg
			faulty.Faults = []engine.Fault{f}
			return engine.Open(ctx, faulty)
		}),
		conformance.MustNotStart("a missing shard", opener(damaged)),
		conformance.MustNotStart("no model", opener(missing)),
		conformance.MustNotStart("no memory", opener(hungry)),
	}
}

func TestBundled(t *testing.T) { run(t, bundled(engine.InProcess, 1), "") }

// The other places of an engine are checked for what is different there, and wholly in a long run.
func TestBundledInAChild(t *testing.T) { run(t, bundled(engine.ChildProcess, 1), "^lifecycle") }

func TestBundledOnTwoDevices(t *testing.T) { run(t, bundled(engine.InProcess, 2), "^same answer") }

func run(t *testing.T, cfg engine.Config, only string) {
	t.Helper()
	opts := bundledOptions(t, cfg)
	if os.Getenv("ENGINETEST_LONG") == "" {
		opts = append(opts, conformance.Only(regexp.MustCompile(only)), conformance.Draws(600))
	}
	conformance.Run(t, opener(cfg), opts...)
}
