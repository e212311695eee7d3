package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/enginetest/enginetest/engine/internal/kvcache"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/sample"
	"github.com/enginetest/enginetest/engine/internal/scheduler"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// model is what a loader gives.
type model struct {
	runner       modelrunner.Runner
	maxPositions int
	limits
}

// loader makes the runner of an engine. It resolves what the configuration leaves to the
// checkpoint. When it fails, it has released everything.
type loader func(c *core) (model, error)

// loadCheckpoint opens a checkpoint folder on the configured device.
func loadCheckpoint(c *core) (model, error) {
	ckpt, err := checkpoint.Open(c.cfg.Model)
	if err != nil {
		return model{}, err
	}
	m := model{maxPositions: ckpt.Config.MaxPositions, limits: limits{vocab: ckpt.Config.VocabSize, eos: ckpt.EOS()}}
	if c.cfg, err = c.cfg.resolveModel(m.maxPositions); err != nil {
		return model{}, errors.Join(err, ckpt.Close())
	}
	if err := c.cfg.checkSplit(&ckpt.Config); err != nil {
		return model{}, errors.Join(err, ckpt.Close())
	}
	if path := ckpt.TokenizerPath(); path != "" && !c.cfg.SkipTokenizer {
		if m.tok, err = tokenizer.Load(path); err != nil {
			return model{}, errors.Join(err, ckpt.Close())
		}
	}
	m.runner, err = newRunner(c, ckpt)
	if err != nil {
		return model{}, err
	}
	c.unused = ckpt.Unused()
	warnUnused(c.log, c.cfg.Model, c.unused)
	return m, nil
}

// warnUnused names tensors of a checkpoint that the model has no place for. Nothing may be wrong,
// or config.json may describe another model.
func warnUnused(log *slog.Logger, model string, names []string) {
	const most = 5
	if len(names) == 0 {
		return
	}
	first := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		first += ", …"
	}
	log.Warn("tensors of the checkpoint are not used", "model", model, "count", len(names), "tensors", first)
}

// build makes everything that the loop needs. What it made when it fails, release takes back.
func (c *core) build(ctx context.Context, load loader) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = c.recovered(v)
		}
		err = public(err)
	}()
	if err := ctx.Err(); err != nil {
		return err
	}
	c.enter("loading")
	m, err := load(c)
	if err != nil {
		return err
	}
	c.runner, c.limits, c.tok = m.runner, m.limits, m.tok
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.makeCache(m.maxPositions); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.profile(); err != nil {
		return fmt.Errorf("profiling pass: %w", err)
	}
	c.publish()
	c.mu.Lock()
	c.state.to(Running)
	c.mu.Unlock()
	return nil
}

// makeCache sizes and allocates the KV cache.
func (c *core) makeCache(maxPositions int) error {
	c.enter("KV cache allocation")
	in := kvInput{
		cfg: c.cfg, maxPositions: maxPositions, bytesPerBlock: c.runner.KVBytesPerBlock(),
		gpu: strings.HasPrefix(c.cfg.Device, "cuda:"),
	}
	var err error
	if in.free, in.total, err = c.runner.FreeMemory(); err != nil {
		return fmt.Errorf("cannot measure device memory: %w", err)
	}
	plan, err := in.plan()
	if err != nil {
		return err
	}
	if err := c.runner.AllocateKV(plan.blocks); err != nil {
		return err
	}
	c.cfg.MaxModelLen, c.cfg.KVCacheBytes = plan.maxModelLen, int64(plan.blocks)*in.bytesPerBlock
	c.cache = kvcache.New(plan.blocks, c.cfg.BlockSize, !c.cfg.DisablePrefixCache)
	c.sched = scheduler.New(scheduler.Config{
		MaxSeqs: c.cfg.MaxNumSeqs, MaxTokens: c.cfg.MaxNumBatchedTokens, Chunked: !c.cfg.DisableChunkedPrefill,
	}, c.cache)
	return c.makeTier()
}

// profile runs one forward pass, so that what cannot run fails here and not in the first request.
func (c *core) profile() error {
	c.enter("the profiling pass")
	c.faults.profiling.Store(true)
	defer c.faults.profiling.Store(false)
	n := min(c.cfg.BlockSize, c.cfg.MaxModelLen, c.cfg.MaxNumBatchedTokens)
	b := &modelrunner.Batch{Tokens: make([]int32, n), Positions: make([]int32, n), Slots: make([]int32, n)}
	for i := range n {
		b.Positions[i], b.Slots[i] = int32(i), int32(i)
	}
	b.Seqs = []modelrunner.Seq{{
		Len: n, Context: n, Blocks: []int32{0}, PromptLogprobs: -1,
		Sampler: &sample.State{Prompt: b.Tokens, Params: sample.Params{
			TopP: 1, TypicalP: 1, RepetitionPenalty: 1,
			Logprobs: -1,
		}},
	}}
	res, err := c.runner.Execute(b)
	if err != nil {
		return err
	}
	if len(res) != 1 {
		return fmt.Errorf("the runner gave %d results for one sequence", len(res))
	}
	if errors.Is(res[0].Err, sample.ErrNoToken) {
		return &CheckpointError{
			File: c.cfg.Model, Reason: "its weights make no token possible, for a prompt of zeros",
			Want: "finite weights, and logits that are numbers", Err: res[0].Err,
		}
	}
	return res[0].Err
}
