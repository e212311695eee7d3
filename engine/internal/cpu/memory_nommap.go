//go:build !unix

package cpu

// No mmap here: a slice of the Go heap, alive as long as its Buffer is. A view kept after Free
// stays readable on such a system.
func mapMemory(n int) ([]byte, error) { return make([]byte, n), nil }

func unmapMemory([]byte) error { return nil }
