package cudarunner

import (
	"fmt"
	"strings"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/cuda/kernels"
)

// kernelSet is the loaded module and its functions, looked up when first used.
type kernelSet struct {
	module    *cuda.Module
	variants  *cuda.Module // what some architectures compute beside the rest; nil: not needed
	functions map[string]*cuda.Function
	dependent bool // launches may overlap with the end of the one before (griddepcontrol)
	apart     bool // but not those of this step
	alone     bool // nor the next one
	hopper    bool // the image has kernels for wgmma
	sms       int
	maxShared int

	rowWarps   int // overrides the choice of rowWarps, for measurements
	gemvBlocks int // of a product of one row, per SM
	gemvWide   int // column blocks from which such a product takes 16 warps a block, when there are few blocks

	// for tests: sizes of the arguments in bits, by kernel
	launched map[string]string
	// for tests: what happens instead of a launch
	around func(name string, grid cuda.Dim, args []any, launch func() error) error
}

// defaultShared is the dynamic shared memory that needs no opting in.
const defaultShared = 48 << 10

func loadKernels(w *cuda.Worker, ptx bool) (*kernelSet, error) {
	d := w.Device()
	name, image, err := kernels.Image(d.Major, d.Minor)
	driver, _ := d.Driver().Version()
	// older drivers know neither the machine code of CUDA 12 nor clusters
	if ptx = ptx || driver < 12; err == nil && ptx {
		name, image, err = kernels.PTX()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d, err)
	}
	m, err := w.LoadModule(kernelsOwner, name, image)
	if err != nil {
		return nil, err
	}
	hopper := d.Major == 9 && d.Minor == 0 && !ptx
	return &kernelSet{
		module: m, functions: map[string]*cuda.Function{}, sms: d.SMs, maxShared: int(d.MaxShared),
		dependent: hopper, hopper: hopper,
		gemvBlocks: 2, gemvWide: 128,
	}, nil
}

// loadVariants loads the image that only some architectures need.
func (k *kernelSet) loadVariants(w *cuda.Worker) error {
	name, image, err := kernels.Variants()
	if err != nil {
		return err
	}
	k.variants, err = w.LoadModule(kernelsOwner, name, image)
	return err
}

// close unloads the images. It can be called again after a failure.
func (k *kernelSet) close() error {
	if k.variants != nil {
		if err := k.variants.Close(); err != nil {
			return err
		}
		k.variants = nil
	}
	return k.module.Close()
}

// isVariant reports whether a kernel is in the image of variants, whose kernels do not wait for the
// one ahead of them.
func isVariant(name string) bool { return name == "scale" || strings.HasPrefix(name, "gelu_") }

// function finds a kernel by name; it may use all the shared memory that the device has.
func (k *kernelSet) function(name string) (*cuda.Function, error) {
	if f, ok := k.functions[name]; ok {
		return f, nil
	}
	m := k.module
	if isVariant(name) {
		m = k.variants
	}
	f, err := m.Function(name)
	if err != nil {
		return nil, err
	}
	a, err := f.Attributes()
	if err != nil {
		return nil, err
	}
	if limit := k.maxShared - a.StaticBytes; limit > defaultShared {
		if err := f.SetMaxDynamicShared(limit); err != nil {
			return nil, err
		}
	}
	if ofOneRow(name) {
		if err := f.SetCarveout(100); err != nil {
			return nil, err
		}
	}
	k.functions[name] = f
	return f, nil
}

// ofOneRow reports whether a kernel is one of a layer of a step of one row. Those overlap, and an
// SM has to be empty to divide its memory into cache and shared memory in another way, so all want
// it to be shared memory. Left to the driver, the graph of a step took 0.711 ms instead of 0.699.
func ofOneRow(name string) bool {
	return strings.HasPrefix(name, "gemv") || strings.HasPrefix(name, "attend") && strings.HasSuffix(name, "_1")
}

// run launches a kernel. Arguments are int (int in C), int64 (u64), float32 and addresses, in the
// order of its parameters.
func (k *kernelSet) run(s *cuda.Stream, name string, grid cuda.Dim, threads, shared int, args ...any) error {
	return k.launch(s, name, cuda.Launch{Grid: grid, Block: cuda.Dim{X: threads}, Shared: shared}, args...)
}

// launch is run for launches that need more said.
func (k *kernelSet) launch(s *cuda.Stream, name string, l cuda.Launch, args ...any) error {
	if k.launched != nil {
		k.launched[name] = argumentSizes(args)
	}
	if k.around != nil {
		return k.around(name, l.Grid, args, func() error { return k.queue(s, name, l, args) })
	}
	return k.queue(s, name, l, args)
}

func (k *kernelSet) queue(s *cuda.Stream, name string, l cuda.Launch, args []any) error {
	f, err := k.function(name)
	if err != nil {
		return err
	}
	a := cuda.NewArgs(len(args))
	for i, v := range args {
		switch v := v.(type) {
		case int:
			a.Int32(i, int32(v))
		case int64:
			a.Int64(i, v)
		case float32:
			a.Float32(i, v)
		case cuda.DevicePtr:
			a.Ptr(i, v)
		default:
			return fmt.Errorf("cudarunner: %s: argument %d is a %T", name, i, v)
		}
	}
	l.Programmatic = k.dependent && !k.apart && !k.alone && !isVariant(name)
	k.alone = false
	if err := f.Launch(s, l, a); err != nil {
		return fmt.Errorf("kernel %s: %w", name, err)
	}
	return nil
}

func argumentSizes(args []any) string {
	out := ""
	for _, v := range args {
		switch v.(type) {
		case int, float32:
			out += "32 "
		default:
			out += "64 "
		}
	}
	return out
}
