//go:build !linux || (!amd64 && !arm64)

package gpuwait

import (
	"fmt"
	"runtime"
)

// OpenNVML needs Linux on amd64 or arm64. In this build it always fails.
func OpenNVML(string) (SourceCloser, error) {
	return nil, fmt.Errorf("NVML: %w: this build for %s/%s cannot load it (it needs linux on amd64 or arm64)",
		ErrCannotMeasure, runtime.GOOS, runtime.GOARCH)
}
