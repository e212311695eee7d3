//go:build !amd64

package cpu

// pause is a short wait of a spinning thread.
func pause() {
	for range 8 {
		spinHint()
	}
}

//go:noinline
func spinHint() {}

// prefetch asks for the cache lines of n > 0 numbers, and does not wait for them.
func prefetch(*float32, uintptr) {}
