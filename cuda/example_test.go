package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/enginetest/enginetest/cuda"
	"github.com/enginetest/enginetest/ledger"
)

func Example() {
	d, err := cuda.Open()
	if err != nil {
		log.Fatal(err) // says what is missing
	}
	dev, err := d.Device("0")
	if err != nil {
		log.Fatal(err)
	}
	w, err := cuda.NewWorker(dev, cuda.Config{Name: "rank 0", Stacks: true})
	if err != nil {
		log.Fatal(err)
	}
	err = w.Do(func() error {
		m, err := w.Alloc("weights", 1<<20)
		if err != nil {
			return err
		}
		return errors.Join(m.CopyFrom(0, make([]byte, 1<<20)), m.Free())
	})
	fmt.Println(err)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println(w.Close(ctx)) // a *cuda.LeakError names what was not freed
}

func ExampleAvailable() {
	err := cuda.Available(cuda.Library("/nowhere/libcuda.so.1"))
	fmt.Println(errors.Is(err, cuda.ErrNoDriver))
	// Output: true
}

func ExampleDriver_Devices() {
	d, err := cuda.Open()
	if err != nil {
		log.Fatal(err)
	}
	devices, err := d.Devices()
	if err != nil {
		log.Fatal(err)
	}
	for _, v := range devices {
		fmt.Println(v.Ordinal, v) // 0 NVIDIA H200 (GPU-6fd6…, sm_90, 132 SMs, 139.8 GiB)
	}
}

// A ledger that several workers share says who holds what, on every device.
func ExampleNewWorker() {
	d, err := cuda.Open()
	if err != nil {
		log.Fatal(err)
	}
	devices, err := d.Devices()
	if err != nil {
		log.Fatal(err)
	}
	l := ledger.New(false)
	for i, v := range devices {
		w, err := cuda.NewWorker(v, cuda.Config{Name: fmt.Sprint("rank ", i), Ledger: l})
		if err != nil {
			log.Fatal(err)
		}
		defer w.Close(context.Background())
	}
	fmt.Print(ledger.Format(l.Holdings()))
}

// A step that is the same every time is captured once and launched as one graph.
func ExampleStream_Capture() {
	step := func(w *cuda.Worker, image []byte) error {
		mod, err := w.LoadModule("kernels", "scale.ptx", image)
		if err != nil {
			return err // a *cuda.CompileError has the compiler's log
		}
		defer mod.Close()
		scale, err := mod.Function("scale")
		if err != nil {
			return err
		}
		x, err := w.Alloc("activations", 4096)
		if err != nil {
			return err
		}
		defer x.Free()
		s, err := w.NewStream("step")
		if err != nil {
			return err
		}
		defer s.Close()
		args := cuda.NewArgs(2).Memory(0, x, 0).Float32(1, 0.5)
		g, err := s.Capture("cuda_graphs", func() error {
			return scale.Launch(s, cuda.Launch{Grid: cuda.Dim{X: 4}, Block: cuda.Dim{X: 256}}, args)
		})
		if err != nil {
			return err
		}
		defer g.Close()
		exec, err := g.Instantiate("cuda_graphs")
		if err != nil {
			return err
		}
		defer exec.Close()
		for range 100 {
			if err := exec.Launch(s); err != nil {
				return err
			}
		}
		return s.Synchronize()
	}
	_ = step // run it with w.Do(func() error { return step(w, image) })
}
