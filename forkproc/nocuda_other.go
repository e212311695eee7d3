//go:build !linux

package forkproc

import (
	"fmt"
	"runtime"
)

// NoCUDA cannot know on this system, and says so.
func NoCUDA() error {
	return fmt.Errorf("cannot tell whether this process has initialised CUDA: not known how on %s", runtime.GOOS)
}
