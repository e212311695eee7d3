package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/internal/checkpoint"
	"github.com/enginetest/enginetest/internal/cudarunner"
	"github.com/enginetest/enginetest/internal/modelrunner"
)

// checkDevice refuses what names no device, or not as many as share the model. Which GPUs they are, and whether there are any, is known only where the model is
// loaded: a parent of a child core never touches CUDA.
func checkDevice(device string, n int) error {
	list, isCUDA := strings.CutPrefix(device, "cuda:")
	if device == "" || device == "cpu" || device == "cuda" {
		return nil
	}
	ids := strings.Split(list, ",")
	if !isCUDA || slices.Contains(ids, "") {
		return &ParamError{"Device", strings.TrimSpace(device), `"cpu", "cuda", "cuda:1", "cuda:GPU-…" or, of several, "cuda:0,2" (or "": a GPU when there is one)`}
	}
	if len(ids) > 1 && len(ids) != n {
		return &ParamError{"Device", device, fmt.Sprintf("the first of the %d devices of TensorParallel, or all of them", n)}
	}
	return nil
}

// newRunner makes the runner of the configured device and writes down which it is. The checkpoint is the runner's from then on.
func newRunner(c *core, ckpt *checkpoint.Checkpoint) (modelrunner.Runner, error) {
	gpu, err := c.gpu()
	if err != nil {
		_ = ckpt.Close() // the first error is the one to report
		return nil, err
	}
	if gpu == nil {
		return c.onCPU(ckpt)
	}
	if n := c.cfg.TensorParallel; n > 1 {
		_ = ckpt.Close()
		return nil, &ParamError{"TensorParallel", n, "1 on a GPU: only the CPU device shares a model, so far"}
	}
	c.cfg.Device = "cuda:" + gpu.UUID
	return cudarunner.New(ckpt, cudarunner.Options{
		Device: *gpu, BlockSize: c.cfg.BlockSize, MaxModelLen: c.cfg.MaxModelLen, MaxNumBatchedTokens: c.cfg.MaxNumBatchedTokens,
		Ledger: c.ledger, Stacks: c.cfg.RecordStacks, Hooks: c.faults.hooks(0),
	})
}

func (c *core) onCPU(ckpt *checkpoint.Checkpoint) (modelrunner.Runner, error) {
	c.cfg.Device = "cpu"
	o := modelrunner.Options{
		Threads: c.cfg.Threads, BlockSize: c.cfg.BlockSize, MaxModelLen: c.cfg.MaxModelLen, MaxNumBatchedTokens: c.cfg.MaxNumBatchedTokens, Ledger: c.ledger,
	}
	if c.cfg.TensorParallel > 1 {
		return modelrunner.NewCPUGroup(ckpt, c.cfg.TensorParallel, o, c.faults.hooks)
	}
	o.Hooks = c.faults.hooks(0)
	return modelrunner.NewCPU(ckpt, o)
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
