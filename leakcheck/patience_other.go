//go:build !linux

package leakcheck

import "time"

func starved() time.Duration { return 0 }
