package engine

import (
	"fmt"
	"strings"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/internal/cudarunner"
	"github.com/enginetest/enginetest/internal/modelrunner"
)

// checkDevice refuses what names no device. Which GPU it is, and whether there is one, is known only where the model is loaded: a parent of a child core never
// touches CUDA.
func checkDevice(device string) error {
	switch id, isCUDA := strings.CutPrefix(device, "cuda:"); {
	case device == "" || device == "cpu" || device == "cuda" || isCUDA && id != "":
		return nil
	}
	return &ParamError{"Device", strings.TrimSpace(device), `"cpu", "cuda", "cuda:1" or "cuda:GPU-…" (or "": a GPU when there is one)`}
}

// newRunner makes the runner of the configured device and writes down which it is. The checkpoint is the runner's from then on.
func newRunner(c *core, ckpt *checkpoint.Checkpoint) (modelrunner.Runner, error) {
	gpu, err := c.gpu()
	if err != nil {
		_ = ckpt.Close() // the first error is the one to report
		return nil, err
	}
	if gpu == nil {
		c.cfg.Device = "cpu"
		return modelrunner.NewCPU(ckpt, modelrunner.Options{
			Threads: c.cfg.Threads, BlockSize: c.cfg.BlockSize, MaxModelLen: c.cfg.MaxModelLen, MaxNumBatchedTokens: c.cfg.MaxNumBatchedTokens,
			Ledger: c.ledger, Hooks: c.faults.hooks(),
		})
	}
	c.cfg.Device = "cuda:" + gpu.UUID
	return cudarunner.New(ckpt, cudarunner.Options{
		Device: *gpu, BlockSize: c.cfg.BlockSize, MaxModelLen: c.cfg.MaxModelLen, MaxNumBatchedTokens: c.cfg.MaxNumBatchedTokens,
		Ledger: c.ledger, Stacks: c.cfg.RecordStacks, Hooks: c.faults.hooks(),
	})
}

// gpu finds the configured GPU; nil is the CPU. "" takes the first GPU if the kernels run on it.
func (c *core) gpu() (*cuda.Device, error) {
	if c.cfg.Device == "cpu" {
		return nil, nil
	}
	id, named := strings.CutPrefix(c.cfg.Device, "cuda:")
	if !named {
		id = "0"
	}
	driver, err := cuda.Open()
	if err == nil {
		var v cuda.Device
		if v, err = driver.Device(id); err == nil && (c.cfg.Device != "" || v.Major >= 8) {
			return &v, nil
		}
	}
	if c.cfg.Device == "" {
		return nil, nil
	}
	return nil, fmt.Errorf("device %s: %w", c.cfg.Device, err)
}
