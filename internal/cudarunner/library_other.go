//go:build !linux || !(amd64 || arm64)

package cudarunner

import (
	"errors"
	"runtime"
)

func loadLibrary(string) (uintptr, error) {
	return 0, errors.New("there is none for " + runtime.GOOS + "/" + runtime.GOARCH)
}
func findSymbol(uintptr, string) uintptr { return 0 }
func invoke(uintptr, []uintptr) uintptr  { return ^uintptr(0) }
