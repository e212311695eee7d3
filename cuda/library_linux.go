//go:build linux && (amd64 || arm64)

package cuda

import (
	"syscall"

	"github.com/ebitengine/purego"
)

// loadLibrary opens a shared object; symbols of it stay out of the process's global namespace.
func loadLibrary(path string) (uintptr, error) {
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func findSymbol(lib uintptr, name string) uintptr {
	p, err := purego.Dlsym(lib, name)
	if err != nil {
		return 0
	}
	return p
}

// invoke calls a C function. Whatever the arguments point to has to be on the Go heap and alive: see Worker.call.
func invoke(fn uintptr, args []uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}

// threadID is the calling OS thread. RawSyscall: the call cannot block, so the scheduler need not know.
func threadID() uintptr {
	id, _, _ := syscall.RawSyscall(syscall.SYS_GETTID, 0, 0, 0)
	return id
}
