//go:build linux && (amd64 || arm64)

// Package dynlib calls C libraries that are found at run time, without cgo.
package dynlib

import (
	"runtime"

	"github.com/ebitengine/purego"
)

// Open opens a shared object; symbols of it stay out of the process's global namespace.
func Open(path string) (uintptr, error) {
	runtime.LockOSThread() // why it failed is kept per thread, and asked for in a second call
	defer runtime.UnlockOSThread()
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

// Symbol is the address of a function; 0: there is none of that name.
func Symbol(lib uintptr, name string) uintptr {
	p, err := purego.Dlsym(lib, name)
	if err != nil {
		return 0
	}
	return p
}

// Call calls a C function. Whatever the arguments point to has to be on the Go heap, or pinned, and
// alive.
func Call(fn uintptr, args []uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}
