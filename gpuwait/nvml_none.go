//go:build !linux || !cgo

package gpuwait

import (
	"fmt"
	"runtime"
)

// OpenNVML needs Linux and cgo: in this build it always fails, and says so.
func OpenNVML(string) (SourceCloser, error) {
	return nil, fmt.Errorf("NVML: %w: built for %s without NVML (it needs linux and CGO_ENABLED=1)", ErrCannotMeasure, runtime.GOOS)
}
