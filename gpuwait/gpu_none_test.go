//go:build !linux || (!amd64 && !arm64)

package gpuwait_test

import (
	"errors"
)

func cudaHold() error { return errors.ErrUnsupported }

func scheduleProcess(string) error { return errors.ErrUnsupported }
