package forkproc

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A CUDAError says that this process has initialised CUDA: a child started by fork without exec
// could not use it any more, and device memory is held here until this process ends.
type CUDAError struct {
	Evidence []string // what shows it, the strongest first
	Suspects []string // libraries and threads in this process that work with CUDA
}

func (e *CUDAError) Error() string {
	s := "this process has initialised CUDA: " + strings.Join(e.Evidence, "; ")
	if len(e.Suspects) > 0 {
		s += "\n    in this process: " + strings.Join(e.Suspects, ", ")
	}
	return s + "\n    run what needs the device inside of forkproc.Run, and keep it out of init and TestMain (forkproc.Main)"
}

// RequireNoCUDA ends the test when NoCUDA finds that this process has initialised CUDA, or cannot
// tell.
func RequireNoCUDA(tb testing.TB) {
	tb.Helper()
	if err := NoCUDA(); err != nil {
		tb.Fatalf("forkproc: %s: %v", tb.Name(), err)
	}
}

// traces are what NoCUDA looks at.
type traces struct {
	maps    string   // /proc/self/maps
	files   []string // targets of the open descriptors
	threads []string // names of the threads
	count   *int     // what cuDeviceGetCount returned, when libcuda is mapped
	countBy string   // why it could not be asked, when it is mapped
}

// cudaNotInitialized is CUDA_ERROR_NOT_INITIALIZED: every call gives it before cuInit, and forever
// after a fork.
const cudaNotInitialized = 3

// judge trusts the driver's own answer most. NVML maps libcuda and opens the device files too, so
// these alone prove nothing, but only an initialised driver maps a device file.
func (tr *traces) judge() error {
	e := &CUDAError{}
	libcuda, mapped := "", map[string]bool{}
	for line := range strings.Lines(tr.maps) {
		f := strings.Fields(line)
		if len(f) < 6 {
			continue
		}
		path := f[5]
		base := path[strings.LastIndexByte(path, '/')+1:]
		switch {
		case strings.HasPrefix(path, "/dev/nvidia"):
			mapped[path] = true
		case strings.HasPrefix(base, "libcuda.so"):
			libcuda = path
		case isCUDALibrary(base):
			e.Suspects = append(e.Suspects, base)
		}
	}
	if tr.count != nil && *tr.count != cudaNotInitialized {
		e.Evidence = append(e.Evidence,
			fmt.Sprintf("cuDeviceGetCount of %s returns %d, not CUDA_ERROR_NOT_INITIALIZED (3)", libcuda, *tr.count))
	}
	if len(mapped) > 0 {
		e.Evidence = append(e.Evidence, "mapped "+strings.Join(sorted(mapped), ", "))
	}
	if len(e.Evidence) == 0 {
		if tr.countBy != "" {
			return fmt.Errorf("cannot tell whether this process has initialised CUDA: %s is mapped but %s", libcuda,
				tr.countBy)
		}
		return nil
	}
	devices := map[string]bool{}
	for _, f := range tr.files {
		if strings.HasPrefix(f, "/dev/nvidia") {
			devices[f] = true
		}
	}
	if len(devices) > 0 {
		e.Evidence = append(e.Evidence, "open "+strings.Join(sorted(devices), ", "))
	}
	for _, name := range tr.threads {
		if strings.HasPrefix(name, "cuda") {
			e.Suspects = append(e.Suspects, "thread "+name)
		}
	}
	slices.Sort(e.Suspects)
	e.Suspects = slices.Compact(e.Suspects)
	return e
}

func isCUDALibrary(base string) bool {
	for _, prefix := range []string{
		"libcudart", "libcublas", "libcudnn", "libnccl", "libnvidia-ml", "libtorch",
		"libc10_cuda", "libggml-cuda", "libonnxruntime_providers_cuda",
	} {
		if strings.HasPrefix(base, prefix) {
			return true
		}
	}
	return false
}

func sorted(set map[string]bool) []string {
	var list []string
	for s := range set {
		list = append(list, s)
	}
	slices.Sort(list)
	return list
}
