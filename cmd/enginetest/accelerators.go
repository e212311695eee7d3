package main

import (
	"fmt"
	"strings"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/cuda/kernels"
	"github.com/enginetest/enginetest/engine"
	"github.com/enginetest/enginetest/gpuwait"
)

// gpuReport is what `enginetest gpus` prints: the devices, and what the engine uses of them.
type gpuReport struct {
	gpuwait.Inventory
	CUDA cudaReport `json:"cuda"`
}

func (r gpuReport) String() string { return r.Inventory.String() + "\n" + r.CUDA.String() }

// cudaReport is what the engine's CUDA device would run on in this process's environment.
type cudaReport struct {
	Error   string         `json:"error,omitempty"` // why there is none
	Driver  string         `json:"driver,omitempty"`
	Version string         `json:"version,omitempty"` // of CUDA, that the driver supports
	Devices []kernelReport `json:"devices,omitempty"`
	// Libraries of NVIDIA's that are never required.
	NCCL     *libraryReport `json:"nccl,omitempty"`
	CUBLASLt string         `json:"cublaslt,omitempty"`
}

// libraryReport is a library that was looked for.
type libraryReport struct {
	Library string `json:"library,omitempty"`
	Version string `json:"version,omitempty"`
	// by engines of several devices in this environment; their own kernels add up otherwise
	Used  bool   `json:"used"`
	Error string `json:"error,omitempty"` // why there is none
}

// kernelReport says which of the package's kernel images a device gets.
type kernelReport struct {
	UUID       string `json:"uuid"`
	Capability string `json:"compute_capability"`
	Kernels    string `json:"kernels,omitempty"`
	Compiled   bool   `json:"compiled"`        // by the driver, from PTX, when it is first used
	Error      string `json:"error,omitempty"` // why it gets none
}

// inspectCUDA opens the driver: 0.1 to 0.2 s, and 3.25 MiB of device memory until the process ends.
func inspectCUDA() cudaReport {
	d, err := cuda.Open()
	if err != nil {
		return cudaReport{Error: err.Error()}
	}
	major, minor := d.Version()
	r := cudaReport{Driver: d.Path(), Version: fmt.Sprintf("%d.%d", major, minor), CUBLASLt: "not used"}
	devices, err := d.Devices()
	if err != nil {
		r.Error = err.Error()
	}
	for _, v := range devices {
		k := kernelReport{UUID: v.UUID, Capability: fmt.Sprintf("%d.%d", v.Major, v.Minor)}
		if k.Kernels, _, err = kernels.Image(v.Major, v.Minor); err != nil {
			k.Error = err.Error()
		}
		k.Compiled = strings.HasSuffix(k.Kernels, ".ptx")
		r.Devices = append(r.Devices, k)
	}
	n := engine.FindNCCL()
	r.NCCL = &libraryReport{Library: n.Library, Version: n.Version, Used: n.Used}
	if n.Err != nil {
		r.NCCL.Error = n.Err.Error()
	}
	return r
}

func (r cudaReport) String() string {
	var b strings.Builder
	if r.Error != "" {
		return "CUDA: n/a: " + strings.TrimPrefix(r.Error, "cuda: ")
	}
	fmt.Fprintf(&b, "CUDA %s (%s)", r.Version, r.Driver)
	for _, k := range r.Devices {
		fmt.Fprintf(&b, "\n     %s  ", k.UUID)
		switch {
		case k.Error != "":
			b.WriteString(k.Error)
		case k.Compiled:
			fmt.Fprintf(&b, "compute capability %s: %s, compiled by the driver when first used", k.Capability,
				k.Kernels)
		default:
			fmt.Fprintf(&b, "compute capability %s: %s", k.Capability, k.Kernels)
		}
	}
	switch n := r.NCCL; {
	case n.Error != "":
		fmt.Fprintf(&b, "\n     NCCL: none: %s", n.Error)
	case n.Used:
		fmt.Fprintf(&b, "\n     NCCL: %s (%s), used by engines of several devices", n.Version, n.Library)
	default:
		fmt.Fprintf(&b, "\n     NCCL: %s (%s), not used without %s=%s", n.Version, n.Library, engine.AllReduceEnv,
			"nccl")
	}
	fmt.Fprintf(&b, "\n     cuBLASLt: %s", r.CUBLASLt)
	return b.String()
}
