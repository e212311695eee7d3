//go:build !linux || (!cgo && !amd64 && !arm64)

package gpuwait

import (
	"fmt"
	"runtime"
)

// OpenNVML needs Linux and, on other processors than amd64 and arm64, cgo. In this build it always
// fails.
func OpenNVML(string) (SourceCloser, error) {
	return nil, fmt.Errorf("NVML: %w: this build for %s/%s cannot load it (it needs linux, and cgo on other processors than amd64 and arm64)",
		ErrCannotMeasure, runtime.GOOS, runtime.GOARCH)
}
