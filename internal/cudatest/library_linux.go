//go:build linux && (amd64 || arm64)

package cudatest

import "github.com/ebitengine/purego"

func open(path string) (uintptr, error) {
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

// call calls one of the stub's functions.
//
//go:uintptrescapes
func (s *Stub) call(name string, args ...uintptr) uintptr {
	fn, err := purego.Dlsym(s.lib, name)
	if err != nil {
		panic("cudatest: " + err.Error())
	}
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}
