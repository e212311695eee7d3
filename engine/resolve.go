package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"time"

	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/llm"
)

// resolve fills in the defaults that do not depend on the checkpoint, and checks every field.
func (c Config) resolve() (Config, error) {
	if c.Model == "" {
		return c, paramError("Model", `""`, "the folder of a Hugging Face checkpoint")
	}
	for _, f := range []struct {
		name     string
		value    *int
		def, max int
	}{
		{"TensorParallel", &c.TensorParallel, 1, 1 << 10},
		{"Threads", &c.Threads, runtime.GOMAXPROCS(0), 1 << 12},
		{"BlockSize", &c.BlockSize, 16, 1 << 12},
		{"MaxNumSeqs", &c.MaxNumSeqs, 64, 1 << 20},
		{"MaxWaitingSeqs", &c.MaxWaitingSeqs, 2 * maxSeqsOfRequest, math.MaxInt32},
		{"MaxNumBatchedTokens", &c.MaxNumBatchedTokens, 0, 1 << 24}, // 0 until the checkpoint is known
		{"MaxModelLen", &c.MaxModelLen, 0, math.MaxInt32},           // 0 until the KV cache is known
	} {
		if *f.value < 0 || *f.value > f.max {
			return c, paramError(f.name, *f.value, fmt.Sprintf("in [1, %d], or 0 for the default", f.max))
		}
		if *f.value == 0 {
			*f.value = f.def
		}
	}
	if err := checkDevice(c.Device, c.TensorParallel); err != nil {
		return c, err
	}
	if u := c.MemoryUtilization; !(u >= 0 && u <= 1) {
		return c, paramError("MemoryUtilization", u, "in (0, 1], or 0 for the default")
	}
	if c.KVCacheBytes < 0 {
		return c, paramError("KVCacheBytes", c.KVCacheBytes, "≥ 0")
	}
	if err := c.checkTask(); err != nil {
		return c, err
	}
	if c.Core != InProcess && c.Core != ChildProcess {
		return c, paramError("Core", c.Core, "InProcess or ChildProcess")
	}
	if c.Core == ChildProcess && runtime.GOOS != "linux" {
		return c, paramError("Core", c.Core,
			"InProcess on "+runtime.GOOS+": only Linux can tie a child's life to its parent's")
	}
	if c.MaxWaitingBytes < 0 {
		return c, paramError("MaxWaitingBytes", c.MaxWaitingBytes, "> 0, or 0 for the default")
	}
	if c.MaxWaitingBytes == 0 {
		c.MaxWaitingBytes = defaultWaitingBytes
	}
	if c.OffloadBytes < 0 {
		return c, paramError("OffloadBytes", c.OffloadBytes, "≥ 0")
	}
	if c.OffloadBytes > 0 && c.DisablePrefixCache {
		return c, paramError("OffloadBytes", c.OffloadBytes, "0 with DisablePrefixCache: it keeps prefixes")
	}
	var err error
	if c.Connector, err = c.Connector.resolve(); err != nil {
		return c, err
	}
	if err := c.checkConnector(); err != nil {
		return c, err
	}
	if c.StartTimeout < 0 {
		return c, paramError("StartTimeout", c.StartTimeout, "> 0, or 0 for the default")
	}
	if c.StartTimeout == 0 {
		c.StartTimeout = 10 * time.Minute // vLLM's VLLM_ENGINE_READY_TIMEOUT_S
	}
	if c.StepTimeout < 0 {
		return c, paramError("StepTimeout", c.StepTimeout, "> 0, or 0 for no bound")
	}
	if c.Speculative, err = c.Speculative.resolve(); err != nil {
		return c, err
	}
	for i, f := range c.Faults {
		if err := checkFault(f, i, c.TensorParallel); err != nil {
			return c, err
		}
		if f.Point == llm.FaultDraft && c.Speculative.Method == "" {
			return c, paramError(fmt.Sprintf("Faults[%d].Point", i), `"draft"`, "another one without Speculative")
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

// resolveModel checks what depends on the checkpoint's longest sequence. Without chunked prefill a
// whole prompt must fit into one step.
func (c Config) resolveModel(maxPositions int) (Config, error) {
	const tokens = 2048
	if c.MaxModelLen > maxPositions {
		return c, paramError("MaxModelLen", c.MaxModelLen,
			fmt.Sprintf("at most %d, the checkpoint's max_position_embeddings", maxPositions))
	}
	if !c.DisableChunkedPrefill {
		if c.MaxNumBatchedTokens == 0 {
			c.MaxNumBatchedTokens = tokens
		}
		return c, nil
	}
	longest := c.MaxModelLen
	switch {
	case longest == 0 && c.MaxNumBatchedTokens > 0:
		c.MaxModelLen = min(maxPositions, c.MaxNumBatchedTokens)
	case c.MaxNumBatchedTokens == 0:
		c.MaxNumBatchedTokens = max(tokens, longest)
		if longest == 0 {
			c.MaxNumBatchedTokens = max(tokens, maxPositions)
		}
	case c.MaxNumBatchedTokens < longest:
		return c, paramError(
			"MaxNumBatchedTokens", c.MaxNumBatchedTokens,
			fmt.Sprintf("at least MaxModelLen (%d) with DisableChunkedPrefill", longest),
		)
	}
	return c, nil
}

// checkSplit refuses devices that cannot share the model, before any memory is taken.
func (c Config) checkSplit(model *checkpoint.Config) error {
	_, err := modelrunner.Split(*model, modelrunner.Shard{Size: c.TensorParallel})
	if e, ok := errors.AsType[*modelrunner.SplitError](err); ok {
		return paramError("TensorParallel", e.Size, "a number of devices that can share the model: "+e.Why())
	}
	return err
}
