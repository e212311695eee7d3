package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/enginetest/enginetest/engine/internal/kvcache"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/engine/internal/scheduler"
	"github.com/enginetest/enginetest/engine/internal/tokenizer"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/llm"
)

// model is what a loader gives.
type model struct {
	runner       modelrunner.Runner
	maxPositions int
	limits
	pooling     llm.PoolingInfo // of a model that pools
	embedding   int             // numbers in a prompt's embedding; 0: the device takes none
	tokenTypes  int             // 0: the model tells no segments apart
	padTokenID  int32           // -1: none
	noTokenizer string          // why a tokenizer.json is not used
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
	if c.cfg, m.pooling, err = c.cfg.resolveTask(ckpt); err != nil {
		return model{}, errors.Join(err, ckpt.Close())
	}
	m.tokenTypes, m.padTokenID = ckpt.Config.TypeVocab, ckpt.Config.PadTokenID
	if err := c.cfg.checkSpeculative(); err != nil {
		return model{}, errors.Join(err, ckpt.Close())
	}
	if c.cfg, err = c.cfg.resolveModel(m.maxPositions); err != nil {
		return model{}, errors.Join(err, ckpt.Close())
	}
	if err := c.cfg.checkSplit(&ckpt.Config); err != nil {
		return model{}, errors.Join(err, ckpt.Close())
	}
	if path := ckpt.TokenizerPath(); path != "" && !c.cfg.SkipTokenizer {
		if m.tok, err = tokenizer.Load(path); err != nil && ckpt.Config.Encoder {
			m.noTokenizer, err = unreadTokenizer(path, err)
		}
		if err != nil {
			return model{}, errors.Join(err, ckpt.Close())
		}
	}
	m.runner, err = newRunner(c, ckpt)
	if err != nil {
		return model{}, err
	}
	if m.runner, err = c.speculate(m.runner, m.vocab, m.maxPositions); err != nil {
		return model{}, err
	}
	if c.cfg.Device == "cpu" {
		m.embedding = ckpt.Config.HiddenSize
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
			err = c.loop.phase.recovered(v)
		}
		err = public(err)
	}()
	if err := ctx.Err(); err != nil {
		return err
	}
	c.loop.phase.enter("loading")
	m, err := load(c)
	if err != nil {
		return err
	}
	c.use(m)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.makeCache(m.maxPositions); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.loop.profile(); err != nil {
		return fmt.Errorf("profiling pass: %w", err)
	}
	c.loop.publish()
	c.mu.Lock()
	c.state.to(Running)
	c.mu.Unlock()
	return nil
}

// use takes over what a loader made.
func (c *core) use(m model) {
	c.loop.runner, c.loop.out.limits = m.runner, m.limits
	c.vocab, c.eos, c.tok = m.vocab, m.eos, m.tok
	c.embedding = m.embedding
	c.pooling, c.tokenTypes, c.padTokenID, c.noTokenizer = m.pooling, m.tokenTypes, m.padTokenID, m.noTokenizer
	c.cfg.Task = cmp.Or(c.cfg.Task, llm.TaskGenerate)
	if g, ok := m.runner.(interface{ Busy() []string }); ok {
		c.loop.phase.on(g.Busy)
	}
}

// makeCache sizes and allocates the KV cache.
func (c *core) makeCache(maxPositions int) error {
	c.loop.phase.enter("KV cache allocation")
	in := kvInput{
		cfg: c.cfg, maxPositions: maxPositions, bytesPerBlock: c.loop.runner.KVBytesPerBlock(),
		gpu: strings.HasPrefix(c.cfg.Device, "cuda:"),
	}
	var err error
	if in.free, in.total, err = c.loop.runner.FreeMemory(); err != nil {
		return fmt.Errorf("cannot measure device memory: %w", err)
	}
	plan, err := in.plan()
	if err != nil {
		return err
	}
	if err := c.loop.runner.AllocateKV(plan.blocks); err != nil {
		return err
	}
	c.cfg.MaxModelLen, c.cfg.KVCacheBytes = plan.maxModelLen, int64(plan.blocks)*in.bytesPerBlock
	c.loop.cache = kvcache.New(plan.blocks, c.cfg.BlockSize, !c.cfg.DisablePrefixCache)
	c.loop.sched = scheduler.New(scheduler.Config{
		MaxSeqs: c.cfg.MaxNumSeqs, MaxTokens: c.cfg.MaxNumBatchedTokens, Chunked: !c.cfg.DisableChunkedPrefill,
		Lookahead: c.cfg.lookahead(),
	}, c.loop.cache)
	c.loop.out.sched = c.loop.sched
	return c.offload.open(c.loop)
}
