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
