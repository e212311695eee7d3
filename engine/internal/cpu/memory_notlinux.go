//go:build !linux

package cpu

import (
	"fmt"
	"runtime"
)

func adviseHuge([]byte) {}

func machineMemory() (free, total int64, err error) {
	return 0, 0, fmt.Errorf("cpu: free memory cannot be measured on %s; give the allocator a capacity", runtime.GOOS)
}
