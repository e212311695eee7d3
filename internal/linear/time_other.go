//go:build !linux

package linear

import "time"

// threadTime is wall time where a thread's processor time cannot be read.
func threadTime() time.Duration { return sinceStart() }
