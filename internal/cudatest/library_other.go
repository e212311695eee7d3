//go:build !linux || !(amd64 || arm64)

package cudatest

import "errors"

func open(string) (uintptr, error) {
	return 0, errors.New("the stand-in for libcuda is for linux/amd64 and linux/arm64")
}

//go:uintptrescapes
func (s *Stub) call(string, ...uintptr) uintptr { panic("cudatest: no stub") }
