package forkproc

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// NoCUDA returns nil when this process has not initialised CUDA, a *CUDAError when it has, and
// another error when that cannot be known. It loads nothing and opens no device: it reads
// /proc/self, and asks libcuda only where that is loaded already.
func NoCUDA() error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("cannot tell whether this process has initialised CUDA: %w", err)
	}
	tr := traces{maps: string(maps)}
	for _, link := range glob("/proc/self/fd/*") {
		if target, err := os.Readlink(link); err == nil {
			tr.files = append(tr.files, target)
		}
	}
	for _, comm := range glob("/proc/self/task/*/comm") {
		if name, err := os.ReadFile(comm); err == nil {
			tr.threads = append(tr.threads, strings.TrimSpace(string(name)))
		}
	}
	if strings.Contains(tr.maps, "/libcuda.so") {
		tr.askDriver()
	}
	return tr.judge()
}

const rtldNoload = 4 // a handle of what is loaded, or nothing

func (tr *traces) askDriver() {
	var lib uintptr
	for _, name := range mappedLibcuda(tr.maps) {
		if h, err := purego.Dlopen(name, purego.RTLD_LAZY|rtldNoload); err == nil && h != 0 {
			lib = h
			break
		}
	}
	if lib == 0 {
		tr.countBy = "the dynamic linker has no handle of it"
		return
	}
	defer func() { _ = purego.Dlclose(lib) }()
	f, err := purego.Dlsym(lib, "cuDeviceGetCount")
	if err != nil {
		tr.countBy = "it has no cuDeviceGetCount"
		return
	}
	n := new(int32)
	r, _, _ := purego.SyscallN(f, uintptr(unsafe.Pointer(n)))
	status := int(int32(r))
	tr.count = &status
}

// mappedLibcuda returns the names that the loaded library may be known by.
func mappedLibcuda(maps string) []string {
	names := []string{"libcuda.so.1"}
	for line := range strings.Lines(maps) {
		if f := strings.Fields(line); len(f) >= 6 && strings.HasPrefix(filepath.Base(f[5]), "libcuda.so") {
			names = append(names, f[5])
			break
		}
	}
	return names
}

func glob(pattern string) []string {
	names, _ := filepath.Glob(pattern)
	return names
}
