// Package cuda is the CUDA driver from Go: no toolkit, no headers, nothing linked, and it works
// with CGO_ENABLED=0. libcuda.so.1 is opened at run time; without it [Available] says why.
//
//	d, err := cuda.Open()
//	dev, err := d.Device("0")                      // or "GPU-6fd6…"
//	w, err := cuda.NewWorker(dev, cuda.Config{})   // the primary context, and an OS thread locked to it
//	err = w.Do(func() error {                      // one hop (11 µs) to that thread per engine step
//		m, err := w.Alloc("weights", 1<<30)
//		…
//		return m.Free()
//	})
//	err = w.Close(ctx)                             // frees, resets, checks
//
// Every block of memory, stream, event, module and graph has an owner and is entered in a ledger
// (package ledger) until it is given back, and so is the context. [Worker.Close] frees what owners
// left, resets the primary context and asks the driver whether it is gone.
//
// # What it says when something is wrong
//
// There is no CUDA here (ErrNoDriver, or the driver's own code):
//
//	cuda: no driver: libcuda.so.1: cannot open shared object file: No such file or directory
//	cuda: no driver: /opt/old/libcuda.so.1: it lacks cuMemcpyPeerAsync: a driver of CUDA 11.6 (version 510, 2022) or newer is needed
//	cuda: cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected (CUDA_VISIBLE_DEVICES="")
//
// A driver call fails ([Error], matches its [Code]), memory runs out ([AllocError]), a module does
// not compile ([CompileError]):
//
//	cuda: cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered
//	cuda: no 40.0 GiB (plain) for kv_cache on rank 0: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory; 38.1 GiB of 139.8 GiB free; the ledger holds weights 100.0 GiB
//	cuda: module gemv.ptx: cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX (218): a PTX JIT compilation failed
//	    ptxas application ptx input, line 4; fatal   : …
//
// An earlier error has left the context useless (matches ErrContextDead and the first
// error):
//
//	cuda: Alloc: the context of rank 0 is dead since cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered; close the worker; only a new process can use CUDA again
//
// After such an error the process's workers on all devices are dead, and NVIDIA's driver refuses
// it any new context (matches ErrProcessDead). Free and Close still work:
//
//	cuda: no context for rank 1 on NVIDIA H200 (…): cuda: no context in this process any more, since rank 0 met cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered; only a new process can use CUDA again: run the engine in a child (forkproc.Run, engine.ChildProcess)
//
// The caller is mistaken (found without asking the driver):
//
//	cuda: Memory.Free: called off the worker's thread: rank 0 was used on the thread of rank 1: wrap the call in Do
//	cuda: Memory.CopyTo: use after free: weights (plain, 1.0 GiB)
//	cuda: Memory.Free: freed twice: weights (plain, 1.0 GiB)
//	cuda: Memory.CopyDevice: belongs to another worker: weights (plain, 1.0 GiB) was made by rank 1 and used with rank 0
//	cuda: Memory.CopyTo: out of range: 10 bytes from byte 991 on, of 1000 of weights (plain, 1000 B)
//	cuda: Alloc: the worker is closed: rank 0
//
// A thread does not come back ([HangError]), or a function on it panics ([PanicError]):
//
//	cuda: rank 0: Close: the worker's thread has been busy for 30s, in the driver's cuStreamSynchronize: context deadline exceeded
//
// Something was left when the worker was closed ([LeakError]):
//
//	cuda: rank 0 was closed with 2 allocations still live
//	  freed now, because the owner did not:
//	       64.0 MiB  workspace    GPU-6fd6ac6d-… (async)
//	                  example.com/llm.(*Sampler).grow /src/llm/sampler.go:88
//	  not freed, on the device until the process ends:
//	        1.0 GiB  weights      GPU-6fd6ac6d-… (plain)
//	  because: cuDevicePrimaryCtxRelease_v2: CUDA_ERROR_UNKNOWN (999): unknown error
//
//	cuda: the primary context of NVIDIA H200 (…) is still active after release and reset: something else in this process keeps using it
//
// # Limits
//
// Close cannot interrupt a driver call that hangs: only the end of the process does. cuInit keeps
// 3.25 MiB of device memory until the process ends (measured on an H200, driver 580). Bytes of
// modules, graphs and of the context itself are not known to the driver's caller: their holdings
// have 0 bytes. Linux on amd64 and arm64; elsewhere Open says so.
package cuda
