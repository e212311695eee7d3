package origin

import (
	"runtime"
	"sync"
)

// Process is one process: its start time tells it from a later one with its number.
type Process struct {
	PID     int
	Started int64 // in clock ticks since boot
}

// Forks are the children that one call started itself, in its own goroutine.
type Forks struct {
	mu   sync.Mutex
	list []Process
}

// During runs call on a thread that no other goroutine shares, and notes the children that this
// thread started meanwhile: the kernel lists them by thread.
func (f *Forks) During(call func()) {
	known := lockThread()
	before := threadChildren()
	defer func() {
		after := threadChildren()
		runtime.UnlockOSThread()
		f.mu.Lock()
		defer f.mu.Unlock()
		for p := range after {
			if known && !before[p] {
				f.list = append(f.list, p)
			}
		}
	}()
	call()
}

// List returns them.
func (f *Forks) List() []Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Process(nil), f.list...)
}
