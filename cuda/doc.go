// Package cuda is the CUDA driver from Go: no toolkit, no headers, nothing linked, and it works with CGO_ENABLED=0. libcuda.so.1 is opened at
// run time; without it [Available] says why.
//
//	d, err := cuda.Open()
//	dev, err := d.Device("0")                      // or "GPU-6fd6…"
//	w, err := cuda.NewWorker(dev, cuda.Config{})   // the primary context, and an OS thread locked to it
//	err = w.Do(func() error {                      // one hop to that thread per engine step
//		m, err := w.Alloc("weights", 1<<30)
//		…
//		return m.Free()
//	})
//	err = w.Close(ctx)                             // frees, resets, checks; a *LeakError names what was left
package cuda
