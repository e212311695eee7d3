//go:build !linux || !(amd64 || arm64)

package cuda

import (
	"errors"
	"runtime"
)

func loadLibrary(string) (uintptr, error) {
	return 0, errors.New("the CUDA driver is supported on linux/amd64 and linux/arm64; this is " + runtime.GOOS + "/" + runtime.GOARCH)
}

func findSymbol(uintptr, string) uintptr { return 0 }

func invoke(uintptr, []uintptr) uintptr { panic("cuda: a call without a driver") }

func threadID() uintptr { return 0 }
