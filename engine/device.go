package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/engine/internal/cpurunner"
	"github.com/enginetest/enginetest/engine/internal/cudarunner"
	"github.com/enginetest/enginetest/engine/internal/modelrunner"
	"github.com/enginetest/enginetest/internal/checkpoint"
)

// checkDevice refuses what names no device, or not as many as share the model. Which GPUs they are,
// and whether there are any, is known only where the model is loaded: a parent of a child core
// never touches CUDA.
func checkDevice(device string, n int) error {
	list, isCUDA := strings.CutPrefix(device, "cuda:")
	if device == "" || device == "cpu" || device == "cuda" {
		return nil
	}
	ids := strings.Split(list, ",")
	if !isCUDA || slices.Contains(ids, "") {
		return paramError("Device", strings.TrimSpace(device),
			`"cpu", "cuda", "cuda:1", "cuda:GPU-…" or, of several, "cuda:0,2" (or "": a GPU when there is one)`)
	}
	if len(ids) > 1 && len(ids) != n {
		return paramError("Device", device, fmt.Sprintf("the first of the %d devices of TensorParallel, or all of them",
			n))
	}
	return nil
}

// newRunner makes the runner of the configured device, or devices, and writes down which they are.
// The checkpoint is the runner's from then on.
func newRunner(c *core, ckpt *checkpoint.Checkpoint) (modelrunner.Runner, error) {
	gpus, err := findGPUs(&c.cfg)
	if err != nil {
		_ = ckpt.Close() // the first error is the one to report
		return nil, err
	}
	onGPU, err := c.cfg.useGPUs(len(gpus), &ckpt.Config)
	if err != nil {
		_ = ckpt.Close() // the first error is the one to report
		return nil, err
	}
	if !onGPU {
		c.cfg.Device = "cpu"
		return runOnCPU(&c.cfg, ckpt, c.cpuOptions(), c.faults.hooks)
	}
	var ids []string
	for _, v := range gpus {
		ids = append(ids, v.UUID)
	}
	c.cfg.Device = "cuda:" + strings.Join(ids, ",")
	o := cudarunner.Options{
		BlockSize: c.cfg.BlockSize, MaxModelLen: c.cfg.MaxModelLen, MaxNumBatchedTokens: c.cfg.MaxNumBatchedTokens,
		Ledger: c.ledger, Stacks: c.cfg.RecordStacks,
	}
	if len(gpus) > 1 {
		return cudarunner.NewGroup(ckpt, gpus, o, c.faults.hooks)
	}
	o.Device, o.Hooks = gpus[0], c.faults.hooks(0)
	return cudarunner.New(ckpt, o)
}

// useGPUs reports whether the model runs on the GPUs that were found. What they cannot do is left to
// the CPU, unless the configuration names them.
func (c *Config) useGPUs(found int, model *checkpoint.Config) (bool, error) {
	speculates, shares := c.Speculative.Method != "", c.Connector.Path != ""
	switch {
	case found == 0 || c.Device == "" && (speculates || shares || !cudarunner.Computes(model)):
		return false, nil
	case speculates:
		return false, paramError("Speculative.Method", fmt.Sprintf("%q", c.Speculative.Method),
			fmt.Sprintf(`"" on device %s: only the CPU speculates`, c.Device))
	case shares:
		return false, c.Connector.unsupported(c.Device)
	}
	return true, nil
}

func (c *core) cpuOptions() cpurunner.Options {
	return cpurunner.Options{
		Threads: c.cfg.Threads, BlockSize: c.cfg.BlockSize, MaxModelLen: c.cfg.MaxModelLen,
		MaxNumBatchedTokens: c.cfg.MaxNumBatchedTokens, Ledger: c.ledger,
	}
}

// runOnCPU makes a runner on one device that is the CPU, or on several that it emulates.
func runOnCPU(cfg *Config, ckpt *checkpoint.Checkpoint, o cpurunner.Options,
	hooks func(rank int) modelrunner.Hooks,
) (modelrunner.Runner, error) {
	if cfg.TensorParallel > 1 {
		return cpurunner.NewGroup(ckpt, cfg.TensorParallel, o, hooks)
	}
	o.Hooks = hooks(0)
	return cpurunner.New(ckpt, o)
}

// findGPUs finds the configured GPUs; none is the CPU. "" takes the first ones if there are enough that
// the kernels run on.
func findGPUs(cfg *Config) ([]cuda.Device, error) {
	if cfg.Device == "cpu" {
		return nil, nil
	}
	driver, err := cuda.Open()
	if err != nil && cfg.Device == "" {
		return nil, nil
	}
	var gpus []cuda.Device
	if err == nil {
		gpus, err = pickGPUs(driver, cfg.Device, cfg.TensorParallel)
	}
	if cfg.Device == "" && (err != nil || slices.ContainsFunc(gpus, func(v cuda.Device) bool {
		return v.Major < 8
	})) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", cfg.Device, err)
	}
	return gpus, nil
}

// pickGPUs takes the n GPUs that device lists, or n from the one on that it names.
func pickGPUs(driver *cuda.Driver, device string, n int) (gpus []cuda.Device, err error) {
	list, named := strings.CutPrefix(device, "cuda:")
	if !named {
		list = "0"
	}
	for _, id := range strings.Split(list, ",") {
		v, err := driver.Device(id)
		if err != nil {
			return nil, err
		}
		gpus = append(gpus, v)
	}
	if len(gpus) == n {
		return gpus, nil
	}
	all, err := driver.Devices()
	if err != nil {
		return nil, err
	}
	from := all[gpus[0].Ordinal:]
	if len(from) < n {
		return nil, paramError("TensorParallel", n,
			fmt.Sprintf("at most %d: that is how many GPUs there are from %s on (of %d)", len(from), gpus[0], len(all)))
	}
	return from[:n], nil
}
