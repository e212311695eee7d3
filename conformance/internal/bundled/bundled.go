// Package bundled prepares the bundled engine for the conformance suite.
package bundled

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/enginetest/enginetest/conformance"
	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/fixtures"
	"github.com/enginetest/enginetest/harness"
	"github.com/enginetest/enginetest/llm"
)

const (
	blockBytes  = 96 << 10 // of a KV block of 16 tokens, on all devices together
	tightBlocks = 12
)

// Config is a configuration in which a step takes few tokens, so that prompts are computed in
// pieces.
func Config(core engine.Core, devices int) engine.Config {
	return engine.Config{
		Model: fixtures.Bundled(), Device: "cpu", Core: core, TensorParallel: devices, MaxModelLen: 512,
		KVCacheBytes: 8 << 20 / int64(devices), MaxNumBatchedTokens: 96, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// Open returns a function that starts an engine.
func Open(cfg engine.Config) func(context.Context) (*engine.Engine, error) {
	return func(ctx context.Context) (*engine.Engine, error) { return engine.Open(ctx, cfg) }
}

// PoolingConfig is a configuration of an engine that pools: with the bundled model's embeddings, or a
// random classifier of two classes, or of one that scores pairs, which it writes to dir.
func PoolingConfig(dir string, task llm.Task, classes int) (engine.Config, error) {
	cfg := Config(engine.InProcess, 1)
	if task == llm.TaskEmbed {
		cfg.Task = task
		return cfg, nil
	}
	cfg.Model = filepath.Join(dir, "classifier")
	if err := os.Mkdir(cfg.Model, 0o755); err != nil {
		return cfg, err
	}
	return cfg, fixtures.WriteCheckpoint(cfg.Model, fixtures.Spec{
		Architecture: fixtures.Qwen2Classifier, Tokenizer: true, Labels: classes,
	})
}

// Options are what the suite needs for a configuration. dir is an empty folder for checkpoints.
func Options(dir string, cfg engine.Config) ([]conformance.Option, error) {
	tight, damaged, missing, hungry := cfg, cfg, cfg, cfg
	tight.MaxModelLen, tight.KVCacheBytes = 160, tightBlocks*blockBytes/int64(max(cfg.TensorParallel, 1))
	damaged.Model, missing.Model = filepath.Join(dir, "damaged"), filepath.Join(dir, "missing")
	if err := writeDamaged(damaged.Model); err != nil {
		return nil, err
	}
	stumbling := cfg
	stumbling.Faults = []llm.Fault{{Point: llm.FaultProfile, Rank: -1, Action: llm.ActError}}
	hungry.Faults = []llm.Fault{{Point: llm.FaultAllocate, Rank: -1, After: 2, Action: llm.ActOOM}}
	return append(ServerOptions(),
		conformance.Tight(Open(tight)),
		conformance.Faulty(func(ctx context.Context, f llm.Fault) (*engine.Engine, error) {
			faulty := cfg
			faulty.Faults = []llm.Fault{f}
			return engine.Open(ctx, faulty)
		}),
		conformance.MustNotStart("a missing shard", Open(damaged)),
		conformance.MustNotStart("no model", Open(missing)),
		conformance.MustNotStart("no memory", Open(hungry)),
		conformance.MustNotStart("a first step that fails", Open(stumbling)),
		conformance.Claims(claims(cfg)...),
	), nil
}

// ServerOptions are those of a server of the bundled model.
func ServerOptions() []conformance.Option {
	var prompts []string
	for _, p := range fixtures.Prompts(10, 3) {
		prompts = append(prompts, p.Text)
	}
	return []conformance.Option{
		conformance.Prompts(prompts...),
		conformance.Fixture(harness.WithoutDeviceMemory("the engine runs on the CPU: its memory is in its ledger")),
	}
}

// notClaimed are the capabilities of servers, and of engines that pool.
var notClaimed = []conformance.Capability{
	conformance.OpenAIAPI, conformance.OllamaAPI, conformance.Embeddings, conformance.Classes, conformance.Scores,
	conformance.Pooling, conformance.NormalisedVectors, conformance.ShorterEmbeddings,
}

// claims is everything else but, in process, a process.
func claims(cfg engine.Config) []conformance.Capability {
	return slices.DeleteFunc(conformance.Capabilities(), func(c conformance.Capability) bool {
		return slices.Contains(notClaimed, c) || c == conformance.OwnProcess && cfg.Core != engine.ChildProcess
	})
}

func writeDamaged(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := fixtures.WriteCheckpoint(dir, fixtures.Spec{Shards: 2}); err != nil {
		return err
	}
	return fixtures.BreakCheckpoint(dir, "missing_shard")
}
