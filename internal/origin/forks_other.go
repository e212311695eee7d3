//go:build !linux

package origin

import "runtime"

func lockThread() bool {
	runtime.LockOSThread()
	return false
}

func threadChildren() map[Process]bool { return nil }
